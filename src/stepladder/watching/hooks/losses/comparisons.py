"""Watch comparisons of predictions with labels whose shapes broadcast to all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.watching.hooks.patches import Patches
from stepladder.watching.hooks.tensors import is_plain, tensors_in
from stepladder.watching.seen.losses import ComparisonSeen
from stepladder.watching.watcher import Watcher

_METHODS: Final = ("__eq__", "__ne__", "eq", "ne")
_FUNCTIONS: Final = ("eq", "ne")
_MAX_WINDOWS: Final = 24  # times that the wrappers are put in place
_MAX_STEPS: Final = 6  # of these, for steps of the training
_MAX_CHECKED: Final = 64  # comparisons in between
_MAX_COMPARED: Final = 24  # of suspicious shapes, whose values are read
_MAX_NUMBERS: Final = 65_536  # of an output that is kept until the next one
_MAX_OUTPUTS: Final = 3


class ComparisonWatch:
    """Wraps `==` and `!=` of tensors, after calls of models in evaluation mode and in a few steps.

    One side has to be what is predicted from the model's last output: the largest class, or whether
    it exceeds 0 or 1/2. That distinguishes it from labels compared with each other in all pairs.
    """

    def __init__(self) -> None:
        self._watcher: Watcher
        self._patches: Patches | None = None
        self._is_on = False
        self._left = 0  # steps until the wrappers are removed
        self._num_windows = self._num_steps = self._num_checked = self._num_compared = 0
        self._outputs: list[Tensor] = []
        self._seen: dict[str | None, ComparisonSeen] = {}

    def install(self, watcher: Watcher) -> None:
        """Listen for evaluations and steps."""
        self._watcher = watcher
        watcher.on_evaluation.append(self._evaluated)
        watcher.on_step.append(self._stepped)
        watcher.on_close.append(self._step)
        for name in _FUNCTIONS:
            watcher.patches.wrap(torch, name, before=self._compare)
        watcher.patches.on_undo(self._shut)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _evaluated(self, is_entered: bool) -> None:
        if is_entered:
            self._open(until=1)

    def _step(self) -> None:
        if self._num_steps < _MAX_STEPS:
            self._num_steps += 1
            self._open(until=2)  # a metric may be computed after the step

    def _stepped(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._shut()

    def _open(self, *, until: int) -> None:
        self._left = max(self._left, until)
        is_done = self._num_windows >= _MAX_WINDOWS or self._num_compared >= _MAX_COMPARED
        if self._is_on or is_done or self._watcher.seen.is_compiled:
            return
        self._num_windows += 1
        self._num_checked = 0
        if self._patches is None:
            self._patches = Patches(self._watcher.switch)
            for name in _METHODS:
                self._patches.wrap(Tensor, name, before=self._compare)
        else:
            self._patches.take_up()
        self._is_on = True
        self._watcher.on_output.append(self._keep)

    def _shut(self) -> None:
        self._outputs = []
        if self._is_on and self._patches is not None:
            self._is_on = False
            self._patches.lay_down()
            self._watcher.on_output.remove(self._keep)

    def _keep(self, output: Any) -> None:
        """Keep small outputs of a model until it is called again, or the step ends."""
        values = list(output.values()) if isinstance(output, dict) else output
        found = (one for one in tensors_in(values, 2) if one.dim() in (1, 2) and one.numel() > 1)
        small = (one for one in found if one.is_floating_point() and one.numel() <= _MAX_NUMBERS)
        self._outputs = [one.detach() for one, _ in zip(small, range(_MAX_OUTPUTS), strict=False)]

    def _compare(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._num_checked += 1
        if not self._is_on or self._num_checked > _MAX_CHECKED:
            self._shut()
        elif len(args) == 2 and isinstance(args[0], Tensor) and isinstance(args[1], Tensor):
            first, second = args
            if first.dim() == 1 and _is_column(second, first.shape[0]):
                self._judge(first, second)
            elif second.dim() == 1 and _is_column(first, second.shape[0]):
                self._judge(second, first)

    def _judge(self, row: Tensor, column: Tensor) -> None:
        """Note a comparison of (n,) with (n, 1), if one of both is predicted."""
        if not self._outputs or self._num_compared >= _MAX_COMPARED:
            return
        if not is_plain(row) or not is_plain(column) or row.data_ptr() == column.data_ptr():
            return
        self._num_compared += 1
        numbers, others = _numbers(row), _numbers(column)
        if torch.equal(numbers, others) or bool((numbers.diff() > 0).all()):
            return  # all pairs of the same labels, or the list of all classes
        guesses = [_numbers(one) for output in self._outputs for one in _guesses(output)]
        is_row = any(torch.equal(numbers, guess) for guess in guesses)
        is_column = any(torch.equal(others, guess) for guess in guesses)
        if is_row is is_column:
            return
        where = self._watcher.own.here()
        if where not in self._seen:
            shapes = tuple(row.shape), tuple(column.shape)
            predicted, label = shapes if is_row else shapes[::-1]
            self._seen[where] = ComparisonSeen(where=where, predicted=predicted, label=label)
            self._watcher.seen.comparisons.append(self._seen[where])
        self._seen[where].num_calls += 1


def _is_column(value: Tensor, num: int) -> bool:
    return num > 1 and value.dim() == 2 and value.shape[0] == num and value.shape[1] == 1


def _numbers(value: Tensor) -> Tensor:
    return value.detach().reshape(-1).double().cpu()


def _guesses(output: Tensor) -> Iterator[Tensor]:
    """Yield what may be predicted from an output, one number for each row."""
    if output.dim() == 2 and output.shape[1] > 1:
        yield output.argmax(1)
    else:
        yield from (output > 0, output > 0.5, output.round())

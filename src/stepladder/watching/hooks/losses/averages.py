"""Watch what a script divides the sum of its losses by after a pass over a loader."""

from __future__ import annotations

import ast
import inspect
import linecache
import math
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from stepladder.watching.hooks.losses.lost_terms import value_of
from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.script.averages import Division, divisions
from stepladder.watching.seen.loaders import PassSeen
from stepladder.watching.seen.losses import AverageSeen, UnevenAverageSeen
from stepladder.watching.watcher import Watcher

_MEANS: Final = ("mean", "batchmean")
_MAX_LOSSES: Final = 4096  # of a pass
_MAX_PER_BATCH: Final = 4
_MAX_LINES: Final = 1500  # of a file
_MAX_LOOPS: Final = 8  # whose source is read
_MAX_VARIABLES: Final = 1000
_MAX_DEPTH: Final = 6
_EXACT: Final = 1e-4  # of a sum, also in 32 bits
_USUAL_ARGS: Final = 3  # of a loss by position: further ones may say how it is reduced


class AverageWatch:
    """Stores the losses of the first passes over each loader, and finds variables of their sum.

    Attributes:
        is_open: losses belong to such a pass.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._watcher: Watcher
        self._losses: list[Tensor] = []
        self._kinds: dict[str, None] = {}
        self._known: set[tuple[str, int]] = set()

    def install(self, watcher: Watcher) -> None:
        """Listen for passes."""
        self._watcher = watcher
        watcher.on_any_pass.append(self._close)
        watcher.on_pass.append(self._open)
        watcher.on_pass_end.append(self._look)

    def settle(self) -> None:
        """Forget the losses of a pass that did not end."""
        self._close()

    def _open(self) -> None:
        self.is_open = len(self._known) < _MAX_LOOPS

    def _close(self) -> None:
        self.is_open = False
        self._losses, self._kinds = [], {}

    def add(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Store a loss, if it is a mean; otherwise, forget those of this pass."""
        is_mean = kwargs.get("reduction", "mean") in _MEANS and len(args) <= _USUAL_ARGS
        is_number = isinstance(result, Tensor) and not result.dim()
        if is_mean and is_number and len(self._losses) < _MAX_LOSSES:
            self._losses.append(result.detach())
            self._kinds[kind] = None
        else:
            self._close()

    def _look(self, one: PassSeen, dataset: Any) -> None:
        losses, kinds = self._losses, list(self._kinds)
        is_open = self.is_open
        self._close()
        frame = self._watcher.own.frame() if is_open else None
        per_batch = len(losses) / max(1, one.num_batches)
        if frame is None or one.num_batches < 2 or per_batch not in range(1, _MAX_PER_BATCH + 1):
            return
        file, line = frame.f_code.co_filename, frame.f_lineno
        if (file, line) in self._known:
            return
        sizes = self._sizes(one, dataset)
        if not sizes or any(not is_plain(loss) for loss in losses):
            return
        if len({(loss.device, loss.dtype) for loss in losses}) > 1:
            return
        values = torch.stack(losses).tolist()
        parts = [values, *(values[start :: int(per_batch)] for start in range(int(per_batch)))]
        names = _variables(frame, [(len(part), sum(part)) for part in parts])
        if not names:
            return
        self._known.add((file, line))
        divisors = _Divisors(frame, dataset, one.num_batches)
        for found in _read(file, line, tuple(names)):
            divisor, num = divisors.value(found.divisor, found.given), names[found.name]
            where = f"{self._watcher.own.name_of(file)}:{found.line}"
            if divisor is not None and divisor == num == one.num_batches:
                self._note_uneven(one, where, found.name)
            elif divisor is not None and divisor in sizes and divisor >= 1.5 * num:
                self._watcher.seen.averages.append(
                    AverageSeen(
                        where=where,
                        name=found.name,
                        kinds=tuple(kinds),
                        num_losses=num,
                        num_batches=one.num_batches,
                        divisor=int(divisor),
                    )
                )

    def _note_uneven(self, one: PassSeen, where: str, name: str) -> None:
        loader = self._watcher.seen.loaders[one.loader]
        size, num = loader.batch_size, loader.num_examples
        if size is None or num is None or num >= size * one.num_batches:
            return
        num_last = num - size * (one.num_batches - 1)
        if num_last > 0:
            self._watcher.seen.uneven_averages.append(
                UnevenAverageSeen(
                    where=where,
                    name=name,
                    num_batches=one.num_batches,
                    num_last=num_last,
                    num_examples=num,
                )
            )

    def _sizes(self, one: PassSeen, dataset: Any) -> set[int]:
        """Return the numbers of examples that a pass may be said to have."""
        loader = self._watcher.seen.loaders[one.loader]
        found = {loader.num_examples, _length(dataset)}
        if loader.batch_size is not None:
            found.add(loader.batch_size * one.num_batches)
        return {num for num in found if num is not None}


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


def _variables(frame: FrameType, sums: list[tuple[int, float]]) -> dict[str, int]:
    """Return the variables that are a sum of losses, or a list of them, and of how many."""
    sums = [(num, total) for num, total in sums if math.isfinite(total) and total and num > 1]
    values = frame.f_locals
    found: dict[str, int] = {}
    for name, value in list(values.items())[:_MAX_VARIABLES]:
        number = _number(value)
        for num, total in sums if number is not None else ():
            is_all = not isinstance(value, list) or len(value) == num
            if is_all and math.isclose(number or 0.0, total, rel_tol=_EXACT):
                found.setdefault(name, num)
    if isinstance(values, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        for name, value in list(values.items()):  # a copy, which would keep them alive
            if not isinstance(value, (int, float)):
                del values[name]
    return found


def _number(value: Any) -> float | None:
    """Return the number that a variable is, or that its items add up to."""
    if isinstance(value, float):
        return value
    if isinstance(value, Tensor):
        is_number = value.dim() == 0 and value.is_floating_point() and is_plain(value)
        return float(value.detach()) if is_number else None
    if isinstance(value, list) and 1 < len(value) <= _MAX_LOSSES:
        if all(isinstance(one, float) for one in value):
            return sum(value)
        if all(isinstance(one, Tensor) and one.dim() == 0 and is_plain(one) for one in value):
            return float(sum(torch.stack([one.detach() for one in value]).tolist()))
    return None


def _read(file: str, line: int, names: tuple[str, ...]) -> list[Division]:
    lines = linecache.getlines(file)
    if not 0 < len(lines) <= _MAX_LINES:
        return []
    try:
        return divisions(ast.parse("".join(lines)), line, names)
    except SyntaxError:  # a magic command of a notebook
        return []


@dataclass(frozen=True)
class _Divisors:
    """Reads what sums are divided by, without calling the script's code."""

    frame: FrameType
    dataset: Any
    num_batches: int

    def value(self, node: ast.expr, given: dict[str, ast.expr], depth: int = 0) -> float | None:
        """Return the value of an expression; None if it is unknown."""
        if depth > _MAX_DEPTH:
            return None
        if isinstance(node, ast.Name) and node.id in given:
            return self.value(given[node.id], given, depth + 1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            left = self.value(node.left, given, depth + 1)
            right = self.value(node.right, given, depth + 1)
            return None if left is None or right is None else left * right
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            called = getattr(node.func, "id", "")
            if called == "len":
                return self._length(value_of(node.args[0], self.frame))
            is_number = called in ("float", "int")
            return self.value(node.args[0], given, depth + 1) if is_number else None
        value = value_of(node, self.frame)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if is_number else None  # type: ignore[arg-type]

    def _length(self, value: Any) -> int | None:
        if isinstance(value, DataLoader):
            return self.num_batches if value.dataset is self.dataset else None
        is_known = value is self.dataset or isinstance(value, (Tensor, list, tuple))
        return _length(value) if is_known else None

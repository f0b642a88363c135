"""Measure how much of the inputs is padding that no row of the batch needs."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.tensors import is_plain, tensors_in
from stepladder.watching.seen.costs import PaddingSeen
from stepladder.watching.watcher import Watcher

_MAX_LOOKS: Final = 16
_MIN_ROWS: Final = 4
_MIN_LENGTH: Final = 16
_MAX_VALUES: Final = 1_000_000
_MAX_MODULES: Final = 2000


def used_length(rows: Tensor) -> int | None:
    """Return how many positions a batch needs; None if that is not known.

    Padding is one integer that fills the end, or the beginning, of all rows; of floating-point
    sequences it is 0, at the end.

    Shapes: rows is (n, t) of integers, or (n, t, d) of floating-point numbers.
    """
    num, length = int(rows.shape[0]), int(rows.shape[1])
    if num < _MIN_ROWS or length < _MIN_LENGTH or not 0 < rows.numel() <= _MAX_VALUES:
        return None
    values = rows.detach()
    if values.is_floating_point():
        is_used = (values != 0).any(2).any(0)
        is_used[0] = True
        return _span(is_used)
    ends = [int(values[0, -1]), int(values[0, 0])]
    found = [_span((values != ends[0]).any(0)), length]
    if ends[1] != ends[0]:
        found[1] = _span((values != ends[1]).any(0))
    return min(found)


def _span(is_used: Tensor) -> int:
    """Return the length without an unused beginning or end.

    Shapes: is_used is (t,).
    """
    places = is_used.nonzero()
    return int(places[-1] - places[0]) + 1 if len(places) else len(is_used)


def has_fixed_length(module: nn.Module, length: int) -> bool:
    """Return whether a layer of a model may need inputs of exactly this length."""
    sizes = {1}
    for idx, one in enumerate(module.modules()):
        if idx >= _MAX_MODULES or isinstance(one, (nn.Flatten, nn.Unflatten)):
            return True
        is_own = not type(one).__module__.startswith("torch.nn.")
        if is_own and any(length in p.shape for p in one.parameters(recurse=False)):
            return True
        if isinstance(one, nn.Embedding):
            sizes.add(one.embedding_dim)
        elif isinstance(one, nn.Conv1d):
            sizes.add(one.out_channels)
    needed = {length * size for size in sizes}
    return any(isinstance(one, nn.Linear) and one.in_features in needed for one in module.modules())


class LongPaddingWatch:
    """Reads the first sequence that a model receives in steps that are inspected."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._seen: PaddingSeen

    def install(self, watcher: Watcher) -> None:
        """Be called with the inputs of models."""
        self._watcher = watcher
        self._seen = watcher.seen.costs.padding
        watcher.on_call.append(self._called)

    def settle(self) -> None:
        """Do nothing: values are read at once."""

    def _called(
        self, _root: Root, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        watcher, seen = self._watcher, self._seen
        is_read = watcher.is_close and module.training and torch.is_grad_enabled()
        if not is_read or seen.num_looked >= _MAX_LOOKS or seen.is_fixed:
            return
        rows = next((t for t in tensors_in((args, kwargs), 2) if _is_sequence(t)), None)
        used = None if rows is None else used_length(rows)
        if rows is None or used is None:
            return
        length = int(rows.shape[1])
        if not seen.num_looked or length not in seen.lengths:
            seen.is_fixed = has_fixed_length(module, length)
        seen.num_looked += 1
        seen.num_positions += length
        seen.num_used += used
        seen.lengths.add(length)
        seen.used.add(used)
        seen.where = seen.where or watcher.own.here()


def _is_sequence(value: Tensor) -> bool:
    """Return whether a tensor may be a batch of tokens, or of sequences of numbers."""
    if not is_plain(value) or value.dtype is torch.bool:
        return False
    if value.is_floating_point():
        return value.dim() == 3 and not value.requires_grad
    return value.dim() == 2

"""Watch held-out inputs that may be scaled with their own statistics, if the source has a place."""

from __future__ import annotations

import ast
import linecache
import re
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.inputs.shifts import is_held_out
from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.tensors import is_plain, tensors_in
from stepladder.watching.script.own_scales import OwnScale, own_scales
from stepladder.watching.seen.inputs import OwnScaleSeen
from stepladder.watching.watcher import Watcher

_MAX_LINES: Final = 1500  # of a file
_MAX_FILES: Final = 8
_MAX_GROUPS: Final = 8  # evaluations
_MAX_CALLS: Final = 500  # that are inspected
_MAX_VALUES: Final = 4_000_000  # of an evaluation
_MAX_COLUMNS: Final = 4096
_MIN_ROWS: Final = 30
_MIN_COLUMNS: Final = 2
_EXACT: Final = 0.02  # of the standard error of a mean
_RANGES: Final = ((0.0, 1.0), (-1.0, 1.0))
_EQUAL: Final = 1e-5


class _Group:
    """Sums, sums of squares and ranges of the inputs of one evaluation, by column."""

    def __init__(self, lines: tuple[tuple[str, int], ...], loader: int | None, step: int) -> None:
        self.lines, self.loader, self.step = lines, loader, step
        self.num = 0
        self.sums: Tensor | None = None
        self.is_whole = True

    def add(self, given: Tensor) -> None:
        """Add a batch of rows."""
        rows = given.detach().double()
        low, high = rows.aminmax(dim=0)
        other = ((rows != 0) & (rows != 1)).any(0).double()
        now = torch.stack([rows.sum(0), rows.square().sum(0), low, high, other])
        before = self.sums
        self.num += len(given)
        if before is not None and before.shape != now.shape:
            self.is_whole = False
        elif before is not None:
            low, high = torch.minimum(before[2], low), torch.maximum(before[3], high)
            other = torch.maximum(before[4], other)
            now = torch.stack([before[0] + now[0], before[1] + now[1], low, high, other])
        self.sums = now
        self.is_whole = self.is_whole and self.num * now.shape[1] <= _MAX_VALUES

    def scale(self) -> tuple[int, bool] | None:
        """Return how many columns are scaled, and whether that is to a range; None if not all are.

        Columns with 0 and 1 alone are left out. Columns that are scaled with other statistics are
        off by about a standard error.
        """
        if self.sums is None or self.num < _MIN_ROWS or not self.is_whole:
            return None
        found = self.sums.cpu()
        found = found[:, found[4] > 0]
        num = found.shape[1]
        if num < _MIN_COLUMNS or not bool(torch.isfinite(found).all()):
            return None
        mean = found[0] / self.num
        std = (found[1] / self.num - mean.square()).clamp(min=0).sqrt()
        near = _EXACT / self.num**0.5
        unbiased = std * (self.num / (self.num - 1)) ** 0.5
        is_unit = ((std - 1).abs() < near) | ((unbiased - 1).abs() < near)
        if bool(((mean.abs() < near) & is_unit).all()):
            return num, False
        for low, high in _RANGES:
            ends = ((found[2] - low).abs() < _EQUAL) & ((found[3] - high).abs() < _EQUAL)
            if bool(ends.all()):
                return num, True
        return None


class OwnScaleWatch:
    """Sums up the rows of inputs in evaluations, if held-out data is fitted again in the source."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._places: dict[str, list[OwnScale]] = {}
        self._groups: dict[Any, _Group] = {}
        self._num_calls = 0

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls of models."""
        self._watcher = watcher
        watcher.on_call.append(self._called)

    def settle(self) -> None:
        """Compare what was summed up, which may be on a device."""
        own = self._watcher.own
        for group in self._groups.values():
            scale = group.scale()
            if scale is None or not is_held_out(self._watcher, group.lines, group.loader):
                continue
            file, place = self._place_of(group)
            seen = OwnScaleSeen(
                where=f"{own.name_of(file)}:{place.line}",
                code=place.code,
                evaluated_at=own.innermost(group.lines[::-1]),
                num_rows=group.num,
                num_columns=scale[0],
                is_range=scale[1],
            )
            self._watcher.seen.own_scales.append(seen)
        self._groups.clear()

    def _place_of(self, group: _Group) -> tuple[str, OwnScale]:
        """Return the file and the statement that shares most variables with an evaluation."""
        text = " ".join(linecache.getline(*line) for line in group.lines)
        words = set(re.findall(r"\w+", text))
        all_of_them = [(file, one) for file, places in self._places.items() for one in places]
        return max(all_of_them, key=lambda item: len(item[1].names & words))

    def _called(
        self, _root: Root, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        watcher = self._watcher
        if (module.training and torch.is_grad_enabled()) or not watcher.step:
            return
        if self._num_calls >= _MAX_CALLS:
            return
        self._num_calls += 1
        lines = watcher.own.lines()
        self._read(lines)
        if not any(self._places.values()):
            return
        current = watcher.current
        if current is not None and (current.is_whole or current.num_backwards):
            current = None
        key: Any = lines if current is None else current.loader
        if key not in self._groups and len(self._groups) < _MAX_GROUPS:
            loader = None if current is None else current.loader
            self._groups[key] = _Group(lines, loader, watcher.step)
        group = self._groups.get(key)
        given = _rows_of(args, kwargs)
        if group is not None and group.step == watcher.step and given is not None:
            group.add(given)

    def _read(self, lines: tuple[tuple[str, int], ...]) -> None:
        for file, _ in lines:
            if file in self._places or len(self._places) >= _MAX_FILES:
                continue
            self._places[file] = []
            text = linecache.getlines(file)
            if 0 < len(text) <= _MAX_LINES:
                try:
                    self._places[file] = own_scales(ast.parse("".join(text)))
                except (SyntaxError, ValueError, RecursionError):  # a magic command of a notebook
                    continue


def _rows_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the first input, if it is a table with several numbers per example."""
    first = next(tensors_in((args, kwargs), 3), None)
    if first is None or not is_plain(first) or first.requires_grad or first.dim() != 2:
        return None
    if not first.is_floating_point() or not 1 < first.shape[1] <= _MAX_COLUMNS or not len(first):
        return None
    if first.is_cuda and torch.cuda.is_current_stream_capturing():
        return None  # a CUDA graph would repeat what is computed here
    return first if first.numel() <= _MAX_VALUES else None

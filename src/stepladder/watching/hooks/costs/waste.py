"""Watch what makes steps slow in known ways: enlarged images, modes for debugging, float64."""

from __future__ import annotations

import sys
from itertools import groupby, pairwise
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from stepladder.watching.hooks.costs.denormals import DenormalWatch
from stepladder.watching.hooks.costs.handles import HandleWatch
from stepladder.watching.hooks.costs.tables import TableWatch
from stepladder.watching.hooks.names import Names
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.seen.costs import CostsSeen, ResizedSeen
from stepladder.watching.watcher import Watcher

_MAX_LINES: Final = 32
_TRANSFORMS: Final = ("rotate", "transform", "filter")  # of Pillow, whose time grows with the image
_MAX_LOOKS: Final = 2  # batches of which an image is inspected
_MIN_SIDE: Final = 64  # smaller images are cheap
_MIN_EDGES: Final = 8
_NUM_LINES: Final = 48  # rows or columns that are compared
_MAX_LEVELS: Final = 1024  # distinct values of an image that was stored in whole numbers
_LEVEL: Final = 2.1  # levels: rounding moves a second difference by up to two
_MAX_IMAGES: Final = 4096  # of one line that are counted
_FEW_CHANNELS: Final = 4  # of an image
_COUNT_EVERY: Final = 20  # inspected steps: the optimizers' weights are counted
_MIN_AREA: Final = 2.0  # an image is enlarged if it has as many times its pixels


def enlarged_from(image: Tensor) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return the size of an image and of the one that it was enlarged from, or None.

    Copies of neighbours change only every k-th column, and linear interpolation bends only there.
    No two neighbouring columns change in the first case, and no three bend in the second.

    Shapes: image is (c, h, w).
    """
    height, width = int(image.shape[1]), int(image.shape[2])
    if min(height, width) < _MIN_SIDE or not image.is_cpu:
        return None
    values = image.float()
    by_column = _spacing(values.flatten(0, 1))
    by_row = _spacing(values.transpose(1, 2).flatten(0, 1))
    if by_column is None or by_row is None:
        return None
    return (height, width), (round(height / by_row), round(width / by_column))


def _spacing(lines: Tensor) -> float | None:
    """Return every how many columns the values of lines change or bend; None for all. (n, w)."""
    lines = lines[:: max(1, len(lines) // _NUM_LINES)]
    ordered = lines.flatten().sort().values
    levels = ordered[torch.cat([ordered.new_ones(1), ordered.diff()]) > 0]
    reach = float(levels[-1] - levels[0])
    if len(levels) < _MIN_EDGES or not 0 < reach < float("inf"):
        return None
    level = float(levels.diff().median()) if len(levels) <= _MAX_LEVELS else 0.0
    first = lines.diff(dim=1)
    for order, changes, allowed in ((1, first, 0.0), (2, first.diff(dim=1), _LEVEL * level)):
        is_edge = (changes.abs().amax(0) > allowed + 1e-4 * reach).tolist()
        longest = max((len(list(run)) for edge, run in groupby(is_edge) if edge), default=0)
        num = sum(edge and not before for before, edge in pairwise([False, *is_edge]))
        if num >= _MIN_EDGES and longest <= order and len(is_edge) >= _MIN_AREA * num:
            spacing = lines.shape[1] / (num + (order == 1))
            return spacing if spacing >= order + 1 else None
    return None


class WasteWatch:
    """Wraps functions that resize images, and reads torch's modes in steps that are inspected."""

    def __init__(self, names: Names, optimizers: OptimizerWatch) -> None:
        self._names = names
        self._optimizers = optimizers
        self._watcher: Watcher
        self._seen: CostsSeen
        self._has_pillow = False
        self._num_transformed = 0
        self._tables = TableWatch(names, optimizers)
        self._denormals = DenormalWatch(optimizers)
        self._handles = HandleWatch(names)

    def install(self, watcher: Watcher) -> None:
        """Install the wrappers."""
        self._watcher = watcher
        self._seen = watcher.seen.costs
        watcher.patches.wrap(functional, "interpolate", after=self._interpolated)
        watcher.on_close.append(self._look)
        self._tables.install(watcher)
        self._denormals.install(watcher)
        self._handles.install(watcher)

    def settle(self) -> None:
        """Count the weights, those in float64, and hooks."""
        self._handles.settle()
        self._count_weights()

    def _count_weights(self) -> None:
        """Count the weights, unless the optimizers are gone with the function that made them."""
        held = [
            p
            for o in self._optimizers.live_optimizers()
            for g in o.param_groups
            for p in g["params"]
            if isinstance(p, Tensor)
        ]
        if held:
            self._seen.num_floats = sum(p.numel() for p in held)
            self._seen.num_doubles = sum(p.numel() for p in held if p.dtype is torch.float64)

    def _look(self) -> None:
        """Read modes that are meant for debugging; wrap Pillow once the script has imported it."""
        watcher, seen = self._watcher, self._seen
        if not self._has_pillow and (module := sys.modules.get("PIL.Image")) is not None:
            self._has_pillow = True
            watcher.patches.wrap(module.Image, "resize", after=self._resized)
            for name in _TRANSFORMS:
                watcher.patches.wrap(module.Image, name, after=self._transformed)
        if watcher.step < 3:
            return
        if seen.num_modes % _COUNT_EVERY == 0:
            self._count_weights()
        if len(seen.enlarged) < _MAX_LOOKS:
            self._look_at_images()
        seen.num_modes += 1
        seen.num_anomaly += torch.is_anomaly_enabled()
        seen.num_profiled += torch._C._autograd._profiler_enabled()
        seen.is_deterministic = bool(
            torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic
        )

    def _look_at_images(self) -> None:
        """Check whether an image that a model has received was enlarged."""
        for ref in self._watcher.input_refs[:1]:
            value = ref()
            is_image = value is not None and value.dim() == 4 and value.shape[1] <= _FEW_CHANNELS
            if is_image and value is not None and is_plain(value) and value.is_floating_point():
                self._seen.enlarged.append(enlarged_from(value[len(value) // 2].detach()))

    def _interpolated(
        self, _note: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        given = args[0] if args else kwargs.get("input")
        if not isinstance(given, Tensor) or not isinstance(result, Tensor):
            return
        is_image = given.dim() in (3, 4) and given.shape[-3] <= _FEW_CHANNELS
        if is_image and given.is_floating_point() and not given.requires_grad:
            self._note("interpolate", tuple(given.shape[-2:]), tuple(result.shape[-2:]))

    def _resized(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, result: Any) -> None:
        before, after = getattr(args[0], "size", None), getattr(result, "size", None)
        if isinstance(before, tuple) and isinstance(after, tuple):
            self._note("resize", before[::-1], after[::-1])

    def _transformed(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        seen, size = self._seen.transformed, getattr(args[0], "size", None)
        if self._num_transformed >= _MAX_IMAGES or not isinstance(size, tuple):
            return
        self._num_transformed += 1
        where = self._watcher.own.here()
        if where in seen or len(seen) < _MAX_LINES:
            seen[where] = max(seen.get(where, (0, 0)), (size[1], size[0]))

    def _note(self, function: str, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        if self._watcher.phases.is_validating or min(before) <= 0:
            return
        where = self._watcher.own.here()
        one = self._seen.resized.get(where)
        if one is None:
            if len(self._seen.resized) >= _MAX_LINES:
                return
            one = self._seen.resized[where] = ResizedSeen(where=where, function=function)
        if one.num >= _MAX_IMAGES:
            return
        one.num += 1
        one.before, one.after = before, after
        area = (after[0] * after[1]) / (before[0] * before[1])
        one.num_enlarged += area >= _MIN_AREA

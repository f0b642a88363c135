"""Watch view and reshape where a transpose is meant, before training and in its first steps."""

from __future__ import annotations

import weakref
from itertools import pairwise
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.graph import kind_of
from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.tensors import is_plain, tensors_in
from stepladder.watching.seen.models import Mixed, ReshapeSeen
from stepladder.watching.watcher import Watcher

_MAX_CALLS: Final = 4000  # that are inspected
_LAST_STEP: Final = 4
_MAX_PLACES: Final = 64
_MAX_CHANNELS: Final = 4
_MAX_GIVEN: Final = 4  # tensors of a call of a model
_TURNED: Final = frozenset({"Transpose", "Permute", "T"})
_SHIFTED: Final = frozenset({"Cat", "ConstantPadNd", "Slice"})
_WRAPPED: Final = ((Tensor, "view"), (Tensor, "reshape"), (torch, "reshape"))
Shape = tuple[int, ...]


def sizes_of(shape: Shape) -> Shape:
    """Return the sizes of a shape, without dimensions of one."""
    return tuple(size for size in shape if size > 1)


def mixed_by(before: Shape, after: Shape) -> Mixed | None:
    """Return what a reshape mixes that only gives its values other dimensions, or None.

    The sizes of both shapes show it: dimensions that only a transpose could exchange. Dimensions
    of one are left out.
    """
    s, r = sizes_of(before), sizes_of(after)
    if s == r or min(len(s), len(r)) < 2:
        return None
    if r[:2] == (s[1], s[0]) and s[0] != s[1]:
        # Sizes that differ by one are those of relative positions, which are shifted like this.
        return Mixed.FIRST_TWO if abs(s[0] - s[1]) > 1 else None
    return _moved(s, r) if sorted(s) == sorted(r) else _divided(s, r)


def _divided(s: Shape, r: Shape) -> Mixed | None:
    """Return what is mixed if a dimension is divided, or two are merged."""
    lengths = len(s), len(r)
    if lengths == (3, 4) and r[0] == s[0] and r[2] == s[1] != r[1]:
        return Mixed.SPLIT_HEADS
    # Otherwise, these are groups of channels.
    if lengths == (4, 3) and r == (s[0], s[2], s[1] * s[3]) and s[1] % s[2]:
        return Mixed.MERGED_HEADS
    is_state = lengths == (3, 2) and r[0] == s[1] != s[0]
    is_state = is_state or (lengths == (2, 3) and r[1] == s[0] != r[0])
    return Mixed.LAYERS if is_state else None


def _moved(s: Shape, r: Shape) -> Mixed | None:
    """Return CHANNELS if the last dimension of each example became its first, or vice versa."""
    if s[0] == r[0]:
        inner, outer = s[1:], r[1:]
    elif len(s) == 3 and min(s[0], s[-1]) <= _MAX_CHANNELS:
        inner, outer = s, r  # a single image
    else:
        return None
    if len(inner) == 2 and abs(inner[0] - inner[1]) == 1:
        return None  # a shift of relative positions
    if len(inner) == 3 and outer == (inner[1], inner[0], inner[2]) and abs(inner[0] - inner[1]) > 1:
        return Mixed.HEADS
    is_moved = outer in (inner[-1:] + inner[:-1], inner[1:] + inner[:1])
    return Mixed.CHANNELS if is_moved else None


class _Place:
    """A line that mixes values.

    Attributes:
        result: of its last call.
        steps: in which a model learned from such a result.
    """

    def __init__(self, seen: ReshapeSeen, function: Any) -> None:
        self.seen = seen
        self.function = function
        self.result: weakref.ref[Tensor] | None = None
        self.is_shifted = False
        self.steps: set[int] = set()

    def is_undone_by(self, other: _Place) -> bool:
        """Return whether another line of its function exchanges the dimensions back.

        One size may differ by one, as in a shift of relative positions.
        """
        pairs = zip(sorted(self.seen.before), sorted(other.seen.after), strict=False)
        is_back = self.seen.before[:2] != other.seen.before[:2]
        return (
            other is not self
            and other.function is self.function
            and self.seen.mixed is other.seen.mixed is Mixed.FIRST_TWO
            and is_back
            and sum(abs(a - b) for a, b in pairs) <= 1
        )


class ReshapeWatch:
    """Wraps view and reshape until a few steps were taken."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._places: dict[tuple[str, int], _Place] = {}
        self._num_calls = 0
        self._is_wrapped = False

    def install(self, watcher: Watcher) -> None:
        """Wrap the functions."""
        self._watcher = watcher
        watcher.on_call.append(self._called)
        for owner, name in _WRAPPED:
            watcher.patches.wrap(owner, name, after=self._reshaped)
        self._is_wrapped = True
        watcher.patches.wrap(torch, "compile", before=self._compiling)

    def settle(self) -> None:
        """Store the lines whose results were learned from as plain data."""
        places = list(self._places.values())
        self._watcher.seen.reshapes = [
            one.seen
            for one in places
            if one.seen.num_steps
            and not one.is_shifted
            and not any(one.is_undone_by(other) for other in places)
        ]

    def _compiling(self, _args: Any, _kwargs: Any) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._is_wrapped:
            self._is_wrapped = False
            for owner, name in _WRAPPED:
                self._watcher.patches.drop(owner, name)

    def _reshaped(self, _note: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
        self._num_calls += 1
        if self._num_calls > _MAX_CALLS or self._watcher.step >= _LAST_STEP:
            self._drop()
            return
        given = args[0] if args else kwargs.get("input")
        if not isinstance(given, Tensor) or not isinstance(result, Tensor):
            return
        before, after = tuple(given.shape), tuple(result.shape)
        mixed = mixed_by(before, after)
        if mixed is None or not is_plain(given) or isinstance(given, nn.Parameter):
            return
        if not _is_in_order(given) or _is_turned(given):
            return
        place = self._place(mixed, before, after)
        if place is None:
            return
        place.is_shifted = place.is_shifted or _is_shifted(given)
        place.result = weakref.ref(result)
        is_followed = given.grad_fn is not None or self._is_input(given)
        if is_followed and torch.is_grad_enabled() and self._is_of_batch(mixed, before, after):
            self._count(place)

    def _place(self, mixed: Mixed, before: Shape, after: Shape) -> _Place | None:
        """Return the line of the script that mixes values; None if that is in a library."""
        own = self._watcher.own
        frame = own.frame() if own.is_own_call() else None
        if frame is None:
            return None
        key = (frame.f_code.co_filename, frame.f_lineno)
        place = self._places.get(key)
        if place is None and len(self._places) < _MAX_PLACES:
            seen = ReshapeSeen(where=own.here(), mixed=mixed, before=before, after=after)
            place = self._places[key] = _Place(seen, frame.f_code)
        if place is not None and (place.seen.mixed, len(place.seen.before)) != (mixed, len(before)):
            place.is_shifted = True  # a line of several uses
        return place

    def _is_input(self, given: Tensor) -> bool:
        """Return whether a model that is called now received a tensor."""
        known: list[Any] = [ref() for ref in self._watcher.input_refs]
        return any(
            is_plain(one) and one.data_ptr() == given.data_ptr() and one.shape == given.shape
            for one in known
        )

    def _is_of_batch(self, mixed: Mixed, before: Shape, after: Shape) -> bool:
        """Return whether a dimension is that of the examples that the model received."""
        first = self._watcher.input_refs[0]() if self._watcher.input_refs else None
        known = () if first is None else _batch_sizes(first)
        s, r = sizes_of(before), sizes_of(after)
        if mixed is Mixed.FIRST_TWO:
            return any(size in s[:2] for size in known)
        if mixed is Mixed.LAYERS:
            num, num_layers = (s[1], s[0]) if len(s) == 3 else (s[0], r[0])
            return num in known and num_layers % num != 0
        return bool(known) and s[0] % known[0] == 0

    def _called(self, _root: Root, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Find inputs of a model among what was reshaped before."""
        step = self._watcher.step
        if not self._places or step >= _LAST_STEP:
            return
        if not torch.is_grad_enabled() or not module.training:
            return
        for given in list(tensors_in((args, kwargs), 2))[:_MAX_GIVEN]:
            for place in self._places.values():
                if _is_from(given, place):
                    self._count(place)

    def _count(self, place: _Place) -> None:
        place.steps.add(self._watcher.step)
        place.seen.num_steps = len(place.steps)


def _batch_sizes(first: Tensor) -> Shape:
    """Return the sizes of an input that may be that of the batch: the first, or two of series."""
    is_series = first.dim() == 3 or (first.dim() == 2 and not first.is_floating_point())
    return sizes_of(tuple(first.shape[: 1 + is_series]))


def _is_from(given: Tensor, place: _Place) -> bool:
    """Return whether an input is what a line returned, or is of it by its shape."""
    result = None if place.result is None else place.result()
    after = place.seen.after
    if given.grad_fn is not None:
        return False
    if result is None:  # an example of a dataset
        return place.seen.mixed is Mixed.CHANNELS and tuple(given.shape[1:]) == after
    if given is result:
        return True
    if result.grad_fn is not None or given.dim() != len(after) or given.dim() < 3:
        return False
    return (
        prod(after) > given.numel()
        and sum(a != b for a, b in zip(given.shape, after, strict=True)) == 1
    )


def _is_in_order(given: Tensor) -> bool:
    """Return whether the order in memory is that of the dimensions: nothing was transposed."""
    strides = [stride for size, stride in zip(given.shape, given.stride(), strict=True) if size > 1]
    return all(one > other > 0 for one, other in pairwise(strides))


def _is_turned(given: Tensor) -> bool:
    """Return whether a tensor was transposed before, as far as its graph shows it."""
    node: Any = given.grad_fn
    if node is not None and kind_of(node) == "Clone":
        node = node.next_functions[0][0]  # of contiguous()
    return node is not None and kind_of(node) in _TURNED


def _is_shifted(given: Tensor) -> bool:
    """Return whether a tensor was padded or cut before, as for relative positions."""
    node: Any = given.grad_fn
    return node is not None and kind_of(node) in _SHIFTED

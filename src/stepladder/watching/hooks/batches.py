"""What models are given: which batch it is, of which channels, and what they answer with."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import Tensor

from stepladder.watching.hooks.backwards import Window
from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.tensors import is_plain, part, tensors_in

_MAX_KEYS: Final = 500
_MAX_INPUTS: Final = 64


def given_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Tensor]:
    """Give the first tensors of a call; where it is of one and nothing else, its own arguments."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
        return args
    return list(tensors_in((args, kwargs), 2))[:4]


def by_channel(pictures: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give means and deviations of some pictures' first channels."""
    some = pictures.detach()[:16, :, ::4, ::4].float()
    means, stds = some.mean((0, 2, 3)), some.std((0, 2, 3), correction=0)
    return tuple(means.tolist())[:8], tuple(stds.tolist())[:8]


def given_for(
    value: Tensor, given: Sequence[weakref.ref[Tensor]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure what a model was given, where its first layer gets something else of it."""
    for ref in given:
        first = ref()
        if first is None or first.shape != value.shape or not is_plain(first):
            continue
        if first.is_floating_point() and first.data_ptr() != value.data_ptr():
            return by_channel(first)
    return (), ()


def window_of(root: Root, first: Tensor) -> Window | None:
    """Give which part of which large tensor a batch is: order without a loader."""
    seen, base = root.seen, first._base
    if seen.given_pixels is None and first.dim() == 4:
        seen.given_pixels = int(first.shape[2] * first.shape[3])
    if base is None or base.shape[1:] != first.shape[1:]:
        return None
    return weakref.ref(base), int(first.storage_offset())


def note_input(inputs: set[tuple[float, ...]], first: Tensor) -> None:
    """Note some numbers of a batch, by which it differs from the others of its step."""
    if is_plain(first) and len(inputs) < _MAX_INPUTS:
        inputs.add(tuple(part(first.detach(), _MAX_INPUTS).flatten().tolist()))


def note_batch(root: Root, first: Tensor, step: int) -> None:
    """Note some numbers of a batch's first examples, by which it is known again."""
    keys = root.seen.batch_keys
    if step in keys or len(keys) >= _MAX_KEYS or first.dim() < 2 or not first.is_floating_point():
        return
    if is_plain(first) and first.shape[0] > 1 and first.numel():
        rows = first.detach()[:8].flatten(1)
        some = rows[:, :: max(1, rows.shape[1] // 3)][:, :3]
        keys[step] = tuple(some.flatten().tolist())


def first_of(output: Any) -> Tensor | None:
    """Give the first tensor of what a model answers, also of a record such as a ModelOutput."""
    is_record = isinstance(output, Mapping)
    return next(tensors_in(list(output.values()) if is_record else output), None)

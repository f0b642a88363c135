"""Measure whether images are still in the order of (height, width, channels)."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.tensors import is_plain, tensors_in
from stepladder.watching.seen.inputs import PixelsSeen
from stepladder.watching.watcher import Watcher

_MAX_LOOKS: Final = 8
_MAX_MODELS: Final = 4
_MAX_VALUES: Final = 1 << 13  # of an inspected batch
_MIN_SIDE: Final = 8
_CHANNELS: Final = 3
_MAX_MODULES: Final = 2000


def some_lines(images: Tensor) -> Tensor:
    """Return the first rows of the first channel of some images, a multiple of three.

    Shapes: images is (n, 3, h, w); the result (m, 3 k, w).
    """
    h, w = images.shape[2:]
    num = max(2, min(h // _CHANNELS, _MAX_VALUES // (_CHANNELS * w)))
    num_images = max(1, _MAX_VALUES // (_CHANNELS * num * w))
    return images.detach()[:num_images, 0, : _CHANNELS * num]


def neighbours(images: Tensor) -> Tensor:
    """Return how much neighbouring values correlate, if rows are read in either of two orders.

    As rows of a channel: `down`. As rows of pixels of channels: `pixel_right`, `pixel_down`, and
    across the ends of rows of the images, where these are within a row of pixels (`within`) and
    where they are between two (`between`). The first rows of the first channel are enough: in the
    other order, they are the first rows of pixels.

    Shapes: images is (n, 3, h, w); the result (5,).
    """
    lines = some_lines(images)
    num, w = lines.shape[1] // _CHANNELS, lines.shape[2]
    values = lines.float().reshape(-1, num * w, _CHANNELS)
    values = values - values.mean((0, 1))
    values = values / values.square().mean().sqrt().clamp_min(1e-12)
    pixels = values.reshape(-1, num, w, _CHANNELS)
    lines = values.reshape(-1, _CHANNELS * num, w)
    ends = (lines[:, :-1, -_CHANNELS:] * lines[:, 1:, :_CHANNELS]).mean((0, 2))
    between = ends[_CHANNELS - 1 :: _CHANNELS]
    num_within = len(ends) - len(between)
    return torch.stack(
        [
            (lines[:, 1:] * lines[:, :-1]).mean(),
            (pixels[:, :, 1:] * pixels[:, :, :-1]).mean(),
            (pixels[:, 1:] * pixels[:, :-1]).mean(),
            (ends.sum() - between.sum()) / num_within,
            between.mean(),
        ]
    )


class PixelWatch:
    """Reads the images that convolutions learn from, in steps that are inspected."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._models: dict[int, tuple[Root, PixelsSeen | None, list[Tensor]]] = {}

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls of models."""
        self._watcher = watcher
        watcher.on_call.append(self._called)

    def settle(self) -> None:
        """Read what was measured, which may be on a device."""
        for _, seen, measured in self._models.values():
            if seen is None:
                continue
            for down, right, pixel_down, within, between in (one.tolist() for one in measured):
                seen.downs.append(down)
                seen.pixel_rights.append(right)
                seen.pixel_downs.append(pixel_down)
                seen.withins.append(within)
                seen.betweens.append(between)
            self._watcher.seen.pixels.append(seen)
        self._models.clear()

    def _called(
        self, root: Root, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not (self._watcher.is_close and module.training and torch.is_grad_enabled()):
            return
        held = self._models.get(id(root))
        if held is not None and (held[1] is None or len(held[2]) >= _MAX_LOOKS):
            return
        images = _images_of(args, kwargs)
        if images is None or (held is None and len(self._models) >= _MAX_MODELS):
            return
        if held is None:
            seen = None
            if _reads_neighbours(module):
                seen = PixelsSeen(built=root.seen.built, where=self._watcher.own.here())
            held = self._models[id(root)] = (root, seen, [])
        if held[1] is not None:
            held[1].num_values += some_lines(images).numel()
            held[1].size = (int(images.shape[2]), int(images.shape[3]))
            held[2].append(neighbours(images))


def _images_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the first input, if it is a batch of images with three channels."""
    first = next(tensors_in((args, kwargs), 3), None)
    if first is None or not is_plain(first) or first.requires_grad or first.dim() != 4:
        return None
    if not first.is_floating_point() or not len(first) or first.shape[1] != _CHANNELS:
        return None
    if min(first.shape[2:]) < _MIN_SIDE:
        return None
    if first.is_cuda and torch.cuda.is_current_stream_capturing():
        return None  # a CUDA graph would repeat what is computed here
    return first


def _reads_neighbours(module: nn.Module) -> bool:
    """Return whether a convolution of a model reads images: others may not care for the order."""
    for idx, one in enumerate(module.modules()):
        if idx >= _MAX_MODULES:
            return False
        if isinstance(one, nn.Conv2d) and one.in_channels == _CHANNELS:
            return one.kernel_size not in ((1, 1), one.stride)
    return False

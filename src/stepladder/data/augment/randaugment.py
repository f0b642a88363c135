"""RandAugment: a few random operations on each picture, all with the same magnitude.

Source: Cubuk et al. 2020, "RandAugment: Practical automated data augmentation with a reduced
search space", arXiv:1909.13719. Ranges are those of its reference code, on a scale of 0 to 10.

The colour operations take uint8 (n, 3, h, w), each picture with its own strength, and match
Pillow's ImageOps and ImageEnhance, against which they are tested.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from stepladder.data.augment import warp
from stepladder.data.augment.draws import Purpose, draw_integers

Float64 = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

MAX_ANGLE = np.deg2rad(30.0)
MAX_SHEAR = 0.3
MAX_SHIFT_FRAC = 0.45  # of the picture's side
MAX_FACTOR = 0.9  # enhancement factors are in 1 +- this
MAX_BITS_LOST = 4

Operation = Callable[[Tensor, Float64], Tensor]
"""Maps pictures uint8 (n, 3, h, w) and signed strengths (n,) in [-1, 1] to pictures."""

_GREY = (299, 587, 114)  # thousandths, as in Pillow's conversion to L
_SMOOTH = ((1, 1, 1), (1, 5, 1), (1, 1, 1))  # Pillow's SMOOTH kernel, over 13


def autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel to 0 to 255; a constant channel is unchanged."""
    low = x.amin(dim=(2, 3), keepdim=True).int()
    high = x.amax(dim=(2, 3), keepdim=True).int()
    stretched = (x - low) * 255 // (high - low).clamp_min(1)
    return torch.where(high > low, stretched, x).to(torch.uint8)


def equalize(x: Tensor) -> Tensor:
    """Equalize the histogram of each channel; a constant channel is unchanged."""
    n, c, height, width = x.shape
    pixels = x.reshape(n * c, height * width).long()
    row = torch.arange(n * c, device=x.device).unsqueeze(1)
    histogram = torch.bincount((pixels + 256 * row).flatten(), minlength=256 * n * c)
    histogram = histogram.view(n * c, 256)
    brightest = histogram.gather(1, pixels.amax(dim=1, keepdim=True))
    step = (height * width - brightest) // 255  # (n c, 1)
    before = histogram.cumsum(1) - histogram
    table = ((before + step // 2) // step.clamp_min(1)).clamp_(0, 255)
    table = torch.where(step > 0, table, torch.arange(256, device=x.device))
    return table.gather(1, pixels).view(x.shape).to(torch.uint8)


def posterize(x: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits of each value. Shapes: bits int (n,), in [0, 8]."""
    mask = (256 - torch.pow(2, 8 - bits)).view(-1, 1, 1, 1).to(torch.uint8)
    return x & mask


def solarize(x: Tensor, threshold: Tensor) -> Tensor:
    """Invert values at or above a threshold. Shapes: threshold (n,), in [0, 256]."""
    return torch.where(x.float() >= threshold.view(-1, 1, 1, 1), 255 - x, x)


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Mix with black: 0 is black, 1 the picture, above 1 brighter. Shapes: factor (n,)."""
    return _mix(torch.zeros((), device=x.device), x, factor)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Mix with the mean grey of the picture. Shapes: factor (n,)."""
    grey = _grey(x)
    num_pixels = grey[0].numel()
    total = grey.sum(dim=(1, 2, 3), keepdim=True, dtype=torch.int64)
    mean = (2 * total + num_pixels) // (2 * num_pixels)  # in integers: independent of the batch
    return _mix(mean.float(), x, factor)


def color(x: Tensor, factor: Tensor) -> Tensor:
    """Mix with the grey picture: 0 is grey, 1 the picture. Shapes: factor (n,)."""
    return _mix(_grey(x).float(), x, factor)


def sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Mix with the smoothed picture: 0 is smooth, above 1 sharper. Shapes: factor (n,)."""
    kernel = torch.tensor(_SMOOTH, dtype=torch.float32, device=x.device)
    smooth = x.float()
    if min(x.shape[-2:]) >= 3:  # border pixels lack neighbours and are unchanged
        total = F.conv2d(smooth, kernel.expand(x.shape[1], 1, 3, 3), groups=x.shape[1])
        smooth[:, :, 1:-1, 1:-1] = (total / kernel.sum() + 0.5).floor_()
    return _mix(smooth, x, factor)


def _grey(x: Tensor) -> Tensor:
    weighted = x.int() * torch.tensor(_GREY, dtype=torch.int32, device=x.device).view(1, 3, 1, 1)
    return (weighted.sum(dim=1, keepdim=True, dtype=torch.int32) + 500) // 1000  # (n, 1, h, w)


def _mix(other: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    mixed = other + (x.float() - other) * factor.view(-1, 1, 1, 1)
    return mixed.clamp_(0, 255).to(torch.uint8)


def _factor(strength: Float64, x: Tensor) -> Tensor:
    return torch.from_numpy(1 + MAX_FACTOR * strength).to(x.device, torch.float32)


def _posterize(x: Tensor, strength: Float64) -> Tensor:
    bits = 8 - np.rint(MAX_BITS_LOST * np.abs(strength)).astype(np.int64)
    return posterize(x, torch.from_numpy(bits).to(x.device))


def _solarize(x: Tensor, strength: Float64) -> Tensor:
    threshold = 256 * (1 - np.abs(strength))
    return solarize(x, torch.from_numpy(threshold).to(x.device, torch.float32))


def _rotate(x: Tensor, strength: Float64) -> Tensor:
    return warp.warp(x, warp.rotations(MAX_ANGLE * strength), is_filled=True)


def _shear_x(x: Tensor, strength: Float64) -> Tensor:
    return warp.warp(x, warp.shears(MAX_SHEAR * strength, is_x=True), is_filled=True)


def _shear_y(x: Tensor, strength: Float64) -> Tensor:
    return warp.warp(x, warp.shears(MAX_SHEAR * strength, is_x=False), is_filled=True)


def _translate_x(x: Tensor, strength: Float64) -> Tensor:
    pixels = MAX_SHIFT_FRAC * x.shape[-1] * strength
    return warp.warp(x, warp.translations(pixels, is_x=True), is_filled=True)


def _translate_y(x: Tensor, strength: Float64) -> Tensor:
    pixels = MAX_SHIFT_FRAC * x.shape[-2] * strength
    return warp.warp(x, warp.translations(pixels, is_x=False), is_filled=True)


OPERATIONS: tuple[tuple[str, Operation], ...] = (
    ("identity", lambda x, _: x),
    ("autocontrast", lambda x, _: autocontrast(x)),
    ("equalize", lambda x, _: equalize(x)),
    ("rotate", _rotate),
    ("solarize", _solarize),
    ("color", lambda x, strength: color(x, _factor(strength, x))),
    ("posterize", _posterize),
    ("contrast", lambda x, strength: contrast(x, _factor(strength, x))),
    ("brightness", lambda x, strength: brightness(x, _factor(strength, x))),
    ("sharpness", lambda x, strength: sharpness(x, _factor(strength, x))),
    ("shear_x", _shear_x),
    ("shear_y", _shear_y),
    ("translate_x", _translate_x),
    ("translate_y", _translate_y),
)
"""Indexed by random draws: append, never reorder."""


def randaugment(
    pictures: Tensor, ids: Rows, *, num_ops: int, magnitude: float, seed: int, epoch: int
) -> Tensor:
    """Apply num_ops random operations to each picture, one after another.

    Pictures with the same operation are processed together. The magnitude is in [0, 10]; its sign
    is random.

    Shapes: pictures uint8 (n, 3, h, w), ids (n,).
    """
    where = {"seed": seed, "epoch": epoch, "num": num_ops}
    chosen = draw_integers(ids, below=len(OPERATIONS), purpose=Purpose.RANDAUGMENT_OP, **where)
    signs = 2 * draw_integers(ids, below=2, purpose=Purpose.RANDAUGMENT_SIGN, **where) - 1
    result = pictures.clone()
    for slot in range(num_ops):
        for index in np.unique(chosen[:, slot]):
            members = np.flatnonzero(chosen[:, slot] == index)
            rows = torch.from_numpy(members).to(pictures.device)
            strength = signs[members, slot] * (magnitude / 10)
            result[rows] = OPERATIONS[index][1](result[rows], strength)
    return result

"""RandAugment: a few random operations on each picture, all of one strength.

Source: Cubuk et al. 2020, "RandAugment: Practical automated data augmentation with a reduced
search space", arXiv:1909.13719. Ranges of strength as in its reference code, on a scale of 0 to 10.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepladder.data.augment import colour, warp
from stepladder.data.augment.draws import Purpose, draw_integers

Float64 = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

MAX_ANGLE = np.deg2rad(30.0)
MAX_SHEAR = 0.3
MAX_SHIFT_FRAC = 0.45  # of the picture's side
MAX_FACTOR = 0.9  # enhancement factors lie in 1 +- this
MAX_BITS_LOST = 4

Operation = Callable[[Tensor, Float64], Tensor]
"""Pictures uint8 (n, 3, h, w) and signed strengths (n,) in [-1, 1] to pictures."""


def _factor(strength: Float64, x: Tensor) -> Tensor:
    return torch.from_numpy(1 + MAX_FACTOR * strength).to(x.device, torch.float32)


def _posterize(x: Tensor, strength: Float64) -> Tensor:
    bits = 8 - np.rint(MAX_BITS_LOST * np.abs(strength)).astype(np.int64)
    return colour.posterize(x, torch.from_numpy(bits).to(x.device))


def _solarize(x: Tensor, strength: Float64) -> Tensor:
    threshold = 256 * (1 - np.abs(strength))
    return colour.solarize(x, torch.from_numpy(threshold).to(x.device, torch.float32))


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
    ("autocontrast", lambda x, _: colour.autocontrast(x)),
    ("equalize", lambda x, _: colour.equalize(x)),
    ("rotate", _rotate),
    ("solarize", _solarize),
    ("color", lambda x, strength: colour.color(x, _factor(strength, x))),
    ("posterize", _posterize),
    ("contrast", lambda x, strength: colour.contrast(x, _factor(strength, x))),
    ("brightness", lambda x, strength: colour.brightness(x, _factor(strength, x))),
    ("sharpness", lambda x, strength: colour.sharpness(x, _factor(strength, x))),
    ("shear_x", _shear_x),
    ("shear_y", _shear_y),
    ("translate_x", _translate_x),
    ("translate_y", _translate_y),
)
"""In the order that draws index: append, never reorder."""


def randaugment(
    pictures: Tensor, ids: Rows, *, num_ops: int, magnitude: float, seed: int, epoch: int
) -> Tensor:
    """Apply num_ops drawn operations to each picture, one after another.

    Pictures that drew the same operation go through it together. The magnitude is in [0, 10]; its
    sign is drawn.

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

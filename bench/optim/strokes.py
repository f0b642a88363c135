"""Digits as strokes of a pen, 28 x 28: a stand-in for scans, where no package carries any.

Each digit is a few lines through points; their places, and the slant, size and width of the pen
differ from one drawing to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

SIZE: Final = 28
_FINER: Final = 4
Points = Sequence[tuple[float, float]]


def _arc(  # noqa: PLR0917  (as the table below reads best)
    x: float, y: float, wide: float, high: float, start: float, end: float
) -> Points:
    """Return points of an ellipse, by angles in turns from the top, clockwise."""
    angles = np.linspace(start, end, 13) * 2 * math.pi
    return [(x + wide * math.sin(one), y - high * math.cos(one)) for one in angles]


DIGITS: Final[Sequence[Sequence[Points]]] = (
    (_arc(0.5, 0.5, 0.27, 0.38, 0, 1),),
    (((0.36, 0.26), (0.52, 0.12), (0.52, 0.88)),),
    ((*_arc(0.5, 0.33, 0.24, 0.21, -0.2, 0.36), (0.26, 0.87)), ((0.26, 0.87), (0.77, 0.87))),
    (_arc(0.46, 0.31, 0.24, 0.19, -0.15, 0.5), _arc(0.46, 0.69, 0.27, 0.19, 0, 0.65)),
    (((0.62, 0.88), (0.62, 0.12), (0.22, 0.62), (0.8, 0.62)),),
    (((0.74, 0.13), (0.33, 0.13), (0.31, 0.45)), _arc(0.47, 0.65, 0.26, 0.23, -0.1, 0.65)),
    (((0.66, 0.12), (0.36, 0.42), (0.27, 0.66)), _arc(0.5, 0.67, 0.23, 0.21, 0, 1)),
    (((0.23, 0.14), (0.77, 0.14), (0.43, 0.88)),),
    (_arc(0.5, 0.31, 0.2, 0.18, 0, 1), _arc(0.5, 0.69, 0.25, 0.2, 0, 1)),
    (_arc(0.49, 0.34, 0.23, 0.21, 0, 1), ((0.72, 0.34), (0.68, 0.6), (0.52, 0.88))),
)


def drawn(digit: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a drawing, shape (28, 28), 0 to 255."""
    angle, slant = rng.normal(0, 0.12), rng.normal(0, 0.18)
    wide, high = rng.normal(1, 0.1, 2).clip(0.7, 1.2)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    form = turn @ np.array([[wide, -slant], [0, high]])
    moved = rng.normal(0, 0.03, 2)
    side = SIZE * _FINER
    image = Image.new("L", (side, side))
    pen = ImageDraw.Draw(image)
    width = int(rng.uniform(1.6, 3.2) * _FINER)
    bend = rng.normal(0, 0.02, (2, 4))
    for stroke in DIGITS[digit]:
        points = np.asarray(stroke, float) - 0.5
        waves = np.stack([np.sin(2 * math.pi * points[:, ::-1] * n) for n in (1, 2)], axis=-1)
        points = points + waves[..., 0] * bend[0, :2] + waves[..., 1] * bend[1, :2]
        places = ((points @ form.T + 0.5 + moved) * 0.86 + 0.07) * side
        pen.line([tuple(one) for one in places.tolist()], fill=255, width=width, joint="curve")
        for x, y in places.tolist():
            pen.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), fill=255)
    small = image.resize((SIZE, SIZE), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.uint8)


def digits(num: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return drawings, shape (num, 784), 0 to 1, and their digits, shape (num,)."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, num)
    pictures = np.stack([drawn(int(label), rng) for label in labels])
    return (
        torch.from_numpy(pictures.reshape(num, -1)).float() / 255,
        torch.from_numpy(labels.astype(np.int64)),
    )

"""Affine warps of a batch of pictures, one matrix for each picture."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

FILL = 128.0
"""Grey that fills pixels outside the picture."""

Float64 = npt.NDArray[np.float64]


def warp(pictures: Tensor, matrices: Float64, *, is_filled: bool) -> Tensor:
    """Sample each output pixel at matrix x (its coordinates), bilinearly.

    Coordinates are in pixels from the centre, x to the right and y down. Pixels outside the picture
    are grey if is_filled, else they repeat its border. Coordinates are computed by elementwise
    operations only, so a picture's result does not depend on the rest of its batch.

    Shapes: pictures uint8 (n, c, h, w), matrices (n, 2, 3); the result is like the pictures.
    """
    height, width = pictures.shape[-2:]
    theta = torch.from_numpy(matrices).to(pictures.device, torch.float32).view(-1, 6, 1, 1)
    xs = (torch.arange(width, device=pictures.device) + (0.5 - width / 2)).view(1, 1, width)
    ys = (torch.arange(height, device=pictures.device) + (0.5 - height / 2)).view(1, height, 1)
    x = theta[:, 0] * xs + theta[:, 1] * ys + theta[:, 2]  # (n, h, w)
    y = theta[:, 3] * xs + theta[:, 4] * ys + theta[:, 5]
    grid = torch.stack([x * (2 / width), y * (2 / height)], dim=-1)
    padding = "zeros" if is_filled else "border"
    centred = pictures.to(torch.float32).sub_(FILL)
    found = F.grid_sample(centred, grid, padding_mode=padding, align_corners=False)
    return found.add_(FILL).round_().clamp_(0, 255).to(torch.uint8)


def crop_matrices(uniform: Float64, *, smallest: float, height: int, width: int) -> Float64:
    """Return matrices of random resized crops with random area, aspect and position.

    The fraction of the area is uniform in [smallest, 1], the log of the aspect uniform in
    [log 3/4, log 4/3]; a side longer than the picture is clipped.

    Shapes: uniform (n, 4) in [0, 1); matrices (n, 2, 3).

    Source: Szegedy et al. 2015, "Going Deeper with Convolutions", section 6, arXiv:1409.4842.
    """
    area = smallest + (1 - smallest) * uniform[:, 0]
    aspect = np.exp((2 * uniform[:, 1] - 1) * np.log(4 / 3))
    share_x = np.minimum(1.0, np.sqrt(area * aspect))
    share_y = np.minimum(1.0, np.sqrt(area / aspect))
    matrices = np.zeros((len(uniform), 2, 3))
    matrices[:, 0, 0] = share_x
    matrices[:, 1, 1] = share_y
    matrices[:, 0, 2] = (uniform[:, 2] - 0.5) * (1 - share_x) * width
    matrices[:, 1, 2] = (uniform[:, 3] - 0.5) * (1 - share_y) * height
    return matrices


def rotations(angle: Float64) -> Float64:
    """Return matrices that rotate counter-clockwise by radians. Shapes: (n,) -> (n, 2, 3)."""
    cosine, sine, zero = np.cos(angle), np.sin(angle), np.zeros_like(angle)
    rows = [[cosine, -sine, zero], [sine, cosine, zero]]
    return np.moveaxis(np.array(rows), 2, 0)


def shears(amount: Float64, *, is_x: bool) -> Float64:
    """Return matrices that shear along x or y, by amounts per pixel. Shapes: (n,) -> (n, 2, 3)."""
    matrices = np.tile(np.eye(2, 3), (len(amount), 1, 1))
    matrices[:, 0 if is_x else 1, 1 if is_x else 0] = amount
    return matrices


def translations(pixels: Float64, *, is_x: bool) -> Float64:
    """Return matrices that shift along x or y, in pixels. Shapes: (n,) -> (n, 2, 3)."""
    matrices = np.tile(np.eye(2, 3), (len(pixels), 1, 1))
    matrices[:, 0 if is_x else 1, 2] = pixels
    return matrices

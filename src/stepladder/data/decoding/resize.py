"""Fit pictures to a square: keep the aspect, and pad with white or crop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepladder.config.choices import Fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]
else:
    Pixels = Any

WHITE = 255


def fit_size(height: int, width: int, *, size: int, fit: Fit) -> tuple[int, int]:
    """Return the (height, width) of a picture inside the square.

    Padded pictures are scaled so that the longer side fills the square; small ones are enlarged, so
    that a thumbnail looks like a photograph of the same object.
    """
    if fit is Fit.CROP:
        return size, size
    longer = max(height, width)
    return _round_scaled(height, size, longer), _round_scaled(width, size, longer)


def crop_centre(pixels: Pixels) -> Pixels:
    """Return the largest centred square of a picture (h, w, 3), as a view."""
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return pixels[top : top + side, left : left + side]


def resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize a picture (h, w, 3), bilinear with antialiasing.

    torch's uint8 kernel is several times faster than Pillow's (bench/data/prepare.py), and
    releases the GIL.
    """
    if pixels.shape[:2] == (height, width):
        return np.ascontiguousarray(pixels)
    resized: Pixels = resize_stack(pixels.reshape(1, *pixels.shape), height, width)[0]
    return resized


def resize_stack(stack: Pixels, height: int, width: int) -> Pixels:
    """Resize pictures (n, h, w, 3) of one shape; see `resize`."""
    import torch
    from torch.nn import functional as F

    # torch's fast path needs channels_last strides, also for a single picture, for which numpy's
    # `stack[None]` would set a stride of 0
    nchw = torch.from_numpy(np.ascontiguousarray(stack)).permute(0, 3, 1, 2)
    resized = F.interpolate(
        nchw, size=(height, width), mode="bilinear", antialias=True, align_corners=False
    )
    nhwc: Pixels = resized.permute(0, 2, 3, 1).numpy()
    return np.ascontiguousarray(nhwc)


def pad_white(pixels: Pixels, size: int, *, out: Pixels | None = None) -> Pixels:
    """Centre a picture (h, w, 3) in a white square (size, size, 3).

    Args:
        pixels: the picture.
        size: side of the square.
        out: memory for the square; its content is overwritten. Without it the result may be
            `pixels`.
    """
    height, width = pixels.shape[:2]
    if (height, width) == (size, size) and out is None:
        return pixels
    square = np.empty((size, size, 3), dtype=np.uint8) if out is None else out
    top, left = (size - height) // 2, (size - width) // 2
    bottom, right = top + height, left + width
    square[:top] = square[bottom:] = WHITE
    square[top:bottom, :left] = square[top:bottom, right:] = WHITE
    square[top:bottom, left:right] = pixels
    return square


def turn(pixels: Pixels, orientation: int) -> Pixels:
    """Rotate and mirror a picture (h, w, 3) upright, as a view; orientation is EXIF's, 1 to 8."""
    if orientation >= 5:  # 5 to 8 are rotated by 90 degrees
        pixels = pixels.transpose(1, 0, 2)
    if orientation in {2, 3, 6, 7}:
        pixels = pixels[:, ::-1]
    if orientation in {3, 4, 7, 8}:
        pixels = pixels[::-1]
    return pixels


def _round_scaled(side: int, size: int, longer: int) -> int:
    return max(1, (2 * side * size + longer) // (2 * longer))  # rounds half up, in integers

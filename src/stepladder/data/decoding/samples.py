"""Convert samples of more than 8 bits to 8 bits, and measure their range.

White is the value that becomes 255: the one that the header declares, else the largest value of
the samples' type, or 1 if they are floating-point numbers. `--max-sample-value` overrides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepladder.data.decoding.formats import BadPictureError
from stepladder.data.decoding.resize import Pixels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[Any]
else:
    Samples = Any

WHITE_8, WHITE_16 = 255, 65535
FLOAT_WHITE = 1.0  # Adobe Photoshop TIFF Technical Note 3: 0.0 is black and 1.0 is white


class SampleRange(NamedTuple):
    """Measured samples of a picture of more than 8 bits.

    Attributes:
        is_float: whether they are floating-point numbers.
        white: the value that is stored as 255; larger ones are clipped.
        low, high: smallest and largest value of the colours.
    """

    is_float: bool
    white: float
    low: float
    high: float


def is_all_ones(value: float) -> bool:
    """Return True for 2^k - 1 of 8 bits or more: such a maximum is a bit depth.

    Others may be the largest value of one picture, which TIFF allows in the same tags. Scaling
    each picture by its own maximum would remove the differences in brightness between pictures.
    """
    whole = int(value)
    return whole == value and whole >= WHITE_8 and whole & (whole + 1) == 0


def convert(
    samples: Samples, white: float, *, chosen: float | None = None, is_inverted: bool = False
) -> tuple[Pixels, SampleRange]:
    """Scale samples to 8 bits; return them and the range that was measured.

    Args:
        samples: numbers of any type, any shape.
        white: the value of white, by the header or the type.
        chosen: the value of white that the user named; ignored if it exceeds `white` and the
            samples are integers, so that pictures of fewer bits keep theirs.
        is_inverted: whether 0 is white.

    Raises:
        BadPictureError: if a sample is NaN or infinite.
    """
    is_float = samples.dtype.kind == "f"
    low, high = float(samples.min()), float(samples.max())
    if is_float and not (np.isfinite(low) and np.isfinite(high)):
        raise BadPictureError("has samples that are NaN or infinite")
    if chosen is not None and (is_float or chosen < white):
        white = chosen
    pixels = _to_8_bits(samples, white)
    return (WHITE_8 - pixels if is_inverted else pixels), SampleRange(is_float, white, low, high)


def _to_8_bits(samples: Samples, white: float) -> Pixels:
    if white == WHITE_16 and samples.dtype.kind == "u" and samples.itemsize == 2:
        return (samples >> 8).astype(np.uint8)
    scaled = samples.astype(np.float64) * (WHITE_8 / white)
    return (scaled.clip(0, WHITE_8) + 0.5).astype(np.uint8)


def rescale(pixels: Pixels, chosen: float | None) -> Pixels:
    """Scale samples of 8 bits so that the value of white that the user named becomes 255."""
    if chosen is None or chosen >= WHITE_8:
        return pixels
    table = _to_8_bits(np.arange(WHITE_8 + 1), chosen)
    scaled: Pixels = table[pixels]
    return scaled

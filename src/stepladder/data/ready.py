"""Turn a picture's bytes into what a store keeps of it: all that threads can do side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepladder.config.choices import Encoding, JpegSize
from stepladder.config.options import PrepareConfig
from stepladder.data.buffers import Buffers
from stepladder.data.decode import decode_content, decode_picture
from stepladder.data.formats import NPY_MAGIC, BadPictureError
from stepladder.data.near_duplicates import look
from stepladder.data.plan import Row
from stepladder.data.quarantine import Bad
from stepladder.data.resize import WHITE, Pixels, pad_white
from stepladder.data.traits import Trait, find_traits
from stepladder.data.writer import PicturePage, picture_page

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Sums = NDArray[np.int64]
    Looks = NDArray[np.uint8]
else:
    Sums = Looks = Any


_SUMMED_ROWS = 64


@dataclass(frozen=True, eq=False)
class Seen:
    """What is remembered of a picture when it has been written."""

    row: Row
    look: Looks
    channel_sum: Sums
    channel_sq_sum: Sums
    traits: frozenset[Trait]


@dataclass(frozen=True, eq=False)
class ReadyPicture:
    """A picture as it goes into the file."""

    page: PicturePage
    seen: Seen


def ready_picture(
    row: Row, data: bytes, *, config: PrepareConfig, squares: Buffers
) -> ReadyPicture | Bad:
    """Turn a picture's bytes into what a store keeps of it, wherever the bytes come from.

    Args:
        row: which picture.
        data: its bytes.
        config: how pictures are kept.
        squares: memory of (size, size, 3) for pixels, back when the page is no longer held.
    """
    is_kept = config.encoding is Encoding.JPEG and config.jpeg_size is JpegSize.ORIGINAL
    if is_kept and data.startswith(NPY_MAGIC):
        return Bad(row.path, "is NPY; its bytes cannot be kept as a JPEG (--jpeg-size resized)")
    try:
        content = decode_content(
            data, size=config.size, fit=config.fit, max_pixels=config.max_pixels
        )
    except BadPictureError as error:
        return Bad(row.path, error.what)
    rows = _some_rows(content, size=config.size)
    if config.encoding is Encoding.PIXELS:
        square: Pixels = squares.lend(config.size).numpy()
        picture: bytes | Pixels = pad_white(content, config.size, out=square)
        sums = _padded_sums(rows, config.size)
    elif config.jpeg_size is JpegSize.ORIGINAL:
        picture, sums = data, _padded_sums(rows, config.size)
    else:
        picture = _encode_jpeg(pad_white(content, config.size), config.jpeg_quality)
        sums = channel_sums(decode_picture(picture, size=config.size, fit=config.fit))
    page = picture_page(picture, encoding=config.encoding, compression=config.compression)
    thumbnail = look(rows if len(rows) else content)  # none: a mere strip
    return ReadyPicture(page, Seen(row, thumbnail, *sums, find_traits(data, row.path)))


def channel_sums(square: Pixels) -> tuple[Sums, Sums]:
    """Sum values and squares over some rows of a square (size, size, 3): (3,) each, by channel.

    The rows are those that `num_summed` counts: every fourth at 299. Neighbouring rows say nearly
    the same, and all of them would cost a tenth of making a store.
    """
    return _sum_rows(_some_rows(square, size=len(square)))


def num_summed(size: int) -> int:
    """Count the pixels of a square that `channel_sums` sums over: of 64 to 127 of its rows."""
    return len(range(0, size, _step(size))) * size


def _step(size: int) -> int:
    return max(1, size // _SUMMED_ROWS)


def _some_rows(content: Pixels, *, size: int) -> Pixels:
    """Give those rows of a picture that are summed when it stands in the middle of its square."""
    top, step = (size - len(content)) // 2, _step(size)
    return np.ascontiguousarray(content[-top % step :: step])


def _sum_rows(rows: Pixels) -> tuple[Sums, Sums]:
    """Sum (n, w, 3), exactly: in float32, whole numbers below 2 ** 24 are, and 127 squares."""
    num_rows, width, _ = rows.shape
    flat = rows.reshape(num_rows, 3 * width).astype(np.float32)
    sums = flat.sum(axis=0), np.einsum("ij,ij->j", flat, flat)
    values, squares = (one.reshape(-1, 3).astype(np.int64).sum(axis=0) for one in sums)
    return values, squares


def _padded_sums(rows: Pixels, size: int) -> tuple[Sums, Sums]:
    """Sum over some rows of a picture in its white square, as `channel_sums` would."""
    sums, squares = _sum_rows(rows)
    num_white = num_summed(size) - rows.shape[0] * rows.shape[1]
    return sums + num_white * WHITE, squares + num_white * WHITE * WHITE


def _encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    import simplejpeg

    encoded: bytes = simplejpeg.encode_jpeg(
        pixels, quality=quality, colorspace="RGB", colorsubsampling="444"
    )
    return encoded

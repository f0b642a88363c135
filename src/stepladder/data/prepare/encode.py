"""Convert a picture's bytes to what a store keeps of it; runs in parallel threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepladder.config.choices import Encoding, JpegSize
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.decode import decode_picture, examine_content
from stepladder.data.decoding.formats import NPY_MAGIC, BadPictureError, name_format
from stepladder.data.decoding.resize import WHITE, Pixels, pad_white
from stepladder.data.decoding.traits import SHAPES, Trait, find_traits
from stepladder.data.prepare.near_duplicates import SAMPLED_SIDE, looks
from stepladder.data.prepare.plan import Row
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.prepare.ranges import Ranges, is_lost, ranges_of
from stepladder.data.prepare.writer import PicturePage, picture_page
from stepladder.data.reading.memory import Buffers
from stepladder.data.sources.pictures import ReadRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Sums = NDArray[np.int64]
    Looks = NDArray[np.uint8]
else:
    Sums = Looks = Any


@dataclass(frozen=True, eq=False)
class Seen:
    """What is kept in memory of a picture after it was written.

    Attributes:
        sides: height and width of the file in pixels.
    """

    row: Row
    look: Looks
    channel_sum: Sums
    channel_sq_sum: Sums
    traits: frozenset[Trait]
    ranges: Ranges
    sides: tuple[int, int]


@dataclass(frozen=True, eq=False)
class ReadyPicture:
    """A picture that is ready to be written to the file."""

    page: PicturePage
    seen: Seen


def ready_pictures(
    rows: Sequence[Row], read: ReadRow, *, config: PrepareConfig, squares: Buffers
) -> list[ReadyPicture | Bad]:
    """Encode pictures for a store; return a Bad for each that cannot be used.

    Args:
        rows: the pictures; a chunk at a time, to save numpy calls.
        read: returns a row's bytes.
        config: how pictures are stored.
        squares: buffers of (size, size, 3) for pixels, returned when the page is released.
    """
    found: list[_Picture | Bad] = []
    samples = Samples(len(rows), config.size)
    for row in rows:
        try:
            found.append(_prepare(row, read(row), config=config, squares=squares, samples=samples))
        except BadPictureError as error:
            found.append(Bad(row.path, error.what))
    pictures = [one for one in found if isinstance(one, _Picture)]
    thumbnails = iter(looks([one.seen_part for one in pictures]))
    sums = zip(*samples.sums(len(pictures)), strict=True)
    return [
        one
        if isinstance(one, Bad)
        else ReadyPicture(
            one.page,
            Seen(one.row, next(thumbnails), *next(sums), one.traits, one.ranges, one.sides),
        )
        for one in found
    ]


@dataclass(frozen=True, eq=False)
class _Picture:
    """A picture whose page is ready.

    Attributes:
        seen_part: pixels without padding, from which its thumbnail is computed.
        sides: height and width of the file in pixels.
    """

    row: Row
    page: PicturePage
    seen_part: Pixels
    traits: frozenset[Trait]
    ranges: Ranges
    sides: tuple[int, int]


def _prepare(
    row: Row, data: bytes, *, config: PrepareConfig, squares: Buffers, samples: Samples
) -> _Picture:
    is_kept = config.encoding is Encoding.JPEG and config.jpeg_size is JpegSize.ORIGINAL
    if is_kept and data.startswith(NPY_MAGIC):
        raise BadPictureError("is an NPY file, not a JPEG file (use --jpeg-size resized)")
    size = config.size
    examined = examine_content(
        data,
        size=size,
        fit=config.fit,
        max_pixels=config.max_pixels,
        white=config.max_sample_value,
    )
    content = examined.pixels
    stored = content
    if config.encoding is Encoding.PIXELS:
        square: Pixels = squares.lend(size).numpy()
        picture: bytes | Pixels = pad_white(content, size, out=square)
    elif config.jpeg_size is JpegSize.ORIGINAL:
        picture = data
    else:
        picture = _encode_jpeg(pad_white(content, size), config.jpeg_quality)
        stored = decode_picture(picture, size=size, fit=config.fit)
    page = picture_page(picture, encoding=config.encoding, compression=config.compression)
    traits = find_traits(data, row.path) | examined.traits
    sample = samples.take(stored)  # last, so that a picture that fails takes no slot
    if stored is not content:
        sample = Samples(1, size).take(content)
    seen_part = sample if sample.size else content  # empty if the picture is a narrow strip
    if not traits & SHAPES and _is_one_colour(seen_part) and _is_one_colour(content):
        is_ours = is_lost(examined.decoded, examined.samples)
        traits |= {Trait.LOST if is_ours else Trait.ONE_COLOUR}
    form = name_format(data)
    ranges = ranges_of(seen_part, examined.decoded, examined.samples, traits, form)
    return _Picture(row, page, seen_part, traits, ranges, (examined.height, examined.width))


def _is_one_colour(pixels: Pixels) -> bool:
    first = pixels[0, 0]
    return bool((pixels[0] == first).all() and (pixels == first).all())


class Samples:
    """Evenly spaced pixels of pictures, each centred in its white square.

    At size 299 they are every fourth pixel of every fourth row. Neighbouring pixels are nearly
    equal, and using all of them would take a tenth of the time of prepare.

    Args:
        capacity: number of pictures.
        size: side of the square in pixels.
    """

    def __init__(self, capacity: int, size: int) -> None:
        self._size, self._step = size, max(1, size // SAMPLED_SIDE)
        side = -(-size // self._step)
        self._grids = np.full((capacity, side, side, 3), WHITE, dtype=np.uint8)
        self._num_taken = 0

    def take(self, content: Pixels) -> Pixels:
        """Add the samples of a picture (h, w, 3) and return them, (n, m, 3), without padding."""
        whole_pixels = content.view("V3")[..., 0]  # three bytes at once: twice as fast
        source, target = [], []
        for side in whole_pixels.shape:
            before = (self._size - side) // 2
            start = -before % self._step
            first = (before + start) // self._step
            source.append(slice(start, None, self._step))
            target.append(slice(first, first + len(range(start, side, self._step))))
        grid = self._grids[self._num_taken]
        self._num_taken += 1
        grid.view("V3")[..., 0][tuple(target)] = whole_pixels[tuple(source)]
        taken: Pixels = grid[tuple(target)]
        return taken

    def sums(self, num: int) -> tuple[Sums, Sums]:
        """Return the sums of values and squares of the first pictures by channel, each (num, 3).

        The sums are exact: float32 holds integers below 2 ** 24, such as a sum of 127 squares.
        """
        side = self._grids.shape[1]
        flat = self._grids[:num].reshape(num, side, 3 * side).astype(np.float32)
        both = flat.sum(axis=1), np.einsum("kij,kij->kj", flat, flat)
        values, squares = (one.reshape(num, side, 3).astype(np.int64).sum(axis=1) for one in both)
        return values, squares


def channel_sums(square: Pixels) -> tuple[Sums, Sums]:
    """Return the sums of values and squares of a square's sampled pixels: (3,) each."""
    samples = Samples(1, len(square))
    samples.take(square)
    values, squares = samples.sums(1)
    return values[0], squares[0]


def num_summed(size: int) -> int:
    """Count the pixels of a square that `channel_sums` samples: 64 to 127 rows of as many."""
    return len(range(0, size, max(1, size // SAMPLED_SIDE))) ** 2


def _encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    import simplejpeg

    encoded: bytes = simplejpeg.encode_jpeg(
        pixels, quality=quality, colorspace="RGB", colorsubsampling="444"
    )
    return encoded

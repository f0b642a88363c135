"""Decode pictures with Pillow: PNG, CMYK JPEG, and the formats that are less common.

Pillow's class of the one format is used instead of `Image.open`, which would try all of them.
"""

from __future__ import annotations

import io
import logging
import re
import struct
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepladder.data.decoding.formats import (
    BadPictureError,
    checked_size,
    exif_orientation,
    pixel_chunks,
    pixel_segments,
    png_significant_bits,
    webp_size,
)
from stepladder.data.decoding.resize import Pixels
from stepladder.data.decoding.samples import (
    FLOAT_WHITE,
    WHITE_16,
    SampleRange,
    Samples,
    convert,
    is_all_ones,
    rescale,
)
from stepladder.data.decoding.traits import Trait

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from PIL.ImageFile import ImageFile
    from PIL.TiffImagePlugin import TiffImageFile
else:
    Picture = ImageFile = TiffImageFile = Any

_CLASSES = {
    "GIF": ("PIL.GifImagePlugin", "GifImageFile"),
    "WebP": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "BMP": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "TIFF": ("PIL.TiffImagePlugin", "TiffImageFile"),
    "AVIF": ("PIL.AvifImagePlugin", "AvifImageFile"),
    "HEIC": ("pillow_heif", "HeifImageFile"),
    "PPM": ("PIL.PpmImagePlugin", "PpmImageFile"),
}
KINDS = frozenset(_CLASSES)
"""Formats that `decode` decodes."""

BANDS = re.compile(r"is a TIFF of (\d+) bands")
"""Reason of pictures of satellites and microscopes, with more bands than red, green and blue."""

_MAX_FEW_COLOURS = 16
_MIN_BANDS = 3
_OPAQUE = 255
_PHOTOMETRIC, _BITS, _FORMAT, _NUM_BANDS = 262, 258, 339, 277  # tags of TIFF
_MAX_SAMPLE_TAGS = (281, 341)  # MaxSampleValue, SMaxSampleValue
_WHITE_IS_ZERO, _SIGNED, _FLOAT = 0, 2, 3
_OTHER_BYTE = {
    ";16B": ";16L",
    ";16L": ";16B",
    ";16N": ";16B" if sys.byteorder == "little" else ";16L",
}
"""Of a 16-bit colour sample, Pillow's raw modes take one byte; these take the other one."""
_MODE_TRAITS = {
    "1": Trait.GREY,
    "L": Trait.GREY,
    "P": Trait.PALETTE,
    "CMYK": Trait.CMYK,
}


class Opened(NamedTuple):
    """A decoded picture.

    Attributes:
        pixels: uint8 RGB, (h, w, 3), not yet rotated.
        samples: range of its samples, if they have more than 8 bits.
        traits: those that decoding shows.
    """

    pixels: Pixels
    samples: SampleRange | None = None
    traits: frozenset[Trait] = frozenset()


def picture_size(data: bytes, kind: str) -> tuple[int, int]:
    """Read (height, width) of a picture of one of `KINDS`, without decoding it.

    Raises:
        BadPictureError: if the header is damaged, or the decoder is not installed.
    """
    if kind == "WebP":
        return webp_size(data)
    with _open(data, kind) as picture:
        return checked_size(picture.height, picture.width)


def decode(data: bytes, kind: str, *, chosen: float | None) -> tuple[Opened, int]:
    """Decode the first frame or page of a picture of one of `KINDS`.

    Args:
        data: the file; its size was checked.
        kind: its format.
        chosen: the sample value that becomes 255, if the user named one.

    Returns:
        The picture, and its EXIF orientation, 1 to 8.
    """
    with _open(data, kind) as picture:
        if kind == "TIFF":
            opened, orientation = _tiff(data, picture, chosen), 1  # Pillow rotates it itself
        else:
            picture.load()
            orientation = _orientation(picture)
            is_deep = picture.mode == "I"  # a PPM, which Pillow scales to 16 bits
            opened = (
                _deep(np.asarray(picture), WHITE_16, chosen)
                if is_deep
                else _plain(picture, chosen, by_mode=True)
            )
        if _has_several(picture):
            opened = opened._replace(traits=opened.traits | {Trait.SEVERAL})
    return opened, orientation


def decode_jpeg(data: bytes) -> Pixels:
    """Decode a JPEG of any colour space."""
    from PIL.JpegImagePlugin import JpegImageFile

    # it reverses Adobe's inversion of CMYK
    with JpegImageFile(io.BytesIO(pixel_segments(data))) as picture:
        return np.array(picture.convert("RGB"))


def decode_png(data: bytes, *, chosen: float | None) -> Opened:
    """Decode a PNG, whose checksums were checked."""
    from PIL.PngImagePlugin import PngImageFile

    def open_file() -> PngImageFile:
        return PngImageFile(io.BytesIO(chunks))

    chunks = pixel_chunks(data)
    depth, colour = data[24], data[25]
    with open_file() as picture:
        if depth != 16:
            picture.load()
            return _plain(picture, chosen)
        if colour == 0:
            picture.load()
            samples = np.asarray(picture)
        elif colour == 4:  # Pillow has no mode for it; its four bytes are read as such
            picture.tile = [tile._replace(args="RGBA") for tile in picture.tile]
            picture.load()
            samples = np.array(picture).view(">u2")
        else:
            with open_file() as again:
                samples = _both_bytes(picture, again)
    return _deep(samples, _white_of_png(samples, png_significant_bits(data)), chosen)


def _open(data: bytes, kind: str) -> Any:
    """Open a file with the class of its format; only the header is read.

    Raises:
        BadPictureError: if the decoder is not installed, or it is a TIFF with other bands.
    """
    module, name = _CLASSES[kind]
    try:
        opener = getattr(import_module(module), name)
    except ImportError:
        raise BadPictureError(
            f"is {kind}, which needs an optional dependency: pip install 'stepladder[heif]'"
        ) from None
    if kind != "TIFF":
        return opener(io.BytesIO(data))
    # warnings about damaged tags, which do not matter if the pixels decode
    warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")
    log = logging.getLogger("PIL.TiffImagePlugin")
    if not log.handlers:  # its errors would be printed for each picture, and are raised as well
        log.addHandler(logging.NullHandler())
    try:
        return opener(io.BytesIO(data))
    except SyntaxError:
        num_bands = _num_bands(data)
        if num_bands < _MIN_BANDS:
            raise
        raise BadPictureError(f"is a TIFF of {num_bands} bands") from None


def _num_bands(data: bytes) -> int:
    """Return the number of bands of a TIFF; 0 if its directory is damaged."""
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    file = io.BytesIO(data)
    is_big = data[2:4] in {b"\x2b\x00", b"\x00\x2b"}
    try:
        tags = ImageFileDirectory_v2(file.read(16 if is_big else 8))
        file.seek(tags.next)
        tags.load(file)
        return int(tags.get(_NUM_BANDS, 1))
    except (SyntaxError, ValueError, TypeError, KeyError, EOFError, OSError, struct.error):
        return 0


def _has_several(picture: ImageFile) -> bool:
    try:
        return bool(getattr(picture, "is_animated", False))
    except (ValueError, OSError, SyntaxError, EOFError):  # only the next frame is damaged
        return True


def _orientation(picture: ImageFile) -> int:
    exif = picture.info.get("exif") or b""
    return exif_orientation(exif.removeprefix(b"Exif\x00\x00"))


def _tiff(data: bytes, picture: TiffImageFile, chosen: float | None) -> Opened:
    tags = picture.tag_v2
    bits = max(tags.get(_BITS, (1,)))
    if bits <= 8:
        picture.load()
        return _plain(picture, chosen, by_mode=True)
    kind = max(tags.get(_FORMAT, (1,)))
    maxima = [float(np.max(tags[tag])) for tag in _MAX_SAMPLE_TAGS if tag in tags]
    is_inverted = tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    if picture.mode in {"RGB", "RGBA", "CMYK"}:
        with _open(data, "TIFF") as again:
            samples = _both_bytes(picture, again)
    else:
        picture.load()
        samples = np.asarray(picture)
        if bits == 32 and kind not in {_SIGNED, _FLOAT}:
            samples = samples.view(np.uint32)  # Pillow has no mode for it
    full = FLOAT_WHITE if kind == _FLOAT else 2.0 ** (bits - (kind == _SIGNED)) - 1
    declared = [value for value in maxima if is_all_ones(value) and samples.max() <= value]
    white = min([*declared, full] if kind != _FLOAT else declared or [full])
    if picture.mode == "CMYK":
        from PIL import Image

        inks, found = convert(samples, white, chosen=chosen)
        page = Image.frombytes("CMYK", picture.size, inks.tobytes())
        return Opened(np.array(page.convert("RGB")), found, frozenset({Trait.DEEP, Trait.CMYK}))
    return _deep(samples, white, chosen, is_inverted=is_inverted)


def _both_bytes(high: ImageFile, low: ImageFile) -> Samples:
    """Return the 16-bit samples of a picture of several channels, from two decodes of its file.

    Args:
        high: the file, opened. Pillow decodes the high byte of each sample.
        low: the same file, opened again.
    """
    low.tile = [tile._replace(args=_other_byte(tile.args)) for tile in low.tile]
    high.load()
    low.load()
    samples: Samples = np.asarray(high).astype(np.uint16) << 8
    samples |= np.asarray(low)
    return samples


def _other_byte(args: Any) -> Any:
    if isinstance(args, tuple):
        return (_other_byte(args[0]), *args[1:])
    return args[:-4] + _OTHER_BYTE[args[-4:]]


def _white_of_png(samples: Samples, bits: int | None) -> float:
    """Return the value of white of 16-bit samples, of which `bits` are significant.

    By the standard, samples are scaled to 16 bits even if fewer are significant. Some writers
    leave them as they are: then all are below 2^bits, and low bits are in use that scaled samples
    this small do not have.
    """
    if bits is None or bits >= 16:
        return WHITE_16
    colours = _colours(samples)
    is_unscaled = colours.max() < 1 << bits and bool((colours & ((1 << 16 - bits) - 1)).any())
    return (1 << bits) - 1 if is_unscaled else WHITE_16


def _colours(samples: Samples) -> Samples:
    """Return samples (h, w) or (h, w, c) without the transparency channel."""
    has_alpha = samples.ndim == 3 and samples.shape[2] % 2 == 0
    return samples[..., :-1] if has_alpha else samples


def _deep(
    samples: Samples, white: float, chosen: float | None, *, is_inverted: bool = False
) -> Opened:
    """Convert samples of more than 8 bits: grey or RGB, with or without transparency."""
    from PIL import Image

    colours = _colours(samples)
    pixels, found = convert(colours, white, chosen=chosen, is_inverted=is_inverted)
    if colours is not samples:
        alpha = samples[..., -1:]
        opaque = found.white if alpha.max() <= found.white else WHITE_16
        pixels = np.concatenate([pixels, convert(alpha, opaque)[0]], axis=2)
    grey = {Trait.GREY} if samples.ndim == 2 or samples.shape[2] < 3 else set()
    picture, seen = _to_rgb(Image.fromarray(pixels))
    traits = {Trait.FLOAT if found.is_float else Trait.DEEP} | grey | seen
    return Opened(np.array(picture), found, frozenset(traits))


def _plain(picture: ImageFile, chosen: float | None, *, by_mode: bool = False) -> Opened:
    """Convert a decoded picture of 8 bits or fewer.

    Args:
        by_mode: whether to add the traits that Pillow's mode shows.
    """
    traits: set[Trait] = set()
    if picture.mode == "P" and sum(map(bool, picture.histogram())) <= _MAX_FEW_COLOURS:
        traits.add(Trait.FEW_COLOURS)
    if by_mode and picture.mode in _MODE_TRAITS:
        traits.add(_MODE_TRAITS[picture.mode])
    opaque, seen = _to_rgb(picture)
    return Opened(rescale(np.array(opaque), chosen), None, frozenset(traits | seen))


def _to_rgb(picture: Picture) -> tuple[Picture, set[Trait]]:
    """Put a picture on white, and return a trait if some of it is transparent."""
    from PIL import Image

    if picture.mode in {"La", "RGBa"}:  # multiplied with its transparency
        picture = picture.convert(picture.mode.upper())
    if picture.mode in {"LA", "PA", "RGBA"} or "transparency" in picture.info:
        front = picture.convert("RGBA")
        white = Image.new("RGBA", front.size, "white")
        is_opaque = front.getchannel("A").getextrema()[0] == _OPAQUE
        seen = set() if is_opaque else {Trait.TRANSPARENT}
        return Image.alpha_composite(white, front).convert("RGB"), seen
    return picture.convert("RGB"), set()

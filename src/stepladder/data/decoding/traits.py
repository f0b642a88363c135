"""Unusual traits of usable pictures, read from their headers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum

from stepladder.data.decoding.formats import (
    SUFFIXES,
    jpeg_segments,
    name_format,
    png_chunks,
    read_orientation,
)


class Trait(StrEnum):
    """A way in which a picture is not plain upright RGB with the right extension."""

    MISNAMED = "name of another format"
    GREY = "grey"
    CMYK = "CMYK"
    YCCK = "YCCK"
    INVERTED = "CMYK inverted by Adobe's convention"
    PALETTE = "palette"
    FEW_COLOURS = "palette of at most 16 colours"
    DEEP = "16 bits a channel"
    FLOAT = "floating-point samples"
    ALPHA = "transparency channel"
    TRANSPARENT = "transparent parts, put on white"
    PROGRESSIVE = "progressive"
    PROFILE = "colour profile, not applied"
    TURNED = "turned by EXIF"
    BAD_EXIF = "damaged EXIF, ignored"
    SEVERAL = "several frames or pages, only the first is read"
    TINY = "a side of fewer than 8 pixels"
    STRIP = "longer than 20:1"
    ONE_COLOUR = "a single colour"
    LOST = "all black or all white by the value of white"
    EXTRA_BYTES = "surplus bytes before the end mark"
    GIF = "GIF"
    WEBP = "WebP"
    BMP = "BMP"
    TIFF = "TIFF"
    AVIF = "AVIF"
    HEIC = "HEIC"
    PPM = "PPM"


FORMATS = (
    Trait.GIF,
    Trait.WEBP,
    Trait.BMP,
    Trait.TIFF,
    Trait.AVIF,
    Trait.HEIC,
    Trait.PPM,
)
"""The formats other than JPEG and PNG."""
SHAPES = frozenset({Trait.TINY, Trait.STRIP})
"""Traits of the shape of a picture."""
NAMED = (Trait.TINY, Trait.STRIP, Trait.ONE_COLOUR, Trait.LOST, Trait.EXTRA_BYTES)
"""Traits of single pictures that are probably not what they should be: they are named."""
_MIN_SIDE = 8
_MAX_ASPECT = 20
_FORMAT_OF_SUFFIX = {suffix: kind for kind, some in SUFFIXES.items() for suffix in some}
_PROGRESSIVE_SOF = {0xC2, 0xC6, 0xCA, 0xCE}
_SOF = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PNG_COLOURS = {
    0: (Trait.GREY,),
    3: (Trait.PALETTE,),
    4: (Trait.GREY, Trait.ALPHA),
    6: (Trait.ALPHA,),
}


def find_traits(data: bytes, path: str) -> frozenset[Trait]:
    """Return the traits of a picture that was decoded without an error, by its header and name.

    Args:
        data: the file; raw pixels (NPY) have no traits.
        path: its path; a path without the extension of a picture is never misnamed.
    """
    kind = name_format(data)
    if kind not in SUFFIXES:
        return frozenset()
    if kind == "JPEG":
        traits = set(_jpeg_traits(data))
    else:
        traits = set(_png_traits(data)) if kind == "PNG" else {Trait(kind)}
    suffix = os.path.splitext(path)[1].lower()  # noqa: PTH122 (called a million times)
    if _FORMAT_OF_SUFFIX.get(suffix, kind) != kind:
        traits.add(Trait.MISNAMED)
    return frozenset(traits)


def shape_trait(height: int, width: int) -> frozenset[Trait]:
    """Return the trait of a picture that hardly shows anything: icons of a pixel, and lines."""
    short, long = sorted((height, width))
    if short < _MIN_SIDE:
        return frozenset({Trait.TINY})
    return frozenset({Trait.STRIP}) if long > _MAX_ASPECT * short else frozenset()


def _jpeg_traits(data: bytes) -> Iterator[Trait]:
    num_channels, is_adobe, is_ycck = 3, False, False
    for marker, start, end in jpeg_segments(data):
        if marker in _SOF and end - start >= 6:
            num_channels = data[start + 5]
            if marker in _PROGRESSIVE_SOF:
                yield Trait.PROGRESSIVE
        elif marker == 0xE1 and data.startswith(b"Exif\x00\x00", start):
            yield from _exif_traits(data[start + 6 : end])
        elif marker == 0xE2 and data.startswith(b"ICC_PROFILE\x00", start):
            yield Trait.PROFILE
        elif marker == 0xEE and data.startswith(b"Adobe", start) and end - start >= 12:
            is_adobe, is_ycck = True, data[start + 11] == 2
    if num_channels == 1:
        yield Trait.GREY
    elif num_channels == 4:
        yield Trait.YCCK if is_ycck else Trait.CMYK
        if is_adobe:
            yield Trait.INVERTED


def _png_traits(data: bytes) -> Iterator[Trait]:
    yield from _PNG_COLOURS.get(data[25], ())
    for kind, start, end in png_chunks(data):
        if kind == b"iCCP":
            yield Trait.PROFILE
        elif kind == b"eXIf":
            yield from _exif_traits(data[start:end])
        elif kind == b"acTL":
            yield Trait.SEVERAL


def _exif_traits(tiff: bytes) -> Iterator[Trait]:
    orientation = read_orientation(tiff)
    if orientation is None:
        yield Trait.BAD_EXIF
    elif orientation != 1:
        yield Trait.TURNED

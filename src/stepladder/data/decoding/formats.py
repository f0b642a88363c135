"""Read format, size and orientation from file headers, without decoding."""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Final

from zlib_ng.zlib_ng import crc32

from stepladder.errors import DataError

JPEG_MAGIC = b"\xff\xd8\xff"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
NPY_MAGIC = b"\x93NUMPY"

SUFFIXES: dict[str, tuple[str, ...]] = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "GIF": (".gif",),
    "WebP": (".webp",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "AVIF": (".avif",),
    "HEIC": (".heic", ".heif", ".hif"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
"""The formats that are read from files, and their usual extensions. NPY is read in containers."""

_SUPPORTED = frozenset({*SUFFIXES, "NPY"})
PICTURE_SUFFIXES = frozenset(suffix for some in SUFFIXES.values() for suffix in some)

LFS_POINTER = "a Git LFS pointer"
ANNEX_POINTER = "a git-annex pointer"
WEB_PAGE = "a web page (HTML)"
ERROR_MESSAGE = "an error message of a server"
"""What is often saved in place of a picture, as in the reasons."""
_SVG = "an SVG drawing"
_XML = "XML"
MARKUP = frozenset({WEB_PAGE, ERROR_MESSAGE, _SVG, _XML})
"""Formats of text that may have an SVG drawing in it."""

_MAGICS: tuple[tuple[int, bytes, str], ...] = (
    (0, JPEG_MAGIC, "JPEG"),
    (0, PNG_MAGIC, "PNG"),
    (0, NPY_MAGIC, "NPY"),
    (0, b"GIF87a", "GIF"),
    (0, b"GIF89a", "GIF"),
    (8, b"WEBP", "WebP"),
    (0, b"II*\x00", "TIFF"),
    (0, b"MM\x00*", "TIFF"),
    (0, b"II+\x00", "TIFF"),  # BigTIFF
    (0, b"MM\x00+", "TIFF"),
    (0, b"\x00\x00\x00\x0cjP  ", "JPEG 2000"),
    (0, b"\xffO\xffQ", "JPEG 2000"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\x00\x00\x00\x0cJXL ", "JPEG XL"),
    (0, b"8BPS", "Photoshop"),
    (0, b"%PDF", "PDF"),
    (0, b"PK\x03\x04", "ZIP"),
    (0, b"version https://git-lfs", LFS_POINTER),
    (0, b"/annex/objects/", ANNEX_POINTER),
    (0, b"../../.git/annex/objects/", ANNEX_POINTER),  # a link, on a disk that has no links
    (0, b"\x00\x05\x16\x07", "an AppleDouble file of macOS"),
    *((0, bytes((0x80, protocol)), "a Python pickle") for protocol in range(2, 6)),
)
_PPM_START = re.compile(rb"P[1-6][ \t\r\n#]")
_BMP_HEADER_BYTES = frozenset({12, 16, 40, 52, 56, 64, 108, 124})
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs"})
_ISO_IMAGE_BRANDS = frozenset({b"mif1", b"msf1", b"mif2", b"miaf"})
_MAX_BRANDS = 32
_HTML_STARTS = (b"<!doctype html", b"<html", b"<head", b"<body")
_XML_STARTS = (b"<?xml", b"<svg", b"<error")
_ERRORS = re.compile(
    rb"(?:[345]\d\d:? |not found|forbidden|access denied|{\s*\"(?:error|message)\")"
)
_SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the rest are tables
_MARKERS_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # no length follows
_EXIF_ORIENTATION = 0x0112
_MAX_NPY_HEADER_BYTES = 1024
_PARSING: Final = Lock()
"""Held while a header is parsed, as several threads may break it (python/cpython#106905)."""


class BadPictureError(DataError):
    """One picture cannot be used; `what` is the reason in quarantine.csv."""


def name_format(data: bytes) -> str:
    """Return the format by a file's first bytes: "JPEG", "PNG", ..., or "an unknown format"."""
    for offset, magic, name in _MAGICS:
        if data.startswith(magic, offset):
            return name
    if data[4:8] == b"ftyp":
        return _iso_format(data)
    if data.startswith(b"BM") and int.from_bytes(data[14:18], "little") in _BMP_HEADER_BYTES:
        return "BMP"
    if _PPM_START.match(data):
        return "PPM"
    return _text_format(data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower())


def why_unsupported(data: bytes) -> str | None:
    """Return why a file is no picture that can be decoded, by its first bytes; None: it may be."""
    kind = name_format(data)
    return None if kind in _SUPPORTED else f"is {kind}, not a supported picture format"


def _text_format(head: bytes) -> str:
    """Return the format of a file of text by its first letters in lower case."""
    if head.startswith(_HTML_STARTS) or (head.startswith((b"<!--", b"<?xml")) and b"<html" in head):
        return WEB_PAGE
    if head.startswith(_XML_STARTS):
        return _SVG if b"<svg" in head else ERROR_MESSAGE if b"<error" in head else _XML
    if _ERRORS.match(head):
        return ERROR_MESSAGE
    return "an unknown format"


def _iso_format(data: bytes) -> str:
    """Return the format of an ISO media file by its brands, the preferred one first."""
    end = min(int.from_bytes(data[:4]), 16 + 4 * _MAX_BRANDS, len(data))
    brands = [data[8:12], *(data[at : at + 4] for at in range(16, end - 3, 4))]
    for brand in brands:
        if brand in _AVIF_BRANDS:
            return "AVIF"
        if brand in _HEIC_BRANDS:
            return "HEIC"
    return "HEIC" if brands[0] in _ISO_IMAGE_BRANDS else "a video"


def read_size(data: bytes, kind: str) -> tuple[int, int]:
    """Read (height, width) in pixels from the header, before EXIF rotation.

    Args:
        data: the file.
        kind: JPEG, PNG or NPY.

    Raises:
        BadPictureError: if the header is incomplete.
    """
    if kind == "JPEG":
        return _jpeg_size(data)
    if kind == "NPY":
        header = read_npy_header(data)
        return header.height, header.width
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise BadPictureError("is truncated: its header is incomplete")
    width, height = struct.unpack_from(">II", data, 16)
    return checked_size(height, width)


def webp_size(data: bytes) -> tuple[int, int]:
    """Read (height, width) from the header of a WebP; libwebp would allocate the pixels first.

    Raises:
        BadPictureError: if the header is incomplete.

    Source: Google, "WebP Container Specification"; RFC 6386, section 9.1; RFC 9649, section 3.4.
    """
    kind = data[12:16]
    if len(data) >= 30 and kind == b"VP8X":
        return 1 + int.from_bytes(data[27:30], "little"), 1 + int.from_bytes(data[24:27], "little")
    if len(data) >= 30 and kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return checked_size(height & 0x3FFF, width & 0x3FFF)
    if len(data) >= 25 and kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    raise BadPictureError("is truncated: its header is incomplete")


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """Layout of the pixels in an NPY file.

    Attributes:
        height, width: in pixels.
        num_channels: 1 for grey, 3 for RGB.
        start: offset of the pixels in bytes.
        is_fortran: whether they are in Fortran order.
    """

    height: int
    width: int
    num_channels: int
    start: int
    is_fortran: bool


def read_npy_header(data: bytes) -> NpyHeader:
    """Read the header of an NPY file of pixels: uint8, (h, w), (h, w, 1) or (h, w, 3).

    Nothing is executed or unpickled, and the number of pixels is checked.

    Raises:
        BadPictureError: if it is not such a file.

    Source: NumPy, "A simple file format for NumPy arrays" (NEP 1).
    """
    wide = data[6:7] > b"\x01"  # since version 2.0 the length has four bytes
    begin = 12 if wide else 10
    if len(data) < begin:
        raise BadPictureError("is truncated: its header is incomplete")
    (length,) = struct.unpack_from("<I" if wide else "<H", data, 8)
    start = begin + length
    if length > _MAX_NPY_HEADER_BYTES or start > len(data):
        raise BadPictureError("is truncated: its header is incomplete")
    try:
        with _PARSING:
            header = ast.literal_eval(data[begin:start].decode("latin-1").strip())
        kind, is_fortran = header["descr"], header["fortran_order"]
        shape = tuple(header["shape"])
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise BadPictureError("has an invalid NPY header") from None
    if kind not in {"|u1", "<u1", ">u1", "u1"}:
        raise BadPictureError(f"is an NPY file of dtype {str(kind)[:20]!r}, not uint8")
    is_picture = len(shape) == 2 or (len(shape) == 3 and shape[2] in {1, 3})
    if not is_picture or not all(type(side) is int for side in shape):
        raise BadPictureError(f"is an NPY file of shape {str(shape)[:40]}, not (h, w) or (h, w, 3)")
    height, width = checked_size(shape[0], shape[1])
    num_channels = shape[2] if len(shape) == 3 else 1
    if len(data) - start != height * width * num_channels:
        raise BadPictureError(f"is an NPY file of {width}x{height} pixels with a wrong length")
    return NpyHeader(height, width, num_channels, start, bool(is_fortran))


def jpeg_orientation(data: bytes) -> int:
    """Return a JPEG's EXIF orientation, 1 to 8; 1 if it is missing or damaged."""
    for marker, start, end in jpeg_segments(data):
        if marker == 0xE1 and data.startswith(b"Exif\x00\x00", start):
            return exif_orientation(data[start + 6 : end])
    return 1


def exif_orientation(tiff: bytes) -> int:
    """Return the orientation in an EXIF block, 1 to 8; 1 if it is damaged."""
    return read_orientation(tiff) or 1


def read_orientation(tiff: bytes) -> int | None:
    """Read the orientation, 1 to 8, from an EXIF block (a TIFF header and its first directory).

    Reads only this tag, so that damage elsewhere in EXIF does not matter.

    Returns:
        1 if the tag is missing or 0, which some cameras write; None if the block is damaged.

    Source: CIPA DC-008 (Exif 2.32), section 4.6; TIFF 6.0, section 2.
    """
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return None
    try:
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (num_entries,) = struct.unpack_from(f"{order}H", tiff, directory)
        for entry in range(num_entries):
            tag, kind, count, value = struct.unpack_from(
                f"{order}HHIH", tiff, directory + 2 + 12 * entry
            )
            if tag == _EXIF_ORIENTATION:
                is_known = kind == 3 and count == 1 and value <= 8
                return max(value, 1) if is_known else None
    except struct.error:
        return None
    return 1


def check_png(data: bytes) -> bytes:
    """Check the CRC of every critical chunk; return the EXIF block, or b"".

    Decoders ignore IDAT checksums, so a flipped byte would not be noticed.

    Raises:
        BadPictureError: if a chunk is damaged or the file is truncated.
    """
    exif = b""
    view = memoryview(data)
    for kind, start, end in png_chunks(data):
        (crc,) = struct.unpack_from(">I", data, end)
        is_critical = not kind[0] & 0x20
        if is_critical and crc32(view[start - 4 : end]) != crc:
            raise BadPictureError("is damaged: a PNG checksum does not match")
        if kind == b"eXIf":
            exif = data[start:end]
        if kind == b"IEND":
            return exif
    raise BadPictureError("is truncated: the PNG has no end chunk")


_PIXEL_CHUNKS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})


def pixel_chunks(data: bytes) -> bytes:
    """Return a PNG with only the chunks that its pixels depend on.

    Text, colour profiles and animations are left out, so that their size or damage does not
    matter; decoders that ignore them produce the same pixels.
    """
    view = memoryview(data)
    kept = [
        view[start - 8 : end + 4]
        for kind, start, end in png_chunks(data)
        if kind in _PIXEL_CHUNKS or not kind[0] & 0x20
    ]
    return b"".join([PNG_MAGIC, *kept])


_KEPT_APP = 0xEE  # Adobe: whether CMYK is inverted
_APPS_AND_COMMENT = frozenset({*range(0xE0, 0xF0), 0xFE}) - {_KEPT_APP}


def pixel_segments(data: bytes) -> bytes:
    """Return a JPEG with only the segments that its pixels depend on."""
    view = memoryview(data)
    dropped = [
        (start - 4, end)
        for marker, start, end in jpeg_segments(data)
        if marker in _APPS_AND_COMMENT
    ]
    kept, position = [], 0
    for start, end in dropped:
        kept.append(view[position:start])
        position = end
    return b"".join([*kept, view[position:]])


def png_significant_bits(data: bytes) -> int | None:
    """Return the significant bits of the colour samples of a PNG, by its sBIT chunk."""
    for kind, start, end in png_chunks(data):
        if kind == b"sBIT":
            colours = data[start:end][: 1 if data[25] in {0, 4} else 3]
            return max(colours, default=0) or None
        if kind in {b"PLTE", b"IDAT"}:  # it must precede them
            return None
    return None


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (kind, start, end) of the body of each complete chunk."""
    position = len(PNG_MAGIC)
    while position + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, position)
        start = position + 8
        position = start + length + 4
        if position > len(data):
            return
        yield data[start - 4 : start], start, start + length


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) of the body of each segment before the first scan."""
    position = 2
    while position + 4 <= len(data):
        if data[position] != 0xFF:
            return
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if marker in _MARKERS_ALONE:
            position += 2
            continue
        if marker == 0xDA:
            return
        (length,) = struct.unpack_from(">H", data, position + 2)
        start, position = position + 4, position + 2 + length
        if length < 2 or position > len(data):
            return
        yield marker, start, position


def _jpeg_size(data: bytes) -> tuple[int, int]:
    for marker, start, end in jpeg_segments(data):
        if marker in _SOF_MARKERS and end - start >= 5:
            height, width = struct.unpack_from(">HH", data, start + 1)
            return checked_size(height, width)
    raise BadPictureError("is truncated: its header is incomplete")


def checked_size(height: int, width: int) -> tuple[int, int]:
    """Return the size of a picture.

    Raises:
        BadPictureError: if a side is below 1.
    """
    if height < 1 or width < 1:
        raise BadPictureError(f"has a size of {width}x{height} pixels")
    return height, width

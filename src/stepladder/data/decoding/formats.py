"""Read format, size and orientation from file headers, without decoding."""

from __future__ import annotations

import ast
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from zlib_ng.zlib_ng import crc32

from stepladder.errors import DataError

JPEG_MAGIC = b"\xff\xd8\xff"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
NPY_MAGIC = b"\x93NUMPY"

_OTHER_MAGICS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"GIF8", "GIF"),
    (8, b"WEBP", "WebP"),
    (0, b"BM", "BMP"),
    (0, b"II*\x00", "TIFF"),
    (0, b"MM\x00*", "TIFF"),
    (4, b"ftypavif", "AVIF"),
    (4, b"ftyp", "HEIC or video"),
    (0, b"\x00\x00\x00\x0cjP  ", "JPEG 2000"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"8BPS", "Photoshop"),
    (0, b"%PDF", "PDF"),
    (0, b"PK\x03\x04", "ZIP"),
    (0, b"version https://git-lfs", "a Git LFS pointer"),
    (0, b"\x80\x04\x95", "a Python pickle"),
    (0, b"\x80\x05\x95", "a Python pickle"),
)
_HTML_STARTS = (b"<!doctype html", b"<html", b"<?xml", b"<svg")
_SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the rest are tables
_MARKERS_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # no length follows
_EXIF_ORIENTATION = 0x0112
_MAX_NPY_HEADER_BYTES = 1024


class BadPictureError(DataError):
    """One picture cannot be used; `what` is the reason in quarantine.csv."""


def name_format(data: bytes) -> str:
    """Return the format by a file's first bytes: "JPEG", "PNG", ..., or "an unknown format"."""
    if data.startswith(JPEG_MAGIC):
        return "JPEG"
    if data.startswith(PNG_MAGIC):
        return "PNG"
    if data.startswith(NPY_MAGIC):
        return "NPY"
    for offset, magic, name in _OTHER_MAGICS:
        if data.startswith(magic, offset):
            return name
    if data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_HTML_STARTS):
        return "HTML or XML"
    return "an unknown format"


def read_size(data: bytes) -> tuple[int, int]:
    """Read (height, width) in pixels from the header, before EXIF rotation.

    Raises:
        BadPictureError: if it is not JPEG, PNG or NPY, or its header is incomplete.
    """
    if not data:
        raise BadPictureError("is empty (0 bytes)")
    kind = name_format(data)
    if kind == "JPEG":
        return _jpeg_size(data)
    if kind == "PNG":
        if len(data) < 33 or data[12:16] != b"IHDR":
            raise BadPictureError("is truncated: its header is incomplete")
        width, height = struct.unpack_from(">II", data, 16)
        return _checked_size(height, width)
    if kind == "NPY":
        header = read_npy_header(data)
        return header.height, header.width
    raise BadPictureError(f"is {kind}, not JPEG or PNG")


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
    height, width = _checked_size(shape[0], shape[1])
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
            return _checked_size(height, width)
    raise BadPictureError("is truncated: its header is incomplete")


def _checked_size(height: int, width: int) -> tuple[int, int]:
    if height < 1 or width < 1:
        raise BadPictureError(f"has a size of {width}x{height} pixels")
    return height, width

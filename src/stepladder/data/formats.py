"""What the first bytes of a file say: format, size, orientation; nothing is decoded here."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from stepladder.errors import DataError

JPEG_MAGIC = b"\xff\xd8\xff"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"

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
)
_HTML_STARTS = (b"<!doctype html", b"<html", b"<?xml", b"<svg")
_SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the others are tables
_MARKERS_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # no length follows
_EXIF_ORIENTATION = 0x0112


class BadPictureError(DataError):
    """One picture cannot be used; `what` is the reason as quarantine.csv gives it."""


def name_format(data: bytes) -> str:
    """Name what a file is by its first bytes: "JPEG", "PNG", "GIF", ..., or "an unknown format"."""
    if data.startswith(JPEG_MAGIC):
        return "JPEG"
    if data.startswith(PNG_MAGIC):
        return "PNG"
    for offset, magic, name in _OTHER_MAGICS:
        if data.startswith(magic, offset):
            return name
    if data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_HTML_STARTS):
        return "HTML or XML"
    return "an unknown format"


def read_size(data: bytes) -> tuple[int, int]:
    """Read (height, width) in pixels from the header, before any EXIF turn.

    Raises:
        BadPictureError: if it is neither a JPEG nor a PNG, or has no whole header.
    """
    if not data:
        raise BadPictureError("is empty (0 bytes)")
    kind = name_format(data)
    if kind == "JPEG":
        return _jpeg_size(data)
    if kind == "PNG":
        if len(data) < 33 or data[12:16] != b"IHDR":
            raise BadPictureError("ends before its header does")
        width, height = struct.unpack_from(">II", data, 16)
        return _checked_size(height, width)
    raise BadPictureError(f"is {kind}, not JPEG or PNG")


def jpeg_orientation(data: bytes) -> int:
    """Read a JPEG's EXIF orientation, 1 to 8; 1 where there is none or EXIF is damaged."""
    for marker, start, end in _jpeg_segments(data):
        if marker == 0xE1 and data.startswith(b"Exif\x00\x00", start):
            return exif_orientation(data[start + 6 : end])
    return 1


def exif_orientation(tiff: bytes) -> int:
    """Read the orientation, 1 to 8, from an EXIF block (a TIFF header and its first directory).

    Only the one tag is looked up, so damage elsewhere in EXIF costs nothing.

    Source: CIPA DC-008 (Exif 2.32), section 4.6; TIFF 6.0, section 2.
    """
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (num_entries,) = struct.unpack_from(f"{order}H", tiff, directory)
        for entry in range(num_entries):
            tag, kind, count, value = struct.unpack_from(
                f"{order}HHIH", tiff, directory + 2 + 12 * entry
            )
            if tag == _EXIF_ORIENTATION:
                return value if kind == 3 and count == 1 and 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1


def check_png(data: bytes) -> bytes:
    """Check the CRC of every chunk that pixels depend on; give the EXIF block, empty if none.

    Decoders pass over IDAT checksums, so a flipped byte would go unseen.

    Raises:
        BadPictureError: if a chunk is damaged or the file ends early.
    """
    exif = b""
    position = len(PNG_MAGIC)
    while position + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, position)
        kind = data[position + 4 : position + 8]
        end = position + 12 + length
        if end > len(data):
            break
        body = memoryview(data)[position + 4 : end - 4]
        is_critical = not kind[0] & 0x20
        if is_critical and zlib.crc32(body) != struct.unpack_from(">I", data, end - 4)[0]:
            raise BadPictureError("is damaged: a PNG checksum does not match")
        if kind == b"eXIf":
            exif = bytes(body[4:])
        if kind == b"IEND":
            return exif
        position = end
    raise BadPictureError("ends early: a PNG without its end")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    for marker, start, end in _jpeg_segments(data):
        if marker in _SOF_MARKERS and end - start >= 5:
            height, width = struct.unpack_from(">HH", data, start + 1)
            return _checked_size(height, width)
    raise BadPictureError("ends before its header does")


def _checked_size(height: int, width: int) -> tuple[int, int]:
    if height < 1 or width < 1:
        raise BadPictureError(f"has a size of {width}x{height} pixels")
    return height, width


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) of each segment's body, up to the first scan."""
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

r"""The Parquet layout of a store: REQUIRED, PLAIN, a CRC in every page.

Columns: sha256 (of the source bytes), path, label, picture. The picture column has one row per
page, so that a row can be read and checked alone; the others have one page per row group. Pages are
not compressed, except pages of pixels if the user sets it: LZ4 saves a third and is fast to read,
zstd saves more and is slow, and both pay off only if the network is slower than they are. Any
Parquet reader can open such a file. This reader accepts only this layout and never executes
anything from a file (no pickled extension types, no code).

A path is UTF-8 text. A file name may have any bytes: bytes that are not UTF-8 are written as
`\xNN`, and backslashes are doubled, so that the name can be restored exactly.

Source: Apache Parquet format 2.10, parquet.thrift and "Checksumming" (the CRC covers a page's
data, not its header).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from zlib_ng.zlib_ng import crc32

from stepladder.config.choices import Compression, Encoding
from stepladder.data.store.thrift import I32, I64, Decoder, Fields, ThriftError, encode

MAGIC = b"PAR1"
MAX_HEADER_BYTES = 64  # those of a store have at most 35
COLUMNS = ("sha256", "path", "label", "picture")
CREATED_BY = b"stepladder version 1"
SHA256_BYTES = 32

_INT32, _BYTE_ARRAY, _FIXED = 1, 6, 7
_REQUIRED, _UTF8, _UNCOMPRESSED, _DATA_PAGE, _PLAIN, _RLE = 0, 0, 0, 0, 0, 3
_CODECS = {Compression.NONE: _UNCOMPRESSED, Compression.ZSTD: 6, Compression.LZ4: 7}

_PACKERS = {Compression.LZ4: ("lz4_raw", None), Compression.ZSTD: ("zstd", 1)}


class PackedError(ValueError):
    """Compressed bytes are damaged."""


def pack(data: memoryview, compression: Compression) -> memoryview:
    """Compress the bytes of a page; return them unchanged if compression is off."""
    if compression is Compression.NONE:
        return data
    # as bytes: a view of a shrunk Arrow buffer passes its old length to writev
    return memoryview(_codec(compression).compress(data, asbytes=True))


def unpack_into(data: bytes, out: memoryview, compression: Compression) -> None:
    """Decompress a page into a buffer of exactly its size.

    Raises:
        PackedError: if the bytes are damaged or have another size.
    """
    try:
        raw = _codec(compression).decompress(data, len(out))
    except OSError as error:
        raise PackedError(str(error)) from None
    if raw.size != len(out):
        raise PackedError(f"expected {len(out)} bytes, got {raw.size}")
    np.frombuffer(out, dtype=np.uint8)[:] = np.frombuffer(raw, dtype=np.uint8)  # releases the GIL


@cache
def _codec(compression: Compression) -> Any:
    import pyarrow as pa

    name, level = _PACKERS[compression]
    return pa.Codec(name, compression_level=level)


class LayoutError(ValueError):
    """A file is not a complete Parquet file with the layout of a store."""


@dataclass(frozen=True)
class Chunk:
    """A column chunk: one column of one row group, with its position in the file in bytes.

    Attributes:
        raw_bytes: num_bytes before compression.
    """

    offset: int
    num_bytes: int
    raw_bytes: int


@dataclass(frozen=True)
class RowGroup:
    """A row group; chunks in the order of COLUMNS."""

    num_rows: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Footer:
    """The footer of a shard."""

    encoding: Encoding
    size: int
    num_rows: int
    row_groups: tuple[RowGroup, ...]
    compression: Compression = Compression.NONE


@dataclass(frozen=True)
class Page:
    """A page: the position of its data in the file, and its header.

    Attributes:
        num_bytes: size of the data in the file, which the CRC covers.
        raw_bytes: size of the data after decompression.
    """

    offset: int
    num_bytes: int
    raw_bytes: int
    num_rows: int
    crc: int


def encode_path(path: str) -> bytes:
    """Encode a file name as valid UTF-8 without losing a byte."""
    raw = path.replace("\\", "\\\\").encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "backslashreplace").encode()


def decode_path(text: str) -> str:
    """Undo `encode_path`."""
    raw = re.sub(rb"\\(\\|x[0-9a-f]{2})", _unescape, text.encode())
    return raw.decode("utf-8", "surrogateescape")


def _unescape(match: re.Match[bytes]) -> bytes:
    return b"\\" if match[1] == b"\\" else bytes([int(match[1][1:], 16)])


def page_header(data_bytes: int, num_rows: int, crc: int, *, raw_bytes: int | None = None) -> bytes:
    """Return the header of a page.

    Args:
        data_bytes: size of the page's data in the file.
        num_rows: values in the page.
        crc: crc32 of the page's data in the file, in [0, 2**32).
        raw_bytes: size of the page's data before compression; None if not compressed.
    """
    raw_bytes = data_bytes if raw_bytes is None else raw_bytes
    before, after = _around_crc(data_bytes, num_rows, raw_bytes)
    return before + encode(I32(crc - (1 << 32) if crc >> 31 else crc)) + after


@lru_cache(maxsize=64)
def _around_crc(data_bytes: int, num_rows: int, raw_bytes: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after a header's CRC; they are the same for pages of pixels."""
    first = [(1, I32(_DATA_PAGE)), (2, I32(raw_bytes)), (3, I32(data_bytes))]
    data_page = Fields([(1, I32(num_rows)), (2, I32(_PLAIN)), (3, I32(_RLE)), (4, I32(_RLE))])
    start = len(encode(Fields(first)))  # its end marker is as long as the field's header
    whole = encode(Fields([*first, (4, I32(0)), (5, data_page)]))
    return whole[:start], whole[start + len(encode(I32(0))) :]


def footer_bytes(footer: Footer) -> bytes:
    """Return the end of a file: metadata, its length and the magic number."""
    facts = {
        b"stepladder.encoding": footer.encoding.value.encode(),
        b"stepladder.format": b"1",
        b"stepladder.size": str(footer.size).encode(),
    }
    if footer.compression is not Compression.NONE:
        facts[b"stepladder.compression"] = footer.compression.value.encode()
    metadata = encode(
        Fields(
            [
                (1, I32(2)),
                (2, _schema(footer.encoding, footer.size)),
                (3, I64(footer.num_rows)),
                (4, [_row_group(group, footer) for group in footer.row_groups]),
                (5, [Fields([(1, key), (2, value)]) for key, value in facts.items()]),
                (6, CREATED_BY),
            ]
        )
    )
    return metadata + struct.pack("<I", len(metadata)) + MAGIC


def _schema(encoding: Encoding, size: int) -> list[Fields]:
    string = [(6, I32(_UTF8)), (10, Fields([(1, Fields([]))]))]
    fixed = [(1, I32(_FIXED)), (2, I32(3 * size * size))]
    picture = fixed if encoding is Encoding.PIXELS else [(1, I32(_BYTE_ARRAY))]
    required = (3, I32(_REQUIRED))
    return [
        Fields([(4, b"schema"), (5, I32(len(COLUMNS)))]),
        Fields([(1, I32(_FIXED)), (2, I32(SHA256_BYTES)), required, (4, b"sha256")]),
        Fields([(1, I32(_BYTE_ARRAY)), required, (4, b"path"), *string]),
        Fields([(1, I32(_INT32)), required, (4, b"label")]),
        Fields([*picture, required, (4, b"picture")]),
    ]


def _row_group(group: RowGroup, footer: Footer) -> Fields:
    picture = _FIXED if footer.encoding is Encoding.PIXELS else _BYTE_ARRAY
    types = (_FIXED, _BYTE_ARRAY, _INT32, picture)
    codecs = (*(_UNCOMPRESSED,) * 3, _CODECS[footer.compression])
    columns = [
        _column_chunk(name.encode(), kind, codec, chunk, group.num_rows)
        for name, kind, codec, chunk in zip(COLUMNS, types, codecs, group.chunks, strict=True)
    ]
    num_bytes = sum(chunk.num_bytes for chunk in group.chunks)
    raw_bytes = sum(chunk.raw_bytes for chunk in group.chunks)
    offset = group.chunks[0].offset
    return Fields(
        [
            (1, columns),
            (2, I64(raw_bytes)),
            (3, I64(group.num_rows)),
            (5, I64(offset)),
            (6, I64(num_bytes)),
        ]
    )


def _column_chunk(name: bytes, kind: int, codec: int, chunk: Chunk, num_rows: int) -> Fields:
    metadata = [
        (1, I32(kind)),
        (2, [I32(_PLAIN), I32(_RLE)]),
        (3, [name]),
        (4, I32(codec)),
        (5, I64(num_rows)),
        (6, I64(chunk.raw_bytes)),
        (7, I64(chunk.num_bytes)),
        (9, I64(chunk.offset)),
    ]
    return Fields([(2, I64(chunk.offset)), (3, Fields(metadata))])


def read_footer(file: int) -> Footer:
    """Read and check the footer of an open shard.

    Args:
        file: file descriptor.

    Raises:
        LayoutError: if it is not a Parquet file, is truncated, or has another layout.
    """
    num_bytes = os.fstat(file).st_size
    tail = os.pread(file, 8, num_bytes - 8) if num_bytes >= 12 else b""
    if os.pread(file, 4, 0) != MAGIC or tail[4:] != MAGIC:
        raise LayoutError("it is not a complete Parquet file")
    (length,) = struct.unpack("<I", tail[:4])
    start = num_bytes - 8 - length
    if start < len(MAGIC):
        raise LayoutError("its Parquet footer is damaged")
    try:
        footer = _parse_footer(Decoder(os.pread(file, length, start)).struct(), start)
    except (ThriftError, KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        if isinstance(error, LayoutError):
            raise
        raise LayoutError(f"its Parquet footer is damaged ({error})") from None
    return footer


def _parse_footer(metadata: dict[int, Any], end: int) -> Footer:
    facts = {item.get(1): item.get(2) for item in metadata.get(5, [])}
    if facts.get(b"stepladder.format") != b"1":
        raise LayoutError("it was not written by `stepladder prepare`")
    encoding = Encoding(facts[b"stepladder.encoding"].decode())
    size = int(facts[b"stepladder.size"])
    compression = Compression(facts.get(b"stepladder.compression", b"none").decode())
    wanted = Decoder(encode(Fields([(2, _schema(encoding, size))]))).struct()
    if metadata[2] != wanted[2]:
        raise LayoutError("its columns do not match those of a store")
    codecs = (*(_UNCOMPRESSED,) * 3, _CODECS[compression])
    groups = tuple(_parse_row_group(group, codecs, end) for group in metadata[4])
    if sum(group.num_rows for group in groups) != metadata[3]:
        raise LayoutError("its row counts are inconsistent")
    return Footer(encoding, size, metadata[3], groups, compression)


def _parse_row_group(group: dict[int, Any], codecs: tuple[int, ...], end: int) -> RowGroup:
    chunks = []
    for name, codec, column in zip(COLUMNS, codecs, group[1], strict=True):
        facts = column[3]
        if facts[3] != [name.encode()] or facts[4] != codec or facts[5] != group[3]:
            raise LayoutError(f"its column {name} does not have the layout of a store")
        chunk = Chunk(offset=facts[9], num_bytes=facts[7], raw_bytes=facts[6])
        if not len(MAGIC) <= chunk.offset <= chunk.offset + chunk.num_bytes <= end:
            raise LayoutError(f"its column {name} is outside the file")
        chunks.append(chunk)
    return RowGroup(num_rows=group[3], chunks=tuple(chunks))


def read_page(file: int, offset: int, end: int) -> Page:
    """Read the page header at an offset.

    Raises:
        LayoutError: if it is damaged, or its data extends beyond `end`.
    """
    head = os.pread(file, min(MAX_HEADER_BYTES, end - offset), offset)
    decoder = Decoder(head)
    try:
        header = decoder.struct()
        page = Page(
            offset=offset + decoder.position,
            num_bytes=header[3],
            raw_bytes=header[2],
            num_rows=header[5][1],
            crc=header[4] & 0xFFFFFFFF,
        )
        is_ours = header[1] == _DATA_PAGE and header[5][2] == _PLAIN and page.raw_bytes >= 0
    except (ThriftError, KeyError, TypeError, IndexError) as error:
        raise LayoutError(f"the page header at byte {offset} is damaged ({error})") from None
    if not is_ours or page.num_bytes < 0 or page.offset + page.num_bytes > end:
        raise LayoutError(f"the page header at byte {offset} is damaged")
    return page


def pages(file: int, chunk: Chunk) -> Iterator[Page]:
    """Iterate over the pages of a column chunk by their headers.

    Raises:
        LayoutError: if a header is damaged.
    """
    offset, end = chunk.offset, chunk.offset + chunk.num_bytes
    while offset < end:
        page = read_page(file, offset, end)
        yield page
        offset = page.offset + page.num_bytes


def page_data(file: int, page: Page) -> bytes:
    """Read a page's data and check its CRC.

    Raises:
        LayoutError: if the file is truncated or the CRC does not match.
    """
    data = os.pread(file, page.num_bytes, page.offset)
    if len(data) != page.num_bytes:
        raise LayoutError("the file is truncated")
    if crc32(data) != page.crc:
        raise LayoutError(f"the page at byte {page.offset} fails its checksum (CRC)")
    return data


def split_strings(data: bytes) -> list[bytes]:
    """Split the data of a BYTE_ARRAY page into its values.

    Raises:
        LayoutError: if the lengths in it are inconsistent.
    """
    values, position = [], 0
    while position < len(data):
        begin = position + 4
        position = begin + int.from_bytes(data[position:begin], "little")
        values.append(data[begin:position])
    if position != len(data):
        raise LayoutError("the lengths in a page of strings are inconsistent")
    return values

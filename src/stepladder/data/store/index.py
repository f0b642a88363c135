"""The side index of a shard: where each picture is, its CRC and its label.

It is a cache: everything in it can be read from the shard's page headers, and is, if the file is
missing, damaged, or belongs to another shard. Layout, little-endian: a header of 80 bytes (magic,
version, CRC of everything else in the file, number of rows, size and sha256 of the shard), then
offsets int64 and, each 32 bits, lengths, CRCs and labels. A length is that of the page's data.

The file is mapped, so that it costs no memory of its own. Touching a mapping past the end of a file
that was cut kills the process (SIGBUS): `check` compares the sizes first, and is called before
every use.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from zlib_ng.zlib_ng import crc32

from stepladder.data.store.pages import LayoutError, page_data, pages, read_footer
from stepladder.records import ShardInfo

SUFFIX = ".index"
_HEADER = struct.Struct("<8sIIQQ32s16x")
_MAGIC = b"stepladr"
_VERSION = 1
_ROW_BYTES = 8 + 4 + 4 + 4
_READ_BYTES = 1 << 20


def index_path(shard: Path) -> Path:
    """Return the place of a shard's index."""
    return shard.with_name(shard.name + SUFFIX)


def encode_index(
    *, offsets: list[int], lengths: list[int], crcs: list[int], labels: list[int], info: ShardInfo
) -> bytes:
    """Lay out an index file; the lists have an entry for each row."""
    columns = ((offsets, "<i8"), (lengths, "<i4"), (crcs, "<u4"), (labels, "<i4"))
    body = b"".join(np.asarray(values, dtype=kind).tobytes() for values, kind in columns)
    facts = (len(offsets), info.size_bytes, bytes.fromhex(info.sha256))
    crc = crc32(body, crc32(_HEADER.pack(_MAGIC, _VERSION, 0, *facts)))
    return _HEADER.pack(_MAGIC, _VERSION, crc, *facts) + body


class Index:
    """An index that was found sound.

    Attributes:
        offsets, lengths, crcs, labels: by row of the shard, (num_rows,); read-only.
    """

    def __init__(self, data: bytes | mmap.mmap, num_rows: int) -> None:
        self._map = data if isinstance(data, mmap.mmap) else None
        self._num_bytes = len(data)
        starts = [_HEADER.size + width * num_rows for width in (0, 8, 12, 16)]
        columns = zip(starts, ("<i8", "<i4", "<u4", "<i4"), strict=True)
        self.offsets, self.lengths, self.crcs, self.labels = (
            np.frombuffer(data, dtype=kind, count=num_rows, offset=start) for start, kind in columns
        )

    def check(self) -> bool:
        """Whether the mapping may be touched: the file still has its size."""
        return self._map is None or self._map.size() == self._num_bytes

    def label_array(self) -> np.ndarray:
        """Copy the labels into an int64 array."""
        return self.labels.astype(np.int64)


def open_index(path: Path, info: ShardInfo, *, is_mapped: bool = True) -> Index | None:
    """Open an index file; None if it is missing, damaged or of another shard.

    Args:
        is_mapped: False: read it: what a disk or a network has lost is no death of the process.
    """
    expected = _HEADER.size + _ROW_BYTES * info.num_rows
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != expected:
                return None
            data = _map(file) if is_mapped else file.read()
    except OSError:
        return None
    return Index(data, info.num_rows) if _is_sound(data, info) else None


def parse_index(data: bytes, info: ShardInfo) -> Index | None:
    """Read an index that was fetched; None if it is damaged or of another shard."""
    is_whole = len(data) == _HEADER.size + _ROW_BYTES * info.num_rows and _is_sound(data, info)
    return Index(data, info.num_rows) if is_whole else None


def _map(file: BinaryIO) -> mmap.mmap | bytes:
    """Map a file; one on a mount that cannot is read."""
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return file.read()


def _is_sound(data: mmap.mmap | bytes, info: ShardInfo) -> bool:
    facts = (info.num_rows, info.size_bytes, bytes.fromhex(info.sha256))
    with memoryview(data) as view, view[_HEADER.size :] as body:
        crc = crc32(body, crc32(_HEADER.pack(_MAGIC, _VERSION, 0, *facts)))
    return data[: _HEADER.size] == _HEADER.pack(_MAGIC, _VERSION, crc, *facts)


def rebuild_index(file: int, info: ShardInfo) -> bytes:
    """Make the index of an open shard again, from its page headers.

    Reads the whole file once, as the CRCs of a file that is not the manifest's prove nothing.

    Raises:
        LayoutError: if the file is not the one that the manifest names, or is not of our layout.
    """
    if file_sha256(file) != info.sha256:
        raise LayoutError("its bytes are not those that manifest.json names (sha256)")
    footer = read_footer(file)
    offsets, lengths, crcs, labels = [], [], [], []
    for group in footer.row_groups:
        _, _, label_chunk, picture_chunk = group.chunks
        for page in pages(file, label_chunk):
            labels += np.frombuffer(page_data(file, page), dtype="<i4").tolist()
        for page in pages(file, picture_chunk):
            offsets.append(page.offset)
            lengths.append(page.num_bytes)
            crcs.append(page.crc)
    if not len(offsets) == len(labels) == footer.num_rows == info.num_rows:
        raise LayoutError("its row counts do not add up")
    return encode_index(offsets=offsets, lengths=lengths, crcs=crcs, labels=labels, info=info)


def file_sha256(file: int) -> str:
    """Hash an open file from its beginning, in hexadecimal."""
    digest = hashlib.sha256()
    position = 0
    while block := os.pread(file, _READ_BYTES, position):
        digest.update(block)
        position += len(block)
    return digest.hexdigest()

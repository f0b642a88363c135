"""The index of a shard: offset, CRC and label of each picture.

The index is a cache: it is rebuilt from the shard's page headers if the file is missing, damaged or
from another shard. Layout, little-endian: a header of 80 bytes (magic, version, CRC of the rest of
the file, number of rows, size and sha256 of the shard), then offsets as int64, and lengths, CRCs
and labels of 32 bits each. A length is the size of the page's data.

The file is memory-mapped. Reading a mapping past the end of a truncated file kills the process
(SIGBUS), so `check` compares the sizes before every use.
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
    """Return the path of a shard's index."""
    return shard.with_name(shard.name + SUFFIX)


def encode_index(
    *, offsets: list[int], lengths: list[int], crcs: list[int], labels: list[int], info: ShardInfo
) -> bytes:
    """Return the bytes of an index file; the lists have an entry for each row."""
    columns = ((offsets, "<i8"), (lengths, "<i4"), (crcs, "<u4"), (labels, "<i4"))
    body = b"".join(np.asarray(values, dtype=kind).tobytes() for values, kind in columns)
    facts = (len(offsets), info.size_bytes, bytes.fromhex(info.sha256))
    crc = crc32(body, crc32(_HEADER.pack(_MAGIC, _VERSION, 0, *facts)))
    return _HEADER.pack(_MAGIC, _VERSION, crc, *facts) + body


class Index:
    """A validated index.

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
        """Return True if the mapping is safe to read: the file still has its size."""
        return self._map is None or self._map.size() == self._num_bytes

    def label_array(self) -> np.ndarray:
        """Return a copy of the labels as int64."""
        return self.labels.astype(np.int64)


def open_index(path: Path, info: ShardInfo, *, is_mapped: bool = True) -> Index | None:
    """Open an index file; return None if it is missing, damaged or from another shard.

    Args:
        is_mapped: map the file; False reads it, so that a lost disk or network cannot kill the
            process.
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
    """Parse the bytes of an index; return None if it is damaged or from another shard."""
    is_whole = len(data) == _HEADER.size + _ROW_BYTES * info.num_rows and _is_sound(data, info)
    return Index(data, info.num_rows) if is_whole else None


def _map(file: BinaryIO) -> mmap.mmap | bytes:
    """Map a file, or read it if the mount does not support mapping."""
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
    """Rebuild the index of an open shard from its page headers.

    Reads the whole file to check its sha256 first.

    Raises:
        LayoutError: if the file does not match the manifest or the layout of a store.
    """
    if file_sha256(file) != info.sha256:
        raise LayoutError("its sha256 does not match manifest.json")
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
        raise LayoutError("its row counts are inconsistent")
    return encode_index(offsets=offsets, lengths=lengths, crcs=crcs, labels=labels, info=info)


def file_sha256(file: int) -> str:
    """Return the sha256 of an open file, in hexadecimal."""
    digest = hashlib.sha256()
    position = 0
    while block := os.pread(file, _READ_BYTES, position):
        digest.update(block)
        position += len(block)
    return digest.hexdigest()

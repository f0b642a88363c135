"""Write a shard: rows in, one Parquet file and its side index out, the same bytes each time."""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from pathlib import Path
from types import TracebackType

import numpy as np

from stepladder.config.choices import Encoding
from stepladder.data.index import encode_index, index_path
from stepladder.data.manifest import publish
from stepladder.data.pages import (
    MAGIC,
    SHA256_BYTES,
    Chunk,
    Footer,
    RowGroup,
    encode_path,
    footer_bytes,
    page_header,
)
from stepladder.records import ShardInfo, fsync_dir, write_bytes

__all__ = ["ShardWriter", "publish"]

MAX_GROUP_ROWS = {Encoding.PIXELS: 64, Encoding.JPEG: 512}
MAX_GROUP_BYTES = 16 << 20


class ShardWriter:
    """Write one shard; rows arrive in their final order.

    The file appears under its name only when it is whole and its index stands beside it, so a
    shard that can be seen is finished. Holds one row group (about 16 MiB) in memory.

    Args:
        path: `{split}-{prefix}.parquet`.
        encoding: what the pictures are.
        size: height and width of a picture as a reader yields it, in pixels.
    """

    def __init__(self, path: Path, *, encoding: Encoding, size: int) -> None:
        self.path = path
        self._encoding = encoding
        self._size = size
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._file = self._temporary.open("wb")
        self._digest = hashlib.sha256()
        self._num_bytes = 0
        self._groups: list[RowGroup] = []
        self._offsets: list[int] = []
        self._lengths: list[int] = []
        self._crcs: list[int] = []
        self._labels: list[int] = []
        self._info: ShardInfo | None = None
        self._start_group()
        self._write(MAGIC)

    def add(
        self, *, sha256: bytes, path: str, label: int, picture: bytes | memoryview | np.ndarray
    ) -> None:
        """Append a row; the picture's bytes are copied.

        Args:
            sha256: of the source file's bytes, 32 bytes.
            path: of the source file relative to the source folder, as Python names it.
            label: index into the manifest's classes.
            picture: RGB bytes (size, size, 3), or a JPEG file.
        """
        data = _bytes_of(picture)
        if len(sha256) != SHA256_BYTES:
            raise ValueError(f"a sha256 has {SHA256_BYTES} bytes, not {len(sha256)}")
        wanted = 3 * self._size * self._size
        if self._encoding is Encoding.PIXELS and data.nbytes != wanted:
            raise ValueError(f"{path}: {data.nbytes} bytes of pixels instead of {wanted}")
        prefix = b"" if self._encoding is Encoding.PIXELS else struct.pack("<I", data.nbytes)
        crc = zlib.crc32(data, zlib.crc32(prefix))
        num_bytes = len(prefix) + data.nbytes
        head = page_header(num_bytes, 1, crc) + prefix
        self._hashes.append(sha256)
        self._paths.append(encode_path(path))
        self._labels.append(label)
        self._crcs.append(crc)
        self._lengths.append(num_bytes)
        self._pictures.append(b"".join((head, data)))
        self._data_starts.append(self._group_bytes + len(head) - len(prefix))
        self._group_bytes += len(self._pictures[-1])
        full = len(self._pictures) >= MAX_GROUP_ROWS[self._encoding]
        if full or self._group_bytes >= MAX_GROUP_BYTES:
            self._finish_group()

    def close(self) -> ShardInfo:
        """Finish the shard and its index, make both durable, and say what was written."""
        if self._info is None:
            self._finish_group()
            footer = Footer(self._encoding, self._size, len(self._labels), tuple(self._groups))
            self._write(footer_bytes(footer))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._info = self._publish()
        return self._info

    def abort(self) -> None:
        """Remove what was written so far."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif self._info is None:
            self.abort()

    def _publish(self) -> ShardInfo:
        info = ShardInfo(
            name=self.path.name,
            split=self.path.name.partition("-")[0],
            num_rows=len(self._labels),
            size_bytes=self._num_bytes,
            sha256=self._digest.hexdigest(),
        )
        index = encode_index(
            offsets=self._offsets,
            lengths=self._lengths,
            crcs=self._crcs,
            labels=self._labels,
            info=info,
        )
        write_bytes(index_path(self.path), index)
        self._temporary.replace(self.path)
        fsync_dir(self.path.parent)
        return info

    def _start_group(self) -> None:
        self._hashes: list[bytes] = []
        self._paths: list[bytes] = []
        self._pictures: list[bytes] = []
        self._data_starts: list[int] = []
        self._group_bytes = 0

    def _finish_group(self) -> None:
        num_rows = len(self._pictures)
        if num_rows == 0:
            return
        labels = np.asarray(self._labels[-num_rows:], dtype="<i4").tobytes()
        paths = b"".join(struct.pack("<I", len(path)) + path for path in self._paths)
        small = [
            self._write_page(data, num_rows) for data in (b"".join(self._hashes), paths, labels)
        ]
        start = self._num_bytes
        self._offsets += [start + offset for offset in self._data_starts]
        for page in self._pictures:
            self._write(page)
        pictures = Chunk(start, self._num_bytes - start)
        self._groups.append(RowGroup(num_rows, (*small, pictures)))
        self._start_group()

    def _write_page(self, data: bytes, num_rows: int) -> Chunk:
        start = self._num_bytes
        self._write(page_header(len(data), num_rows, zlib.crc32(data)) + data)
        return Chunk(start, self._num_bytes - start)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._num_bytes += len(data)


def _bytes_of(picture: bytes | memoryview | np.ndarray) -> memoryview:
    """See a picture as bytes, without a copy."""
    return (
        picture.data.cast("B") if isinstance(picture, np.ndarray) else memoryview(picture).cast("B")
    )

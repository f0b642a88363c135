"""Write the rows of a shard to one Parquet file and its index; the output is deterministic."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from zlib_ng.zlib_ng import crc32

from stepladder.config.choices import Compression, Encoding
from stepladder.data.store.index import encode_index, index_path
from stepladder.data.store.pages import (
    MAGIC,
    SHA256_BYTES,
    Chunk,
    Footer,
    RowGroup,
    encode_path,
    footer_bytes,
    pack,
    page_header,
)
from stepladder.records import ShardInfo, fsync_dir, write_bytes

MAX_GROUP_ROWS = {Encoding.PIXELS: 64, Encoding.JPEG: 512}
MAX_GROUP_BYTES = 16 << 20
_MAX_PARTS = 1024  # buffers of one writev, the limit of Linux
_PIECE_BYTES = 2 << 20
"""Approximate size of one writev: for larger ones the page cache allocates blocks of 2 MiB, which a
virtual machine may first have to get from its host; that took up to six times as long."""


@dataclass(frozen=True, eq=False)
class PicturePage:
    """The page of one picture, ready to be written.

    Attributes:
        head: the page's header and the picture's length prefix.
        header_bytes: size of the header alone.
        data: the picture, compressed if compression is on.
        num_bytes: size of the page without its header.
        raw_bytes: num_bytes before compression.
        crc: CRC-32 of the page without its header.
    """

    head: bytes
    header_bytes: int
    data: memoryview
    num_bytes: int
    raw_bytes: int
    crc: int


def picture_page(
    picture: bytes | memoryview | np.ndarray, *, encoding: Encoding, compression: Compression
) -> PicturePage:
    """Return the page of a picture (RGB bytes or a JPEG file), without copying it."""
    data = _bytes_of(picture)
    prefix = b"" if encoding is Encoding.PIXELS else struct.pack("<I", data.nbytes)
    raw_bytes = len(prefix) + data.nbytes
    data = pack(data, compression)
    crc = crc32(data, crc32(prefix))
    num_bytes = len(prefix) + data.nbytes
    header = page_header(num_bytes, 1, crc, raw_bytes=raw_bytes)
    return PicturePage(header + prefix, len(header), data, num_bytes, raw_bytes, crc)


class ShardWriter:
    """Write one shard; rows arrive in their final order.

    The file is renamed to its final name after it is complete and its index is written, so that a
    visible shard is finished. Keeps one row group (about 16 MiB) in memory.

    Args:
        path: `{split}-{prefix}.parquet`.
        encoding: encoding of the pictures.
        size: height and width of the pictures that a reader yields, in pixels.
        compression: compression of each page of pixels.
    """

    def __init__(
        self,
        path: Path,
        *,
        encoding: Encoding,
        size: int,
        compression: Compression = Compression.NONE,
    ) -> None:
        self.path = path
        self._encoding = encoding
        self._size = size
        self._compression = compression
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._file = self._temporary.open("wb", buffering=0)
        self._digest = hashlib.sha256()
        self._num_bytes = 0
        self._groups: list[RowGroup] = []
        self._offsets: list[int] = []
        self._lengths: list[int] = []
        self._crcs: list[int] = []
        self._labels: list[int] = []
        self._info: ShardInfo | None = None
        self._is_sealed = False
        self._start_group()
        self._write([MAGIC])

    def add(
        self, *, sha256: bytes, path: str, label: int, picture: bytes | memoryview | np.ndarray
    ) -> None:
        """Append a row. The picture is not copied: it must not change before it is written.

        Args:
            sha256: sha256 of the source file, 32 bytes.
            path: path of the source file relative to the source folder, as a Python str.
            label: index into the manifest's classes.
            picture: RGB bytes (size, size, 3), or a JPEG file.
        """
        page = picture_page(picture, encoding=self._encoding, compression=self._compression)
        self.add_page(sha256=sha256, path=path, label=label, page=page)

    def add_page(self, *, sha256: bytes, path: str, label: int, page: PicturePage) -> None:
        """Append a row with a page from `picture_page`; see `add`."""
        if len(sha256) != SHA256_BYTES:
            raise ValueError(f"a sha256 must have {SHA256_BYTES} bytes, not {len(sha256)}")
        wanted = 3 * self._size * self._size
        if self._encoding is Encoding.PIXELS and page.raw_bytes != wanted:
            raise ValueError(f"{path}: expected {wanted} bytes of pixels, got {page.raw_bytes}")
        self._hashes.append(sha256)
        self._paths.append(encode_path(path))
        self._labels.append(label)
        self._crcs.append(page.crc)
        self._lengths.append(page.num_bytes)
        self._pictures.append((page.head, page.data))
        self._data_starts.append(self._group_bytes + page.header_bytes)
        self._group_bytes += page.header_bytes + page.num_bytes
        self._group_raw_bytes += page.header_bytes + page.raw_bytes
        full = len(self._pictures) >= MAX_GROUP_ROWS[self._encoding]
        if full or self._group_bytes >= MAX_GROUP_BYTES:
            self._finish_group()

    def seal(self) -> None:
        """Write the footer of the shard; no more rows can be added."""
        if not self._is_sealed:
            self._finish_group()
            groups, num_rows = tuple(self._groups), len(self._labels)
            footer = Footer(self._encoding, self._size, num_rows, groups, self._compression)
            self._write([footer_bytes(footer)])
            self._is_sealed = True

    def close(self) -> ShardInfo:
        """Finish and sync the shard and its index, and return the shard's info."""
        if self._info is None:
            self.seal()
            os.fsync(self._file.fileno())
            self._file.close()
            self._info = self._publish()
        return self._info

    def abort(self) -> None:
        """Remove the temporary file."""
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
        self._pictures: list[tuple[bytes, memoryview]] = []
        self._data_starts: list[int] = []
        self._group_bytes = 0
        self._group_raw_bytes = 0

    def _finish_group(self) -> None:
        num_rows = len(self._pictures)
        if num_rows == 0:
            return
        labels = np.asarray(self._labels[-num_rows:], dtype="<i4").tobytes()
        paths = b"".join(struct.pack("<I", len(path)) + path for path in self._paths)
        parts: list[bytes | memoryview] = []
        chunks: list[Chunk] = []
        start = self._num_bytes
        for data in (b"".join(self._hashes), paths, labels):
            page = page_header(len(data), num_rows, crc32(data)) + data
            chunks.append(Chunk(start, len(page), len(page)))
            parts.append(page)
            start += len(page)
        for picture in self._pictures:
            parts += picture
        self._offsets += [start + offset for offset in self._data_starts]
        chunks.append(Chunk(start, self._group_bytes, self._group_raw_bytes))
        self._groups.append(RowGroup(num_rows, tuple(chunks)))
        self._write(parts)
        self._start_group()

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write all parts with writev, so that pixels are copied only once, into the page cache."""
        for piece in _pieces(parts):
            for part in piece:
                self._digest.update(part)
            left = [memoryview(part) for part in piece]
            while left:
                num_written = os.writev(self._file.fileno(), left)
                self._num_bytes += num_written
                while left and num_written >= len(left[0]):
                    num_written -= len(left.pop(0))
                if num_written:
                    left[0] = left[0][num_written:]


def _pieces(parts: Sequence[bytes | memoryview]) -> Iterator[list[bytes | memoryview]]:
    """Group parts into pieces, one for each writev call."""
    piece: list[bytes | memoryview] = []
    num_bytes = 0
    for part in parts:
        if not len(part):
            continue
        piece.append(part)
        num_bytes += len(part)
        if num_bytes >= _PIECE_BYTES or len(piece) == _MAX_PARTS:
            yield piece
            piece, num_bytes = [], 0
    if piece:
        yield piece


def _bytes_of(picture: bytes | memoryview | np.ndarray) -> memoryview:
    """Return a picture as a memoryview of bytes, without a copy."""
    return (
        picture.data.cast("B") if isinstance(picture, np.ndarray) else memoryview(picture).cast("B")
    )

"""The pictures of one split of a store, by row."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from stepladder.config.choices import Compression, Encoding, Fit, JpegSize, Split, VerifyPages
from stepladder.data.decoding.decode import decode_picture, find_form
from stepladder.data.decoding.formats import BadPictureError
from stepladder.data.reading.examples import PictureSource, ReadCost
from stepladder.data.store.index import parse_index
from stepladder.data.store.manifest import PREPARE_AGAIN
from stepladder.data.store.pages import LayoutError
from stepladder.data.store.shard import Shard
from stepladder.data.store.shard_files import ShardFiles, ShardFilesStats
from stepladder.errors import DataError
from stepladder.machine import available_memory_bytes, is_on_spinning_disk
from stepladder.machine.filesystem import is_far
from stepladder.records import Manifest

T = TypeVar("T")

_INDEXES_AT_ONCE = 16
_MAPPED_FRAC = 0.5  # of free memory: larger splits do not stay in the page cache and are read
_MAX_UNEXPECTED = 8  # fetched files that are kept open although they were not announced

MAX_ROWS = 4_000_000
"""Maximum rows whose positions are kept in arrays, 13 bytes each; larger splits use shards."""


class HotRows:
    """Positions of the rows of a split of pixels, and which rows were checked.

    Created again when a file has changed, so that all rows are checked again.

    Args:
        shards: shards of the split, in order; their pages not compressed.
        num_bytes: bytes of a picture.
        is_trusted: whether rows need no check before the first read.

    Raises:
        DataError: if the size of a file or its index has changed.
    """

    def __init__(self, shards: Sequence[Shard], *, num_bytes: int, is_trusted: bool) -> None:
        for shard in shards:
            shard.check()
        sizes = [shard.info.num_rows for shard in shards]
        self._shards = shards
        self._num_bytes = num_bytes
        self._shard_of = np.repeat(np.arange(len(shards), dtype=np.int32), sizes)
        self._offsets = np.concatenate([shard.index.offsets for shard in shards])
        fits = [shard.index.lengths == num_bytes for shard in shards]
        self._checked = np.concatenate(fits) & is_trusted
        self._num_changes = [shard.num_changes for shard in shards]
        self._mappings: dict[int, np.ndarray] = {}

    def is_unchanged(self, rows: np.ndarray) -> bool:
        """Return True if the files of these rows have not changed; call before `copy_into`.

        Raises:
            DataError: if the size of a file has changed.
        """
        for idx in set(self._shard_of[rows].tolist()):
            self._shards[idx].is_unchanged()
            if (
                self._shards[idx].num_changes != self._num_changes[idx]
            ):  # also if another caller noticed
                return False
        return True

    def copy_into(self, rows: np.ndarray, out: np.ndarray) -> bool:
        """Fill `out`, uint8 (len(rows), num_bytes), if all of these rows were checked.

        Returns:
            False if a row was not checked yet: read it from its shard, then call `mark`.
        """
        if not self._checked[rows].all():
            return False
        shard_of, num_bytes = self._shard_of[rows].tolist(), self._num_bytes
        mappings = self._mappings
        for idx in set(shard_of) - mappings.keys():
            mapped = self._shards[idx].mapping
            if mapped is None:
                return False
            mappings[idx] = mapped
        places = zip(shard_of, self._offsets[rows].tolist(), strict=True)
        for place, (idx, offset) in enumerate(places):
            out[place] = mappings[idx][offset : offset + num_bytes]
        return True

    def mark(self, rows: np.ndarray) -> None:
        """Mark rows as checked."""
        self._checked[rows] = True


class StoreSplit(PictureSource):
    """The pictures of one split, by row, in stored order.

    Args:
        path: path of the store.
        manifest: manifest of the store.
        split: the split.
        files: access to the store's files.
        verify_pages: when the CRC of a picture is checked.
        is_scaled: whether a JPEG much larger than needed is decoded at reduced size.

    Attributes:
        classes: class names; a label is an index into it.
        class_counts: number of pictures of each class, by the manifest.
        folder: folder of the store; None: it is remote.
        fingerprint: fingerprint of the store.
    """

    has_mixed_blocks = True  # files are assigned by hash

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        split: Split,
        *,
        files: ShardFiles,
        verify_pages: VerifyPages,
        is_scaled: bool,
    ) -> None:
        self.classes = manifest.classes
        self.class_counts = manifest.class_counts[split]
        self.folder = path if files.is_local else None
        self.fingerprint = manifest.fingerprint
        self.picture_shape = (manifest.size, manifest.size, 3)
        self._encoding = Encoding(manifest.encoding)
        self._fit = Fit(manifest.fit)
        self._size = manifest.size
        self._is_scaled = is_scaled
        is_original = manifest.options.get("jpeg_size") == JpegSize.ORIGINAL.value
        white = manifest.options.get("max_sample_value")
        self._white = float(white) if is_original and white is not None else None
        self._infos = [info for info in manifest.shards if info.split == split and info.num_rows]
        self._files = files
        self._verify = verify_pages
        self._compression = Compression(manifest.options.get("compression", "none"))
        num_bytes = sum(info.size_bytes for info in self._infos)
        # a lost network kills a process that reads a mapping, so remote files are not mapped
        self._is_far = files.is_local and is_far(path)
        is_small = num_bytes <= _MAPPED_FRAC * available_memory_bytes()
        self._is_mapped = is_small and not self._is_far
        self._shards: dict[int, Shard] = {}
        self._opening = threading.Lock()
        self._wanted: set[int] = set()  # shards of the last call of expect
        self._in_use: set[int] = set()  # and of the call before, which batches may still read
        self._hot: HotRows | None = None
        self.block_rows = tuple(info.num_rows for info in self._infos)
        is_slow = self._is_far or (not is_small and is_on_spinning_disk(path))
        self.is_near = files.is_local and not is_slow
        ends = np.cumsum(self.block_rows)
        self._starts = np.concatenate([[0], ends[:-1]])  # (num_shards,): first row of each
        self._num_rows = int(ends[-1])
        if files.is_local:  # all at once, so that a replaced store stays readable
            for idx in range(len(self._infos)):
                self._open(idx)
        self._has_hot_rows = (
            self._is_mapped
            and files.is_local
            and self._encoding is Encoding.PIXELS
            and self._compression is Compression.NONE
            and self._verify is not VerifyPages.ALWAYS
            and self._num_rows <= MAX_ROWS
        )
        # of JPEGs several milliseconds: small tasks balance the load between threads
        self.rows_per_task = 64 if self._encoding is Encoding.PIXELS else 16

    def __len__(self) -> int:
        return self._num_rows

    @cached_property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        """Label of each row, int64 (len,), read-only; for remote files read from their indexes.

        Raises:
            DataError: if a label is not an index into classes.
        """
        num_files = len(self._infos)
        if self._files.is_local:
            parts = [self._labels_of_shard(idx) for idx in range(num_files)]
        else:
            with ThreadPoolExecutor(_INDEXES_AT_ONCE, thread_name_prefix="labels") as pool:
                parts = list(pool.map(self._labels_of_shard, range(num_files)))
        labels = np.concatenate(parts)
        self._check_labels(labels, np.arange(self._num_rows))
        labels.flags.writeable = False
        return labels

    def _labels_of_shard(self, shard_idx: int) -> np.ndarray:
        info = self._infos[shard_idx]
        data = self._files.index(info)
        index = None if data is None else parse_index(data, info)
        return (index or self._checked(shard_idx).index).label_array()

    def labels_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the labels of some rows, int64 (len(rows),); reads only their shards.

        Raises:
            DataError: if a label is not an index into classes.
        """
        if self._files.is_local and self._num_rows <= MAX_ROWS:
            return super().labels_of(rows)
        labels = np.empty(len(rows), dtype=np.int64)
        for shard_idx, places, within in self._by_shard(rows):
            labels[places] = self._checked(shard_idx).labels(within)
        self._check_labels(labels, rows)
        return labels

    def expect(self, rows: np.ndarray) -> None:
        """Prefetch the files of these rows, and release files that are no longer needed."""
        if self._files.is_local:
            return
        shard_idx = self._shard_of(rows)
        wanted = shard_idx[np.sort(np.unique(shard_idx, return_index=True)[1])].tolist()
        with self._opening:
            self._in_use = {*wanted, *self._wanted}
            self._wanted = set(wanted)
            for idx in self._shards.keys() - self._in_use:
                del self._shards[idx]  # closed as soon as nothing reads from it
        self._files.expect([self._infos[idx] for idx in wanted])

    def files_stats(self) -> ShardFilesStats | None:
        """Return statistics of fetching the store's files, including other splits."""
        return None if self._files.is_local else self._files.stats

    def describe(self, row: int) -> str:
        r"""Return the path of the source picture, relative to the source folder.

        Always valid UTF-8: other bytes are written as `\xNN`, and backslashes are doubled
        (`stepladder.data.store.pages.decode_path` restores the name).
        """
        return self._read_name(row, Shard.source_path)

    def sha256(self, row: int) -> bytes:
        """Return the sha256 of the source picture."""
        return self._read_name(row, Shard.sha256)

    def picture(self, row: int) -> np.ndarray:
        """Read one picture: uint8 (size, size, 3), RGB."""
        out = np.empty((1, *self.picture_shape), dtype=np.uint8)
        self.read_into(np.array([row]), out)
        return out.reshape(self.picture_shape)

    def read_into(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        """Fill `out`, uint8 (n, size, size, 3), with these rows.

        Raises:
            DataError: if a picture is damaged; has file, row and source path.
            IndexError: if a row is not in the split.
        """
        if len(rows) == 0:
            return ReadCost()
        if rows.min() < 0 or rows.max() >= self._num_rows:
            raise IndexError(f"a row is not in [0, {self._num_rows})")
        if self._encoding is Encoding.PIXELS:
            return self._read_pixels(rows, out)
        return self._read_jpegs(rows, out)

    def close(self) -> None:
        """Close the files."""
        for shard in self._shards.values():
            shard.close()

    def _read_pixels(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        start_s = time.perf_counter()
        flat = out.reshape(len(rows), -1)
        hot = self._hot_rows(rows)
        if hot is not None and hot.copy_into(rows, flat):
            return ReadCost(fetch_s=time.perf_counter() - start_s, num_bytes=flat.nbytes)
        num_bytes = 0
        for shard_idx, places, within in self._by_shard(rows):
            num_bytes += self._checked(shard_idx).read_into(within, flat, places.tolist())
        if hot is not None:
            hot.mark(rows)
        return ReadCost(fetch_s=time.perf_counter() - start_s, num_bytes=num_bytes)

    def _hot_rows(self, rows: np.ndarray) -> HotRows | None:
        """Return the positions of rows for fast copying; None if not supported.

        Raises:
            DataError: if the size of a file has changed.
        """
        if not self._has_hot_rows:
            return None
        if self._hot is None or not self._hot.is_unchanged(rows):
            self._hot = HotRows(
                [self._shards[idx] for idx in range(len(self._infos))],
                num_bytes=math.prod(self.picture_shape),
                is_trusted=self._verify is VerifyPages.NEVER,
            )
        return self._hot

    def _read_jpegs(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        decode_s = 0.0
        num_bytes = 0
        start_s = time.perf_counter()
        shard_idx = self._shard_of(rows)
        shards = {idx: self._checked(idx) for idx in np.unique(shard_idx).tolist()}
        fetch_s = time.perf_counter() - start_s  # includes the wait for remote files
        within = (rows - self._starts[shard_idx]).tolist()
        for picture, idx, row in zip(out, shard_idx.tolist(), within, strict=True):
            shard = shards[idx]
            start_s = time.perf_counter()
            forms = shard.forms  # taken before the read, as they are reset when the file changes
            data = shard.read(row)
            fetched_s = time.perf_counter()
            try:
                decode_picture(
                    data,
                    size=self._size,
                    fit=self._fit,
                    is_scaled=self._is_scaled,
                    white=self._white,
                    out=picture,
                    form=forms.get(row) or forms.add(row, find_form(data)),
                )
            except BadPictureError as error:
                raise DataError(error.what, where=shard.describe(row), fix=PREPARE_AGAIN) from None
            fetch_s += fetched_s - start_s
            decode_s += time.perf_counter() - fetched_s
            num_bytes += len(data)
        return ReadCost(fetch_s=fetch_s, decode_s=decode_s, num_bytes=num_bytes)

    def _shard_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the shard of each row, (len(rows),)."""
        shard_idx: np.ndarray = np.searchsorted(self._starts, rows, side="right") - 1
        return shard_idx

    def _by_shard(self, rows: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Return (shard, indices in `rows`, rows within the shard) for each shard in use."""
        if len(rows) == 0:  # such as on a rank with an empty part
            return []
        shard_idx = self._shard_of(rows)
        places = np.argsort(shard_idx, kind="stable")
        used, firsts = np.unique(shard_idx[places], return_index=True)
        within = rows - self._starts[shard_idx]
        return [
            (idx, some, within[some])
            for idx, some in zip(used.tolist(), np.split(places, firsts[1:]), strict=True)
        ]

    def _shard(self, shard_idx: int) -> Shard:
        """Return an open shard."""
        shard = self._shards.get(shard_idx)
        if shard is None:
            with self._opening:
                shard = self._shards.get(shard_idx) or self._open(shard_idx)
        return shard

    def _open(self, shard_idx: int) -> Shard:
        files, info = self._files, self._infos[shard_idx]
        if not files.is_local:
            self._let_go()
        shard = Shard(
            files.path(info),
            info,
            verify=self._verify,
            compression=self._compression,
            is_mapped=self._is_mapped,
            is_far=self._is_far,
        )
        if not files.is_local:
            weakref.finalize(shard, files.release, info)
        self._shards[shard_idx] = shard
        return shard

    def _let_go(self) -> None:
        """Close the oldest files that were not announced, to make room for one more."""
        unexpected = [idx for idx in self._shards if idx not in self._in_use]
        num_too_many = max(0, len(unexpected) + 1 - _MAX_UNEXPECTED)
        for idx in unexpected[:num_too_many]:  # the oldest
            del self._shards[idx]

    def _checked(self, shard_idx: int) -> Shard:
        """Return an open shard after checking that its file is intact."""
        shard = self._shard(shard_idx)
        shard.check()
        return shard

    def _check_labels(self, labels: np.ndarray, rows: np.ndarray) -> None:
        bad = np.flatnonzero((labels < 0) | (labels >= len(self.classes)))
        if bad.size:
            what = (
                f"the store is damaged: label {labels[bad[0]]} is not one of the "
                f"{len(self.classes)} classes"
            )
            shard, row_in_shard = self._locate(int(rows[bad[0]]))
            raise DataError(what, where=shard.describe(row_in_shard), fix=PREPARE_AGAIN)

    def _locate(self, row: int) -> tuple[Shard, int]:
        if not 0 <= row < self._num_rows:
            raise IndexError(f"row {row} is not in [0, {self._num_rows})")
        shard_idx = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._shard(shard_idx), row - int(self._starts[shard_idx])

    def _read_name(self, row: int, read: Callable[[Shard, int], T]) -> T:
        shard, row_in_shard = self._locate(row)
        try:
            return read(shard, row_in_shard)
        except LayoutError as error:
            where = f"{shard.path}: row {row_in_shard}"
            raise DataError(
                f"this file of the store is damaged: {error}", where=where, fix=PREPARE_AGAIN
            ) from None

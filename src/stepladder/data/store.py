"""A store, opened for reading: rows of Parquet files, read where they lie."""

from __future__ import annotations

import math
import resource
import threading
import time
import weakref
from functools import cached_property
from pathlib import Path

import numpy as np

from stepladder.config.choices import Compression, Encoding, Fit, Split, VerifyPages
from stepladder.data.decode import BadPictureError, decode_picture
from stepladder.data.examples import PictureSource, ReadCost
from stepladder.data.hot_rows import MAX_ROWS, HotRows
from stepladder.data.manifest import PREPARE_AGAIN, mend
from stepladder.data.pages import LayoutError
from stepladder.data.remote.remote_store import open_shard_files
from stepladder.data.shard import Shard
from stepladder.data.shard_files import LocalShardFiles, ShardFiles, ShardFilesStats
from stepladder.data.verify import list_shards, verify_store
from stepladder.errors import DataError
from stepladder.machine import available_memory_bytes, is_on_spinning_disk
from stepladder.records import Manifest

__all__ = ["Store", "StoreSplit", "verify_store"]

_FILES_PER_SHARD = 3  # the shard, its mapping, and that of its index
_OTHER_FILES = 256
_MAPPED_FRAC = 0.5  # of free memory: what is larger does not stay in it, and is asked for


class Store:
    """What `stepladder prepare` wrote.

    Shards are opened with a split; those that lie elsewhere when a row of them is asked for.

    Attributes:
        path: its folder, or its place in an object store.
        manifest: what it holds.
        files: where its files are.
        verify_pages: when the CRC of a picture is checked.
        is_scaled: whether a JPEG much larger than needed is decoded at a part of its size. No part
            of the store's identity: rows, labels and order are the same, pixels differ slightly.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        *,
        verify_pages: VerifyPages,
        is_scaled: bool = True,
        files: ShardFiles | None = None,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.files = files or LocalShardFiles(path)
        self.verify_pages = verify_pages
        self.is_scaled = is_scaled
        self._splits: dict[Split, StoreSplit] = {}

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        verify_pages: VerifyPages = VerifyPages.FIRST_TOUCH,
        is_scaled: bool = True,
        files: ShardFiles | None = None,
    ) -> Store:
        """Open a store: check its manifest, and that every file is there in its full size.

        Args:
            path: its folder, or its place in an object store.
            verify_pages: when the CRC of a picture is checked.
            is_scaled: decode a JPEG much larger than needed at a part of its size, as `prepare`
                does for a store of pixels; False: in full.
            files: where its files are; None: in the folder, or fetched into the cache.

        Raises:
            DataError: if it is no store, or not whole.
        """
        path = Path(path)
        files = files or open_shard_files(path)
        manifest = files.manifest()
        problems = list_shards(path, manifest) if files.is_local else []
        if problems:
            raise DataError("; ".join(problems[:3]), where=str(path), fix=mend(path))
        return cls(path, manifest, verify_pages=verify_pages, is_scaled=is_scaled, files=files)

    @property
    def fingerprint(self) -> str:
        """Identity of the store: sha256 over its manifest."""
        return self.manifest.fingerprint

    def split(self, split: Split) -> StoreSplit | None:
        """Give a split, or None if the store has no picture of it."""
        if self.manifest.num_rows(split) == 0:
            return None
        if split not in self._splits:
            _allow_files(_FILES_PER_SHARD * len(self.manifest.shards) + _OTHER_FILES)
            self._splits[split] = StoreSplit(self, split)
        return self._splits[split]

    def close(self) -> None:
        """Close all files; splits that were given out can no longer be read."""
        for split in self._splits.values():
            split.close()
        self._splits.clear()
        self.files.close()


class StoreSplit(PictureSource):
    """The pictures of one split, by row, in stored order.

    Attributes:
        classes: class names; a label is an index into it.
        fingerprint: that of the store.
    """

    has_mixed_blocks = True  # files are cut by hash

    def __init__(self, store: Store, split: Split) -> None:
        manifest = store.manifest
        self.classes = manifest.classes
        self.fingerprint = manifest.fingerprint
        self.picture_shape = (manifest.size, manifest.size, 3)
        self._encoding = Encoding(manifest.encoding)
        self._fit = Fit(manifest.fit)
        self._size = manifest.size
        self._is_scaled = store.is_scaled
        self._infos = [info for info in manifest.shards if info.split == split and info.num_rows]
        self._files = store.files
        self._verify = store.verify_pages
        self._compression = Compression(manifest.options.get("compression", "none"))
        num_bytes = sum(info.size_bytes for info in self._infos)
        self._is_mapped = num_bytes <= _MAPPED_FRAC * available_memory_bytes()
        self._shards: dict[int, Shard] = {}
        self._opening = threading.Lock()
        self._wanted: list[int] = []  # shards that were expected last
        self._hot: HotRows | None = None
        self.block_rows = tuple(info.num_rows for info in self._infos)
        self.is_near = store.files.is_local and (
            self._is_mapped or not is_on_spinning_disk(store.path)
        )
        ends = np.cumsum(self.block_rows)
        self._starts = np.concatenate([[0], ends[:-1]])  # (num_shards,): first row of each
        self._num_rows = int(ends[-1])
        if store.files.is_local:  # all at once: a store replaced under us stays readable as it was
            for idx in range(len(self._infos)):
                self._open(idx)
        self._has_hot_rows = (
            self._is_mapped
            and store.files.is_local
            and self._encoding is Encoding.PIXELS
            and self._compression is Compression.NONE
            and self._verify is not VerifyPages.ALWAYS
            and self._num_rows <= MAX_ROWS
        )
        self.rows_per_task = 32 if self._encoding is Encoding.PIXELS else 4  # about a millisecond

    def __len__(self) -> int:
        return self._num_rows

    @cached_property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        """Label of each row, int64 (len,); read-only.

        Raises:
            DataError: if a label is no index into classes.
        """
        labels = np.concatenate(
            [self._checked(idx).index.label_array() for idx in range(len(self._infos))]
        )
        self._check_labels(labels, np.arange(self._num_rows))
        labels.flags.writeable = False
        return labels

    def labels_of(self, rows: np.ndarray) -> np.ndarray:
        """Give the labels of some rows, int64 (len(rows),); touches no other shard.

        Raises:
            DataError: if a label is no index into classes.
        """
        if self._files.is_local and self._num_rows <= MAX_ROWS:
            return super().labels_of(rows)
        labels = np.empty(len(rows), dtype=np.int64)
        for shard_idx, places, within in self._by_shard(rows):
            labels[places] = self._checked(shard_idx).labels(within)
        self._check_labels(labels, rows)
        return labels

    def expect(self, rows: np.ndarray) -> None:
        """Fetch the files of these rows ahead, and let go of those that are used up."""
        if self._files.is_local:
            return
        shard_idx = self._shard_of(rows)
        wanted = shard_idx[np.sort(np.unique(shard_idx, return_index=True)[1])].tolist()
        in_use = {*wanted, *self._wanted}  # batches of before may still be read
        self._wanted = wanted
        with self._opening:
            for idx in self._shards.keys() - in_use:
                del self._shards[idx]  # closes it as soon as nobody reads from it
        self._files.expect([self._infos[idx] for idx in wanted])

    def files_stats(self) -> ShardFilesStats | None:
        """Say what it took to fetch the store's files, those of other splits among them."""
        return None if self._files.is_local else self._files.stats

    def describe(self, row: int) -> str:
        r"""Give the path of the source picture, relative to the source folder.

        Valid UTF-8 whatever the file name was: bytes that are no text are written `\xNN`, and a
        backslash is doubled (`stepladder.data.pages.decode_path` gives the name back).
        """
        shard, row_in_shard = self._locate(row)
        try:
            return shard.source_path(row_in_shard)
        except LayoutError as error:
            raise self._damaged(row, error) from None

    def sha256(self, row: int) -> bytes:
        """Give the sha256 of the source picture's bytes."""
        shard, row_in_shard = self._locate(row)
        try:
            return shard.sha256(row_in_shard)
        except LayoutError as error:
            raise self._damaged(row, error) from None

    def picture(self, row: int) -> np.ndarray:
        """Read one picture: uint8 (size, size, 3), RGB."""
        out = np.empty((1, *self.picture_shape), dtype=np.uint8)
        self.read_into(np.array([row]), out)
        return out.reshape(self.picture_shape)

    def read_into(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        """Fill `out`, uint8 (n, size, size, 3), with these rows.

        Raises:
            DataError: names file, row and source path of a picture that is damaged.
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
        """Give the quick way to rows, as long as their files have not changed; None: there is none.

        Raises:
            DataError: if a file was cut or has grown.
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
        fetch_s = time.perf_counter() - start_s  # a file that lies elsewhere is waited for here
        within = (rows - self._starts[shard_idx]).tolist()
        for picture, idx, row in zip(out, shard_idx.tolist(), within, strict=True):
            shard = shards[idx]
            start_s = time.perf_counter()
            data = shard.read(row)
            fetched_s = time.perf_counter()
            try:
                picture[...] = decode_picture(
                    data, size=self._size, fit=self._fit, is_scaled=self._is_scaled
                )
            except BadPictureError as error:
                raise DataError(error.what, where=shard.describe(row), fix=PREPARE_AGAIN) from None
            fetch_s += fetched_s - start_s
            decode_s += time.perf_counter() - fetched_s
            num_bytes += len(data)
        return ReadCost(fetch_s=fetch_s, decode_s=decode_s, num_bytes=num_bytes)

    def _shard_of(self, rows: np.ndarray) -> np.ndarray:
        """Give the shard in which each row lies, (len(rows),)."""
        shard_idx: np.ndarray = np.searchsorted(self._starts, rows, side="right") - 1
        return shard_idx

    def _by_shard(self, rows: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Give (shard, places among the rows asked for, rows within it) of each shard in use."""
        shard_idx = self._shard_of(rows)
        places = np.argsort(shard_idx, kind="stable")
        used, firsts = np.unique(shard_idx[places], return_index=True)
        within = rows - self._starts[shard_idx]
        return [
            (idx, some, within[some])
            for idx, some in zip(used.tolist(), np.split(places, firsts[1:]), strict=True)
        ]

    def _shard(self, shard_idx: int) -> Shard:
        """Give an open shard."""
        shard = self._shards.get(shard_idx)
        if shard is None:
            with self._opening:
                shard = self._shards.get(shard_idx) or self._open(shard_idx)
        return shard

    def _open(self, shard_idx: int) -> Shard:
        files, info = self._files, self._infos[shard_idx]
        shard = Shard(
            files.path(info),
            info,
            verify=self._verify,
            compression=self._compression,
            is_mapped=self._is_mapped,
        )
        if not files.is_local:
            weakref.finalize(shard, files.release, info)
        self._shards[shard_idx] = shard
        return shard

    def _checked(self, shard_idx: int) -> Shard:
        """Give an open shard that is still the file that it was."""
        shard = self._shard(shard_idx)
        shard.check()
        return shard

    def _check_labels(self, labels: np.ndarray, rows: np.ndarray) -> None:
        bad = np.flatnonzero((labels < 0) | (labels >= len(self.classes)))
        if bad.size:
            what = f"label {labels[bad[0]]} is none of the {len(self.classes)} classes"
            raise DataError(what, where=self._where(int(rows[bad[0]])), fix=PREPARE_AGAIN)

    def _locate(self, row: int) -> tuple[Shard, int]:
        if not 0 <= row < self._num_rows:
            raise IndexError(f"row {row} is not in [0, {self._num_rows})")
        shard_idx = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._shard(shard_idx), row - int(self._starts[shard_idx])

    def _where(self, row: int) -> str:
        shard, row_in_shard = self._locate(row)
        return shard.describe(row_in_shard)

    def _damaged(self, row: int, error: LayoutError) -> DataError:
        shard, row_in_shard = self._locate(row)
        return DataError(str(error), where=f"{shard.path}: row {row_in_shard}", fix=PREPARE_AGAIN)


def _allow_files(num_files: int) -> None:
    """Raise this process's limit of open files, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < num_files:
        wanted = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

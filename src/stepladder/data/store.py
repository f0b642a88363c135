"""A store, opened for reading: rows of Parquet files, read where they lie."""

from __future__ import annotations

import resource
import time
from functools import cached_property
from pathlib import Path

import numpy as np

from stepladder.config.choices import Encoding, Fit, Split, VerifyPages
from stepladder.data.decode import BadPictureError, decode_picture
from stepladder.data.examples import PictureSource, ReadCost
from stepladder.data.manifest import PREPARE_AGAIN, load_manifest
from stepladder.data.pages import LayoutError
from stepladder.data.shard import Shard
from stepladder.data.verify import list_shards, verify_store
from stepladder.errors import DataError
from stepladder.records import Manifest

__all__ = ["Store", "StoreSplit", "verify_store"]

_FILES_PER_SHARD = 2  # the shard, and the mapping of its index
_OTHER_FILES = 256


class Store:
    """What `stepladder prepare` wrote. Opens shards when a split is asked for.

    Attributes:
        path: its folder.
        manifest: what it holds.
        verify_pages: when the CRC of a picture is checked.
        is_scaled: whether a JPEG much larger than needed is decoded at a part of its size. No part
            of the store's identity: rows, labels and order are the same, pixels differ slightly.
    """

    def __init__(
        self, path: Path, manifest: Manifest, *, verify_pages: VerifyPages, is_scaled: bool = True
    ) -> None:
        self.path = path
        self.manifest = manifest
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
    ) -> Store:
        """Open a store: check its manifest, and that every file is there in its full size.

        Args:
            path: its folder.
            verify_pages: when the CRC of a picture is checked.
            is_scaled: decode a JPEG much larger than needed at a part of its size, as `prepare`
                does for a store of pixels; False: in full.

        Raises:
            DataError: if it is no store, or not whole.
        """
        path = Path(path)
        manifest = load_manifest(path)
        problems = list_shards(path, manifest)
        if problems:
            raise DataError("; ".join(problems[:3]), where=str(path), fix=PREPARE_AGAIN)
        return cls(path, manifest, verify_pages=verify_pages, is_scaled=is_scaled)

    @property
    def fingerprint(self) -> str:
        """Identity of the store: sha256 over its manifest."""
        return self.manifest.fingerprint

    def split(self, split: Split) -> StoreSplit | None:
        """Give a split, or None if the store has no picture of it."""
        if self.manifest.num_rows(split) == 0:
            return None
        if split not in self._splits:
            infos = [info for info in self.manifest.shards if info.split == split and info.num_rows]
            _allow_files(_FILES_PER_SHARD * len(self.manifest.shards) + _OTHER_FILES)
            shards = [Shard(self.path / i.name, i, verify=self.verify_pages) for i in infos]
            self._splits[split] = StoreSplit(self.manifest, shards, is_scaled=self.is_scaled)
        return self._splits[split]

    def close(self) -> None:
        """Close all files; splits that were given out can no longer be read."""
        for split in self._splits.values():
            split.close()
        self._splits.clear()


class StoreSplit(PictureSource):
    """The pictures of one split, by row, in stored order.

    Attributes:
        classes: class names; a label is an index into it.
        fingerprint: that of the store.
    """

    def __init__(self, manifest: Manifest, shards: list[Shard], *, is_scaled: bool = True) -> None:
        self.classes = manifest.classes
        self.fingerprint = manifest.fingerprint
        self.picture_shape = (manifest.size, manifest.size, 3)
        self._encoding = Encoding(manifest.encoding)
        self._fit = Fit(manifest.fit)
        self._size = manifest.size
        self._is_scaled = is_scaled
        self._shards = shards
        ends = np.cumsum([shard.info.num_rows for shard in shards])
        self._starts = np.concatenate([[0], ends[:-1]])  # (num_shards,): first row of each
        self._num_rows = int(ends[-1])
        self.rows_per_task = 32 if self._encoding is Encoding.PIXELS else 4  # about a millisecond

    def __len__(self) -> int:
        return self._num_rows

    @cached_property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        """Label of each row, int64 (len,); read-only.

        Raises:
            DataError: if a label is no index into classes.
        """
        for shard in self._shards:
            shard.check()
        labels = np.concatenate([shard.index.label_array() for shard in self._shards])
        bad = np.flatnonzero((labels < 0) | (labels >= len(self.classes)))
        if bad.size:
            what = f"label {labels[bad[0]]} is none of the {len(self.classes)} classes"
            raise DataError(what, where=self._where(int(bad[0])), fix=PREPARE_AGAIN)
        labels.flags.writeable = False
        return labels

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
        shard_idx = np.searchsorted(self._starts, rows, side="right") - 1
        for used in np.unique(shard_idx):
            self._shards[used].check()
        places = list(
            zip(shard_idx.tolist(), (rows - self._starts[shard_idx]).tolist(), strict=True)
        )
        if self._encoding is Encoding.PIXELS:
            return self._read_pixels(places, out)
        return self._read_jpegs(places, out)

    def close(self) -> None:
        """Close the files."""
        for shard in self._shards:
            shard.close()

    def _read_pixels(self, places: list[tuple[int, int]], out: np.ndarray) -> ReadCost:
        start_s = time.perf_counter()
        view = out.data.cast("B")
        num_bytes = len(view) // len(places)
        begin = 0
        for shard_idx, row in places:
            self._shards[shard_idx].read_into(row, view[begin : begin + num_bytes])
            begin += num_bytes
        return ReadCost(fetch_s=time.perf_counter() - start_s, num_bytes=begin)

    def _read_jpegs(self, places: list[tuple[int, int]], out: np.ndarray) -> ReadCost:
        fetch_s = decode_s = 0.0
        num_bytes = 0
        for picture, (shard_idx, row) in zip(out, places, strict=True):
            shard = self._shards[shard_idx]
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

    def _locate(self, row: int) -> tuple[Shard, int]:
        if not 0 <= row < self._num_rows:
            raise IndexError(f"row {row} is not in [0, {self._num_rows})")
        shard_idx = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._shards[shard_idx], row - int(self._starts[shard_idx])

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

"""A store opened for reading."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

from stepladder.config.choices import Split, VerifyPages
from stepladder.data.remote.remote_store import open_shard_files
from stepladder.data.store.manifest import mend
from stepladder.data.store.shard_files import LocalShardFiles, ShardFiles
from stepladder.data.store.store_split import StoreSplit
from stepladder.data.store.verify import list_shards, verify_store
from stepladder.errors import DataError
from stepladder.records import Manifest

__all__ = ["Store", "StoreSplit", "verify_store"]

_FILES_PER_SHARD = 3  # the shard, its mapping, and that of its index
_OTHER_FILES = 256


class Store:
    """A store written by `stepladder prepare`.

    Local shards are opened with their split, remote ones when a row is read.

    Attributes:
        path: its folder or its URL in an object store.
        manifest: its manifest.
        files: access to its files.
        verify_pages: when the CRC of a picture is checked.
        is_scaled: whether a JPEG much larger than needed is decoded at reduced size. Not part of
            the store's identity: rows, labels and order are the same, pixels differ slightly.
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
        """Open a store; check its manifest, and that every file exists with its full size.

        Args:
            path: its folder or its URL in an object store.
            verify_pages: when the CRC of a picture is checked.
            is_scaled: decode a JPEG much larger than needed at reduced size, as `prepare` does for
                a store of pixels; False: at full size.
            files: access to its files; None: in the folder, or fetched into the cache.

        Raises:
            DataError: if it is not a store, or incomplete.
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
        """Identity of the store: the sha256 of its manifest."""
        return self.manifest.fingerprint

    def split(self, split: Split) -> StoreSplit | None:
        """Return a split, or None if the store has no pictures in it."""
        if self.manifest.num_rows(split) == 0:
            return None
        if split not in self._splits:
            _allow_files(_FILES_PER_SHARD * len(self.manifest.shards) + _OTHER_FILES)
            self._splits[split] = StoreSplit(
                self.path,
                self.manifest,
                split,
                files=self.files,
                verify_pages=self.verify_pages,
                is_scaled=self.is_scaled,
            )
        return self._splits[split]

    def close(self) -> None:
        """Close all files; splits can no longer be read."""
        for split in self._splits.values():
            split.close()
        self._splits.clear()
        self.files.close()


def _allow_files(num_more: int) -> None:
    """Raise this process's limit of open files by num_more, up to the hard limit."""
    with contextlib.suppress(OSError):  # without /proc, the number is a guess
        num_more += len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    num_files = num_more
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < num_files:
        wanted = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

"""Where prepare gets pictures from: hashed in a first pass, read again by row in the second."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.formats import BadPictureError
from stepladder.data.prepare.hashing import Hashed, hash_files, read_hashes
from stepladder.data.prepare.plan import Row
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.sources.listing import Listing, list_pictures
from stepladder.data.sources.source_file import read_file

CHANGED = "changed while the store was made"

ReadRow = Callable[[Row], bytes]
"""Reads a row's bytes, in any thread, and in another process when pickled; raises BadPictureError
if they cannot be read or are not those hashed."""


@dataclass(frozen=True)
class Workers:
    """Threads to work in.

    Attributes:
        pool: the threads.
        ahead: pieces of work under way at once.
    """

    pool: Executor
    ahead: int


@dataclass(frozen=True)
class HashedListing:
    """What a source holds, and the hash of each picture in the listing's order."""

    listing: Listing
    hashes: list[Hashed]


class Pictures(ABC):
    """The pictures of one source."""

    @abstractmethod
    def hash(
        self,
        work: WorkFolder,
        workers: Workers,
        *,
        earlier: Path,
        on_done: Callable[[int, int], None],
    ) -> HashedListing:
        """Hash each picture; what an earlier run hashed and has not changed need not be read.

        Args:
            work: where to keep what a second call goes on with.
            workers: threads to read in.
            earlier: hashes that stand beside an older store; may be missing.
            on_done: told the number of pictures done, and of all.
        """

    @abstractmethod
    def reader(self) -> ReadRow:
        """Return what reads a picture's bytes again, and is sure that they are those hashed."""


@dataclass(frozen=True)
class FileReader:
    """Reads pictures that are files.

    Attributes:
        root: what their paths start at.
        max_pixels: bounds the size of a file that is read.
    """

    root: Path
    max_pixels: int

    def __call__(self, row: Row) -> bytes:
        """Read a file."""
        path = f"{self.root}/{row.path}"
        data, status = read_file(path, max_pixels=self.max_pixels)
        if not row.hashed.holds(data, path, status):
            raise BadPictureError(CHANGED)
        return data


class FilePictures(Pictures):
    """Pictures that are files: of folders, or named by a CSV.

    Raises:
        UsageError: if the source is missing or ambiguous.
        DataError: if it holds no pictures, or a bad table.
    """

    def __init__(self, config: PrepareConfig) -> None:
        self._max_pixels = config.max_pixels
        self._listing = list_pictures(config)

    def hash(
        self,
        work: WorkFolder,
        workers: Workers,
        *,
        earlier: Path,
        on_done: Callable[[int, int], None],
    ) -> HashedListing:
        """Hash each file; those with the size, time and inode of before are not opened."""
        listing = self._listing
        hashes = hash_files(
            listing,
            known=read_hashes(earlier, work.hashes),
            save_to=work.hashes,
            pool=workers.pool,
            ahead=workers.ahead,
            max_pixels=self._max_pixels,
            on_done=lambda done: on_done(done, len(listing.pictures)),
        )
        return HashedListing(listing, hashes)

    def reader(self) -> FileReader:
        """Return a reader of files."""
        return FileReader(self._listing.root, self._max_pixels)

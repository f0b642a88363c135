"""Sources of prepare: pictures are hashed in the first pass and read again in the second."""

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
"""Reads a row's bytes; thread-safe and picklable. Raises BadPictureError if they cannot be read or
differ from those that were hashed."""


@dataclass(frozen=True)
class Workers:
    """A thread pool.

    Attributes:
        pool: the executor.
        ahead: maximum number of tasks in flight.
    """

    pool: Executor
    ahead: int


@dataclass(frozen=True)
class HashedListing:
    """A listing, and the hash of each of its pictures in the same order."""

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
        """Hash each picture; hashes of unchanged pictures are reused from an earlier run.

        Args:
            work: folder for the state that a later call resumes from.
            workers: threads to read in.
            earlier: file with the hashes of an older store; may be missing.
            on_done: called with the number of pictures done and the total.
        """

    @abstractmethod
    def reader(self) -> ReadRow:
        """Return a function that reads a picture again and checks its hash."""


@dataclass(frozen=True)
class FileReader:
    """Reads pictures from files.

    Attributes:
        root: folder that their paths are relative to.
        max_pixels: limits the size of a file that is read.
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
    """Pictures stored as files: in folders, or listed in a CSV.

    Raises:
        UsageError: if the source is missing or ambiguous.
        DataError: if it contains no pictures, or the table is invalid.
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
        """Hash each file; files with unchanged size, time and inode are not opened."""
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

"""Sources of prepare: pictures are hashed in the first pass and read again in the second."""

from __future__ import annotations

import difflib
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
from stepladder.data.sources.folders.folders import list_walk
from stepladder.data.sources.folders.reading import folder_options
from stepladder.data.sources.label_tables.csv_table import list_table
from stepladder.data.sources.label_tables.reading import given_options
from stepladder.data.sources.labels.metadata_folder import list_metadata
from stepladder.data.sources.listing import Listing, require_classes
from stepladder.data.sources.not_read.other_files import refuse_other_files
from stepladder.data.sources.source_file import read_file
from stepladder.data.sources.walk import Skipped, Walk
from stepladder.errors import UsageError

CHANGED = "changed while the store was made"

ReadRow = Callable[[Row], bytes]
"""Reads a row's bytes; thread-safe and picklable. Raises BadPictureError if they cannot be read or
differ from those that were hashed."""


def list_pictures(config: PrepareConfig) -> Listing:
    """List a folder of class folders or of train/val/test folders, or a table.

    Raises:
        UsageError: if the source is missing or ambiguous.
        DataError: if it has no pictures, an empty class, a single class, or a bad table.
    """
    source = config.source.expanduser()
    if source.is_dir():
        root = source.resolve()
        listing = list_metadata(source, config) or list_walk(
            Walk(str(root), config.follow_symlinks, Skipped()), root, folder_options(config)
        )
    elif source.is_file():
        refuse_other_files(source, given_options(config))
        listing = list_table(source, config)
    else:
        raise UsageError(
            "the source does not exist"
            if not source.exists()
            else "the source is neither a folder nor a file",
            where=str(source),
            fix=_did_you_mean(source)
            + "Set --source to a folder of class folders (optionally inside train/val/test), a CSV "
            "or JSON lines with the columns path and label, a Delta table, or Parquet, .tar or "
            ".tar.gz files (one file, a folder or a pattern).",
        )
    return require_classes(listing, str(source))


def _did_you_mean(source: Path) -> str:
    """Suggest an existing path with a similar name in the same folder."""
    try:
        names = [path.name for path in source.parent.iterdir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(source.name, names, n=1)
    return f"Did you mean {source.with_name(near[0])}? " if near else ""


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

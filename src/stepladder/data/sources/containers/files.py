"""Find the files of a source: one, a folder of them, a pattern, or a prefix in an object store.

What names of files say is read here too: patterns of many, splits, columns.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import io
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from stepladder.config.choices import Split
from stepladder.data.remote.arrow_files import object_filesystem
from stepladder.data.remote.places import ObjectPlace, object_place
from stepladder.data.remote.retries import StoreAwayError
from stepladder.data.sources.listing import SPLIT_WORDS, name_some
from stepladder.data.sources.walk import Skipped, is_hidden
from stepladder.errors import DataError, StepladderError, UsageError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem
else:
    FileInfo = FileSystem = Any

_AHEAD_BYTES = 1 << 20
_FAR_AHEAD_BYTES = 8 << 20

_MAGIC = re.compile(r"[*?\[]")
_MAGIC_OR_BRACE = re.compile(r"[*?\[{]")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_EXPANDED = 1_000_000
_SPLIT_WORD = re.compile(rf"({'|'.join(sorted(SPLIT_WORDS, key=len, reverse=True))})(?![a-z])")


def is_pattern(source: Path) -> bool:
    """Return True if a path is a pattern of names, and no file has that very name."""
    return bool(_MAGIC_OR_BRACE.search(str(source))) and not source.exists()


def is_open(pattern: str) -> bool:
    """Return True if a pattern without braces may stand for any number of names."""
    return bool(_MAGIC.search(pattern))


def fixed_part(pattern: str) -> str:
    """Return what stands before the first sign of a pattern; all of a plain name."""
    match = _MAGIC_OR_BRACE.search(pattern)
    return pattern[: match.start()] if match else pattern


def expand_braces(pattern: str) -> list[str]:
    """Write out `{000..123}` and `{a,b}`, as a shell does.

    Raises:
        UsageError: if it stands for more than a million names.
    """
    begin = pattern.find("{")
    end = pattern.find("}", begin)
    if begin < 0 or end < 0:
        return [pattern]
    inner = pattern[begin + 1 : end]
    span = _RANGE.fullmatch(inner)
    if span:
        first, last, width = int(span[1]), int(span[2]), len(span[1])
        if abs(last - first) >= _MAX_EXPANDED:
            raise UsageError(
                f"{{{inner}}} stands for more than a million names",
                where=pattern,
                fix="Give the folder, or a pattern with *.",
            )
        words = [str(number).zfill(width) for number in range(first, last + 1)]
    else:
        words = inner.split(",")
    rest = expand_braces(pattern[end + 1 :])
    return [pattern[:begin] + word + tail for word in words for tail in rest]


def splits_by_name(names: list[str], where: Path) -> list[Split | None]:
    """Read splits off names of files, as in `train-00000-of-00004.parquet` or `val/0.tar`.

    One file alone is no split: it was chosen.

    Raises:
        DataError: if some names tell a split and others do not, or none tells train.
    """
    splits = [_split_of(name) for name in names]
    named = {split for split in splits if split is not None}
    if len(names) == 1 or not named:
        return [None] * len(names)
    others = [name for name, split in zip(names, splits, strict=True) if split is None]
    if others:
        raise DataError(
            f"some files are named for a split and others are not: {name_some(others)}",
            where=str(where),
            fix="Name them all, as in train-0 and test-0, or give a pattern of those you want.",
        )
    if Split.TRAIN not in named:
        raise DataError(
            f"files for {', '.join(sorted(named))}, but none for train",
            where=str(where),
            fix="Add those of train, or name the files without a split: val is then drawn.",
        )
    return splits


def partition_values(name: str) -> dict[str, str]:
    """Read `column=value` off the folders of a file's name, as Hive and Spark write them."""
    pairs = [part.partition("=") for part in name.split("/")[:-1] if "=" in part]
    return {key: unquote(value) for key, _, value in pairs if key}


def _split_of(name: str) -> Split | None:
    *folders, file = name.lower().split("/")
    for folder in folders:
        if folder in SPLIT_WORDS:
            return SPLIT_WORDS[folder]
    match = _SPLIT_WORD.match(file)
    return SPLIT_WORDS[match[1]] if match else None


@dataclass(frozen=True)
class SourceFile:
    """A file that pictures lie in.

    Attributes:
        name: relative to the source, "/" between parts.
        size_bytes: of it.
        mtime_ns: when it was changed.
        key: holds as long as the file is the same.
        filesystem, path: what opens it.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    key: str
    filesystem: FileSystem
    path: str

    def open(self) -> Any:
        """Open it for reading at any place; a pyarrow file.

        Raises:
            DataError: if it is gone, or may not be read.
            ResourceError: if the object store does not answer, or refuses.
        """
        try:
            return self.filesystem.open_input_file(self.path)
        except FileNotFoundError:
            raise DataError(
                "the file is gone", where=self.name, fix="Put it back, or run prepare again."
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise DataError(
                f"cannot be opened: {reason.partition(chr(10))[0][:200]}",
                where=self.name,
                fix="Look at its permissions and those of its folder.",
            ) from None

    def open_ahead(self) -> io.BufferedReader:
        """Open it for reading front to back: each read of an object store may take 100 ms."""
        return io.BufferedReader(self.open(), self.ahead_bytes)

    @property
    def place(self) -> ObjectPlace | None:
        """Where it is in an object store; None: on this machine."""
        return _place_of(self.filesystem, self.path)

    @property
    def ahead_bytes(self) -> int:
        """How much is read at once."""
        return _FAR_AHEAD_BYTES if self.is_far else _AHEAD_BYTES

    @property
    def is_far(self) -> bool:
        """Whether each read is a request to another machine."""
        return self.place is not None

    def refuse_changed(self) -> None:
        """Be sure that the file is still the one that was listed.

        Raises:
            DataError: if it is gone or was written to.
        """
        try:
            info = self.filesystem.get_file_info(self.path)
        except OSError as error:
            raise _unseen(error, self.name) from None
        if (info.size, info.mtime_ns) != (self.size_bytes, self.mtime_ns):
            raise DataError(
                "changed while it was read",
                where=self.name,
                fix="Type the same command again when nothing writes to it.",
            )


@dataclass(frozen=True)
class FoundFiles:
    """The files of a source, sorted by name, and the folder that the names are relative to."""

    root: Path
    files: list[SourceFile]
    skipped: Skipped = field(default_factory=Skipped)


def find_files(source: Path, *, suffixes: tuple[str, ...], follow_symlinks: bool) -> FoundFiles:
    """List the files with these endings in a folder or prefix, or those that a pattern names.

    What begins with a dot or an underscore is left out, as Spark's and other writers' notes do.

    Raises:
        UsageError: if nothing is there.
    """
    skipped = Skipped()
    place = object_place(source)
    if place is not None:
        return FoundFiles(source, _remote_files(place, suffixes), skipped)
    root, paths = _local_paths(source)
    found = []
    for path in paths:
        entries = [path]
        if path.is_dir():
            entries = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
        for entry in entries:
            name = os.path.relpath(entry, root).replace(os.sep, "/")
            if _is_note(name) or (path.is_dir() and not entry.name.lower().endswith(suffixes)):
                continue
            reason = _why_not(entry, root, follow_symlinks=follow_symlinks)
            if reason:
                skipped.add(name, reason)
            else:
                found.append(_local_file(entry, name))
    if not found:
        raise UsageError(
            f"no file that ends in {' or '.join(suffixes)}",
            where=str(source),
            why=f"Left out: {skipped.describe()}" if skipped.counts else None,
            fix="Give --source a file, a folder of them, or a pattern in quotes.",
        )
    return FoundFiles(root, sorted(found, key=lambda file: file.name), skipped)


def cut_off(error: StoreAwayError, after: str) -> StoreAwayError:
    """Add to why an object store gave no more of a file how far it was read."""
    error.where = f"{error.where}: {after}"
    error.why = f"{error.why} What was read to its end is kept."
    error.fix = "Type the same command again: it goes on from there."
    return error


@contextlib.contextmanager
def listing_named(place: ObjectPlace) -> Iterator[None]:
    """Turn what a listing raises into an error that says what to do, and name the place given.

    Raises:
        UsageError: if nothing is there, or the bucket is missing.
        ResourceError: if the object store does not answer, or refuses.
    """
    try:
        yield
    except StepladderError as error:
        error.where = str(place)
        raise
    except FileNotFoundError:
        raise UsageError(
            "nothing is there", where=str(place), fix="Look at the name of the object or prefix."
        ) from None


def file_of(filesystem: FileSystem, root: str, name: str) -> SourceFile | None:
    """Return a file by its name below a folder of a file system; None if it is not there."""
    from pyarrow.fs import FileType

    path = f"{root}/{name}"
    try:
        info = filesystem.get_file_info(path)
    except OSError as error:
        raise _unseen(error, name) from None
    return _remote_file(filesystem, info, name) if info.type == FileType.File else None


def _place_of(filesystem: FileSystem, path: str) -> ObjectPlace | None:
    bucket, _, key = path.partition("/")
    return None if filesystem.type_name.startswith("local") else ObjectPlace(bucket, key)


def _unseen(error: OSError, name: str) -> DataError:
    return DataError(
        f"cannot be looked at: {error.strerror or error}",
        where=name,
        fix="Look at its permissions and those of its folder.",
    )


def _is_note(name: str) -> bool:
    return any(is_hidden(part) or part.startswith("_") for part in name.split("/"))


def _local_paths(source: Path) -> tuple[Path, list[Path]]:
    """Return the folder that names are relative to, and the files and folders to look at."""
    if source.is_dir():
        return source.resolve(), [source.resolve()]
    if not is_pattern(source):
        return source.parent.resolve(), [source]
    fixed = fixed_part(str(source))
    root = Path(fixed if fixed.endswith("/") else os.path.dirname(fixed) or ".")  # noqa: PTH120
    found: dict[str, None] = {}
    missing = []
    for pattern in expand_braces(str(source)):
        matches = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (a whole path)
        if not matches and not is_open(pattern):
            missing.append(pattern)
        found.update(dict.fromkeys(matches))
    if missing:
        raise UsageError(
            f"{len(missing)} of the files that the pattern names are missing: {name_some(missing)}",
            where=str(source),
            fix="Add them, or write the numbers that are there.",
        )
    return root.resolve(), [root.resolve() / os.path.relpath(path, root) for path in found]


def _why_not(path: Path, root: Path, *, follow_symlinks: bool) -> str | None:
    try:
        status = path.stat()
    except OSError as error:
        return f"file(s) that cannot be read: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):  # a FIFO would block
        return "neither file nor folder"
    if path.is_symlink() and not follow_symlinks and not path.resolve().is_relative_to(root):
        return "link(s) that leads out of the source (--follow-symlinks)"
    return None


def _local_file(path: Path, name: str) -> SourceFile:
    from pyarrow.fs import LocalFileSystem

    status = path.stat()
    key = f"{name} {status.st_size} {status.st_mtime_ns} {status.st_ino}"
    return SourceFile(
        name, status.st_size, status.st_mtime_ns, key, LocalFileSystem(), str(path.resolve())
    )


def _remote_files(place: ObjectPlace, suffixes: tuple[str, ...]) -> list[SourceFile]:
    from pyarrow.fs import FileSelector, FileType

    filesystem = object_filesystem()
    whole = f"{place.bucket}/{place.key}".rstrip("/")
    fixed = fixed_part(whole)
    root = whole if fixed == whole else fixed.rpartition("/")[0]
    with listing_named(place):
        if fixed == whole:
            info = filesystem.get_file_info(whole)
            if info.type == FileType.File:
                return [_remote_file(filesystem, info, whole.rpartition("/")[2])]
        infos = filesystem.get_file_info(FileSelector(root, recursive=True))
    patterns = expand_braces(whole) if fixed != whole else None
    files = []
    for info in infos:
        name = info.path[len(root) + 1 :]
        is_wanted = (
            info.path.lower().endswith(suffixes)
            if patterns is None
            else any(fnmatch.fnmatchcase(info.path, pattern) for pattern in patterns)
        )
        if info.type == FileType.File and is_wanted and not _is_note(name):
            files.append(_remote_file(filesystem, info, name))
    if not files:
        raise UsageError(
            f"no object that ends in {' or '.join(suffixes)}",
            where=str(place),
            fix="Give --source a prefix that holds some, or a pattern in quotes.",
        )
    return sorted(files, key=lambda file: file.name)


def _remote_file(filesystem: FileSystem, info: FileInfo, name: str) -> SourceFile:
    key = f"{name} {info.size} {info.mtime_ns}"
    return SourceFile(name, info.size, info.mtime_ns, key, filesystem, info.path)

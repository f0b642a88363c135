"""Find the files of a source: a file, a folder, a pattern, or a prefix in an object store.

Also parses file names: patterns, splits and partition columns.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import io
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from stepladder.config.choices import Split
from stepladder.data.decoding.formats import LFS_POINTER, name_format
from stepladder.data.remote.arrow_files import object_filesystem
from stepladder.data.remote.places import ObjectPlace, object_place
from stepladder.data.remote.retries import StoreAwayError
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.not_read.not_here import pull_lfs, remedy
from stepladder.data.sources.splits.split_names import SPLIT_WORDS, assign_splits, named_as_splits
from stepladder.data.sources.walk import OUTSIDE, Skipped, is_hidden
from stepladder.errors import DataError, StepladderError, UsageError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem
else:
    FileInfo = FileSystem = Any

_AHEAD_BYTES = 1 << 20
_FAR_AHEAD_BYTES = 8 << 20
_MAX_POINTER = 1024  # bytes, by the specification of Git LFS

_MAGIC = re.compile(r"[*?\[]")
_MAGIC_OR_BRACE = re.compile(r"[*?\[{]")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_EXPANDED = 1_000_000
_SPLIT_WORD = re.compile(rf"({'|'.join(sorted(SPLIT_WORDS, key=len, reverse=True))})(?![a-z])")


def is_pattern(source: Path) -> bool:
    """Return True if a path is a glob pattern and no file with that exact name exists."""
    return bool(_MAGIC_OR_BRACE.search(str(source))) and not source.exists()


def is_open(pattern: str) -> bool:
    """Return True if a pattern without braces can match any number of names."""
    return bool(_MAGIC.search(pattern))


def fixed_part(pattern: str) -> str:
    """Return the part of a pattern before the first wildcard; all of a plain name."""
    match = _MAGIC_OR_BRACE.search(pattern)
    return pattern[: match.start()] if match else pattern


def expand_braces(pattern: str) -> list[str]:
    """Expand `{000..123}` and `{a,b}`, as a shell does.

    Raises:
        UsageError: if a range expands to more than a million names.
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
                f"{{{inner}}} is short for more than a million file names",
                where=pattern,
                fix="Set --source to the folder of the files, or write * instead of the range.",
            )
        words = [str(number).zfill(width) for number in range(first, last + 1)]
    else:
        words = inner.split(",")
    rest = expand_braces(pattern[end + 1 :])
    return [pattern[:begin] + word + tail for word in words for tail in rest]


def splits_by_name(names: list[str], where: Path) -> list[Split | None]:
    """Return splits from file names such as `train-00000-of-00004.parquet` or `val/0.tar`.

    The word may be anywhere in a name: `imagenet-val-000000.tar`. The name of a single file is not
    read as a split.

    Raises:
        DataError: if only some names contain a split, or none contains train.
    """
    splits = [_split_of(name) for name in names]
    inside = assign_splits(
        name.rpartition("/")[2] for name, split in zip(names, splits, strict=True) if split is None
    )
    pairs = zip(names, splits, strict=True)
    splits = [
        inside.get(name.rpartition("/")[2]) if split is None else split for name, split in pairs
    ]
    if not any(splits):
        splits = _splits_of_folders(names)
    named = {split for split in splits if split is not None}
    if len(names) == 1 or not named:
        return [None] * len(names)
    others = [name for name, split in zip(names, splits, strict=True) if split is None]
    if others:
        raise DataError(
            "the names of some source files contain train, val or test, but these names do "
            f"not: {name_some(others)}",
            where=str(where),
            why="It is therefore unknown which split the pictures in these files belong to.",
            fix="Rename them, such as to train-0.tar, or set --source to a quoted pattern that "
            "leaves them out, such as 'FOLDER/train-*'.",
        )
    if Split.TRAIN not in named:
        raise DataError(
            f"the source has files for {' and '.join(sorted(named))}, by their names, but none "
            "for train",
            where=str(where),
            why="A model is trained on the pictures of train.",
            fix="Add files whose names begin with train. Or rename all files so that none is named "
            "after a split: then some pictures are drawn at random for val, and the rest is train.",
        )
    return splits


def partition_values(name: str) -> dict[str, str]:
    """Return the partition values in a file's path (`column=value`, as in Hive and Spark)."""
    pairs = [part.partition("=") for part in name.split("/")[:-1] if "=" in part]
    return {key: unquote(value) for key, _, value in pairs if key}


def _split_of(name: str) -> Split | None:
    *folders, file = name.lower().split("/")
    for folder in folders:
        if folder in SPLIT_WORDS:
            return SPLIT_WORDS[folder]
    match = _SPLIT_WORD.match(file)
    return SPLIT_WORDS[match[1]] if match else None


def _splits_of_folders(names: list[str]) -> list[Split | None]:
    """Return splits from names of folders such as `imagenet-val/0.tar`, if train is among them."""
    tops = [name.partition("/")[0] if "/" in name else "" for name in names]
    found = assign_splits(named_as_splits(dict.fromkeys(tops)))
    has_several = Split.TRAIN in found.values() and len(set(found.values())) > 1
    return [found.get(top) if has_several else None for top in tops]


@dataclass(frozen=True)
class SourceFile:
    """A file that contains pictures.

    Attributes:
        name: path relative to the source, with "/" as separator.
        size_bytes: size of the file.
        mtime_ns: modification time.
        key: identity; changes if the file changes.
        filesystem, path: how to open it.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    key: str
    filesystem: FileSystem
    path: str

    def open(self) -> Any:
        """Open the file for random access; returns a pyarrow file.

        Raises:
            DataError: if it does not exist or cannot be opened.
            ResourceError: if the object store does not respond or denies access.
        """
        try:
            return self.filesystem.open_input_file(self.path)
        except FileNotFoundError:
            raise DataError(
                "this source file was deleted while the pictures were read",
                where=self.name,
                fix="Restore the file, or run the same command again to prepare without it.",
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise DataError(
                f"the source file cannot be opened: {reason.partition(chr(10))[0][:200]}",
                where=self.name,
                fix="Make the file readable for your user (see ls -l), then run the same command "
                "again.",
            ) from None

    def open_ahead(self) -> io.BufferedReader:
        """Open the file for sequential reading; a read from an object store may take 100 ms."""
        return io.BufferedReader(self.open(), self.ahead_bytes)

    @property
    def place(self) -> ObjectPlace | None:
        """Address in an object store; None: a local file."""
        return _place_of(self.filesystem, self.path)

    @property
    def ahead_bytes(self) -> int:
        """Size of the read-ahead buffer."""
        return _FAR_AHEAD_BYTES if self.is_far else _AHEAD_BYTES

    @property
    def is_far(self) -> bool:
        """Whether each read is a request to another machine."""
        return self.place is not None

    def refuse_changed(self) -> None:
        """Check that the file has not changed since it was listed.

        Raises:
            DataError: if it was removed or modified.
        """
        try:
            info = self.filesystem.get_file_info(self.path)
        except OSError as error:
            raise _unseen(error, self.name) from None
        if (info.size, info.mtime_ns) != (self.size_bytes, self.mtime_ns):
            raise DataError(
                "the source file changed while its pictures were read",
                where=self.name,
                why="Some of the pictures may be from before the change, and others from after it.",
                fix="Run the same command again when no other program writes to the file.",
            )


@dataclass(frozen=True)
class FoundFiles:
    """The files of a source, sorted by name, and the folder that the names are relative to."""

    root: Path
    files: list[SourceFile]
    skipped: Skipped = field(default_factory=Skipped)


def find_files(source: Path, *, suffixes: tuple[str, ...], follow_symlinks: bool) -> FoundFiles:
    """List the files with these extensions in a folder or prefix, or those matching a pattern.

    Skips names that begin with a dot or an underscore, such as Spark's metadata files.

    Raises:
        UsageError: if no file is found.
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
    _refuse_pointers(found, source)
    if not found:
        follow = remedy(skipped, source) if OUTSIDE in skipped.counts else None
        raise UsageError(
            f"the source has no file that ends in {' or '.join(suffixes)}",
            where=str(source),
            why=f"Skipped: {skipped.describe()}" if skipped.counts else None,
            fix=follow
            or "Set --source to such a file, a folder of such files, or a pattern in quotes, such "
            f"as 'FOLDER/*{suffixes[0]}'.",
        )
    return FoundFiles(root, sorted(found, key=lambda file: file.name), skipped)


def cut_off(error: StoreAwayError, after: str) -> StoreAwayError:
    """Add how far a file was read to the error of an object store."""
    error.where = f"{error.where}: {after}"
    error.why = f"{error.why} Parts that were read completely are kept."
    error.fix = "Run the same command again to resume."
    return error


@contextlib.contextmanager
def listing_named(place: ObjectPlace) -> Iterator[None]:
    """Convert the errors of a listing to ones that name the address and a fix.

    Raises:
        UsageError: if the object, prefix or bucket does not exist.
        ResourceError: if the object store does not respond or denies access.
    """
    try:
        yield
    except StepladderError as error:
        error.where = str(place)
        raise
    except FileNotFoundError:
        raise UsageError(
            "the object store has no such bucket, object or prefix",
            where=str(place),
            fix="Correct the address, s3://BUCKET/PREFIX.",
        ) from None


def file_of(filesystem: FileSystem, root: str, name: str) -> SourceFile | None:
    """Return a file by its name below a folder of a file system; None if it does not exist."""
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
        f"the source file cannot be accessed: {error.strerror or error}",
        where=name,
        fix="Make the file and its folder readable for your user (see ls -l), then run the same "
        "command again.",
    )


def _is_note(name: str) -> bool:
    return any(is_hidden(part) or part.startswith("_") for part in name.split("/"))


def _local_paths(source: Path) -> tuple[Path, list[Path]]:
    """Return the folder that names are relative to, and the files and folders to list."""
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
            f"--source names {len(missing)} {'files' if len(missing) > 1 else 'file'} that "
            f"{'do' if len(missing) > 1 else 'does'} not exist: {name_some(missing)}",
            where=str(source),
            fix="Add what is missing, or change the numbers or names in the braces { } to those of "
            "existing files.",
        )
    return root.resolve(), [root.resolve() / os.path.relpath(path, root) for path in found]


def _why_not(path: Path, root: Path, *, follow_symlinks: bool) -> str | None:
    try:
        status = path.stat()
    except OSError as error:
        return f"file(s) that cannot be read: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):  # a FIFO would block
        return "neither a file nor a folder"
    if path.is_symlink() and not follow_symlinks and not path.resolve().is_relative_to(root):
        return OUTSIDE
    return None


def _refuse_pointers(files: Sequence[SourceFile], source: Path) -> None:
    """Refuse pointers of Git LFS, which a clone without it has in place of the files.

    Raises:
        DataError: if one of the files is one.
    """
    names = [file.name for file in files if file.size_bytes <= _MAX_POINTER and _is_pointer(file)]
    if names:
        raise DataError(
            f"{len(names)} of {len(files)} files are pointers of Git LFS, without their content: "
            f"{name_some(names)}",
            where=str(source),
            fix=pull_lfs(source),
        )


def _is_pointer(file: SourceFile) -> bool:
    with Path(file.path).open("rb") as opened:
        return name_format(opened.read(_MAX_POINTER)) == LFS_POINTER


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
            f"the object store has no object here whose name ends in {' or '.join(suffixes)}",
            where=str(place),
            fix="Set --source to an address below which there are some, s3://BUCKET/PREFIX, or a "
            f"pattern in quotes, such as 's3://BUCKET/*{suffixes[0]}'.",
        )
    return sorted(files, key=lambda file: file.name)


def _remote_file(filesystem: FileSystem, info: FileInfo, name: str) -> SourceFile:
    key = f"{name} {info.size} {info.mtime_ns}"
    return SourceFile(name, info.size, info.mtime_ns, key, filesystem, info.path)

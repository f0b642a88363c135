"""Find the files of a table: a Parquet file, folder or glob, or a Delta table."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyarrow import fs

from stepladder.config.choices import Split
from stepladder.data.remote.arrow_files import object_filesystem
from stepladder.data.remote.places import (
    address_refused,
    object_place,
    place_meant,
    secret_refused,
)
from stepladder.data.sources.delta_log import LOG_FOLDER, DeltaVersion, VersionOption, read_version
from stepladder.data.sources.safe_arrow import first_line, require_safe_pyarrow
from stepladder.data.sources.splits.split_names import SPLIT_WORDS
from stepladder.data.tables.cache_users import MANIFEST
from stepladder.errors import DataError, ResourceError, StepladderError, UsageError

_SUFFIXES = (".parquet", ".parq", ".pq")
_GLOB = re.compile(r"[*?\[]")
_ONE_OF = re.compile(r"\[!?+(?:\][^]/]*|[^]/]+)\]")  # a leading `]` is literal
_GLOB_WORD = re.compile(rf"(\*\*/|\*\*|\*|\?|{_ONE_OF.pattern})")
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class TableFile:
    """A file of a table.

    Attributes:
        name: path relative to the table, with `/` as separator.
        path: path on the table's file system.
        constants: values of partition columns, from its folder or the Delta log.
        keep: for each row, whether it is still in the table; see `DeltaFile.keep`.
        changed_ns: modification time; None if the file never changes, as in a Delta table.
    """

    name: str
    path: str
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)
    keep: np.ndarray | None = None
    changed_ns: int | None = None


@dataclass(frozen=True)
class Listing:
    """The files of a table, sorted by name.

    Attributes:
        place: path or address of the table, as the user wrote it.
        version: version of a Delta table; None: plain files.
        schema: schema in the log of a Delta table.
        warning: a warning for the user.
    """

    place: str
    file_system: fs.FileSystem
    files: tuple[TableFile, ...]
    version: int | None = None
    schema: pa.Schema | None = None
    warning: str | None = None


def in_file_system(place: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of an address and the path on it.

    Raises:
        DataError: if the address is invalid.
        UsageError: if it contains a secret, or its scheme has another name here.
    """
    meant = None if place.startswith("file://") else place_meant(place)
    if meant is not None and object_place(place) is None:
        raise address_refused(place, fix=meant)
    if not is_address(place):
        return fs.LocalFileSystem(), str(Path(place.removeprefix("file://")).absolute())
    store = object_place(place)
    if store is not None:
        return object_filesystem(), f"{store.bucket}/{store.key}".rstrip("/")
    scheme, _, rest = place.partition("://")
    if re.match(r"[^/]*:[^/]*@", rest):
        raise secret_refused(scheme, rest)
    try:
        file_system, path = fs.FileSystem.from_uri(place)
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise DataError(
            f"the file system of this address cannot be opened ({error})",
            where=place,
            fix="Pass a local path, or an address s3://BUCKET/PREFIX.",
        ) from None
    return file_system, path


def written(path: str | Path) -> str:
    """Return an address as the user wrote it; Path turns two slashes into one."""
    store = object_place(path)
    return str(path) if store is None else str(store)


def is_address(place: str) -> bool:
    """Return True if a place is not on the local file system."""
    return "://" in place and not place.startswith("file://")


def list_table(
    place: str, version: int | None, option: VersionOption = VersionOption.OPEN_TABLE
) -> Listing:
    """List the files of a Delta table at a version, or of any other table.

    Args:
        option: option that error messages name.

    Raises:
        UsageError: if a version is given for a table without versions, or pyarrow is too old.
        DataError: if the table does not exist or is incomplete.
        ResourceError: if an object store does not respond or denies access.
    """
    require_safe_pyarrow()
    file_system, path = in_file_system(place)
    with _named_if_unreachable(place):
        [info] = file_system.get_file_info([posixpath.join(path, LOG_FOLDER)])
    if info.type == fs.FileType.Directory:
        return _list_pinned(place) if version is None else _list_delta(place, version, option)
    if version is not None and _is_there(file_system, path, place):
        raise UsageError(
            "a version of the table was requested, but this is not a Delta table, and other tables "
            "have no versions",
            where=place,
            fix=f"Leave out version, or pass the folder of a Delta table, which contains "
            f"{LOG_FOLDER}.",
        )
    return list_files(place)


def _is_there(file_system: fs.FileSystem, path: str, place: str) -> bool:
    """Return True if a path exists, or is a glob that may match files."""
    with _named_if_unreachable(place):
        [info] = file_system.get_file_info([path])
    return info.type != fs.FileType.NotFound or bool(_GLOB.search(path))


def _list_pinned(place: str) -> Listing:
    version = pinned_version(place)
    if version is None:
        return _list_delta(place, None, VersionOption.OPEN_TABLE)
    with contextlib.suppress(UsageError):  # the version belongs to another table
        return _list_delta(place, version, VersionOption.RUN)
    return _list_delta(place, None, VersionOption.RUN)


def _list_delta(place: str, version: int | None, option: VersionOption) -> Listing:
    file_system, root = in_file_system(place)
    found = _delta_version(Path(place if is_address(place) else root), version, option)
    kinds = {field.name: field.type for field in found.schema}
    keys = sorted({key for file in found.files for key in file.values})
    values = {
        key: pa.array([file.values.get(key) for file in found.files], kinds.get(key))
        for key in keys
    }
    files = [
        TableFile(
            file.name,
            posixpath.join(root, file.name),
            {key: values[key][i] for key in keys},
            None if file.keep is None else np.asarray(file.keep, dtype=bool),
        )
        for i, file in enumerate(found.files)
    ]
    if not files:
        raise DataError(
            f"version {found.version} of the Delta table has no rows to train on",
            where=place,
            fix=f"Add rows to the table, or read another version of it: {option.of()}.",
        )
    warning = " ".join(found.warnings) or None
    return Listing(
        place,
        file_system,
        tuple(files),
        version=found.version,
        schema=found.schema,
        warning=warning,
    )


def _delta_version(place: Path, version: int | None, option: VersionOption) -> DeltaVersion:
    """Read a version; a forked process reuses its parent's result, as deltalake fails there."""
    key = place, version
    process, found = _seen.get(key, (os.getpid(), None))
    if found is None or process == os.getpid():
        found = read_version(place, version, option)
        _seen[key] = os.getpid(), found
    return found


_seen: dict[tuple[Path, int | None], tuple[int, DeltaVersion]] = {}


def list_files(place: str) -> Listing:
    """List the Parquet files of a path, folder or glob.

    Skips hidden files and the metadata files of writers (`_SUCCESS`). Folders named `key=value`
    become columns.

    Raises:
        UsageError: if the glob is invalid.
        DataError: if there are no files, or a writer has not finished.
        ResourceError: if an object store does not respond or denies access.
    """
    file_system, path = in_file_system(place)
    with _named_if_unreachable(place):
        root, infos = _found(file_system, path, place)
    if any("_temporary" in _parts(info.path, root) for info in infos):
        raise DataError(
            "the table is still being written, because Spark's folder _temporary is in it",
            where=place,
            why="Some of its files may still be missing.",
            fix="Wait until the Spark job has ended. If it was killed, remove _temporary, and "
            "write the table again.",
        )
    found = {
        posixpath.relpath(info.path, root): info
        for info in infos
        if info.type == fs.FileType.File and _is_data(_parts(info.path, root), info.path == path)
    }
    if not found:
        raise DataError(
            "there are no Parquet files of a table here"
            + ("" if infos else ": the file, folder or bucket does not exist"),
            where=place,
            fix=f"Pass a Parquet file, a folder of {_SUFFIXES[0]} files, or a pattern such as "
            f"'FOLDER/*{_SUFFIXES[0]}'.",
        )
    is_ours = isinstance(file_system, fs.LocalFileSystem) and (Path(root) / MANIFEST).is_file()
    files = [
        TableFile(
            name, posixpath.join(root, name), changed_ns=None if is_ours else info.mtime_ns or 0
        )
        for name, info in sorted(found.items())
    ]
    return Listing(place, file_system, tuple(_with_partitions(files)))


@contextlib.contextmanager
def _named_if_unreachable(place: str) -> Iterator[None]:
    try:
        yield
    except StepladderError as error:
        error.where = place
        raise
    except OSError as error:
        raise ResourceError(
            f"the files of the table cannot be listed ({first_line(error)})",
            where=place,
            fix="Correct the address, or use credentials that may list it, such as another "
            "AWS_PROFILE.",
        ) from None


def _found(file_system: fs.FileSystem, path: str, place: str) -> tuple[str, list[fs.FileInfo]]:
    """Return the folder that names are relative to, and its files."""
    [info] = file_system.get_file_info([path])
    if info.type == fs.FileType.Directory:
        return path, file_system.get_file_info(fs.FileSelector(path, recursive=True))
    if info.type == fs.FileType.NotFound and _GLOB.search(path) is not None:
        root = _root_of_glob(file_system, path)
        pattern = _pattern(path[len(root) :].lstrip("/"), place)
        below = fs.FileSelector(root, recursive=True, allow_not_found=True)
        infos = file_system.get_file_info(below)
        return root, [i for i in infos if pattern.fullmatch(i.path[len(root) :].lstrip("/"))]
    return posixpath.dirname(path), [info] if info.type == fs.FileType.File else []


def _root_of_glob(file_system: fs.FileSystem, glob: str) -> str:
    """Return the root folder of a glob; folders that exist are literal, even with `[`."""
    first = _GLOB.search(glob)
    assert first is not None
    root = posixpath.dirname(glob[: first.start()])
    for name in glob[len(root) :].strip("/").split("/")[:-1]:
        folder = posixpath.join(root, name)
        [info] = file_system.get_file_info([folder])
        if info.type != fs.FileType.Directory:
            break
        root = folder
    return root


def _pattern(glob: str, place: str) -> re.Pattern[str]:
    """Convert a glob to a regex: `*` and `?` do not match `/`, `**` does."""
    marks = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    words = [
        marks.get(word) or (_one_of(word) if _ONE_OF.fullmatch(word) else re.escape(word))
        for word in _GLOB_WORD.split(glob)
    ]
    try:
        return re.compile("".join(words))
    except re.error as error:
        raise UsageError(
            f"the pattern of file names is not valid ({error.msg})",
            where=place,
            fix="Write single characters or ascending ranges in [...], such as [a-z].",
        ) from None


def _one_of(word: str) -> str:
    """Convert `[...]` of a glob to a regex; a leading `!` negates it."""
    is_negated = word[1] == "!"
    letters = re.sub(r"([\\\[\]^&~|])", r"\\\1", word[1 + is_negated : -1])
    return f"(?!/)[{'^' * is_negated}{letters}]"


def _parts(path: str, root: str) -> tuple[str, ...]:
    return tuple(posixpath.relpath(path, root).split("/"))


def _is_data(parts: tuple[str, ...], is_named: bool) -> bool:
    is_hidden = any(part.startswith((".", "_")) and "=" not in part for part in parts)
    return is_named or (parts[-1].endswith(_SUFFIXES) and not is_hidden)


def _with_partitions(files: list[TableFile]) -> list[TableFile]:
    """Add columns from folders named `key=value`: int64 if all values are integers, else str."""
    found = [
        dict(part.split("=", 1) for part in file.name.split("/")[:-1] if "=" in part)
        for file in files
    ]
    kinds = {
        key: pa.int64() if all(_is_integer(values.get(key)) for values in found) else pa.string()
        for key in dict.fromkeys(key for values in found for key in values)
    }
    return [
        replace(file, constants={key: _constant(values.get(key), kinds[key]) for key in kinds})
        for file, values in zip(files, found, strict=True)
    ]


def _is_integer(text: str | None) -> bool:
    return text in (None, _NULL_PARTITION) or bool(re.fullmatch(r"[+-]?\d{1,18}", str(text)))


def _constant(text: str | None, kind: pa.DataType) -> pa.Scalar:
    if text is None or text == _NULL_PARTITION:
        return pa.scalar(None, kind)
    return pa.scalar(int(text) if kind == pa.int64() else unquote(text), kind)


def of_split(listing: Listing, split: Split, column: str) -> Listing | None:
    """Keep the files of a split, by partition column, folder name or prefix of the file name.

    Returns:
        The files of the split; None if neither folders nor file names contain splits.
    """
    splits = [_split_of(file, column) for file in listing.files]
    if not all(splits):
        return None
    files = [file for file, own in zip(listing.files, splits, strict=True) if own is split]
    return replace(listing, files=tuple(files))


def _split_of(file: TableFile, column: str) -> Split | None:
    if column in file.constants:
        return split_named(file.constants[column].as_py())
    *folders, name = file.name.split("/")
    return next(filter(None, map(split_named, [*folders, re.split(r"[-_.]", name)[0]])), None)


def split_named(value: Any) -> Split | None:
    """Return the split for a name, such as val for `validation`."""
    return SPLIT_WORDS.get(str(value).lower())


@dataclass(frozen=True)
class _Pin:
    version: int
    place: str | None
    asked: set[str] = field(default_factory=set)


_PIN: ContextVar[_Pin | None] = ContextVar("version pin", default=None)


@contextmanager
def reading_version(version: int, *, place: str | None = None) -> Iterator[set[str]]:
    """Open tables at a version within the block, as if their callers had passed it.

    A table without that version is opened at its latest version.

    Args:
        version: version number.
        place: the table that the version applies to; None: every Delta table.

    Yields:
        The places of the tables that were opened without a version.
    """
    pin = _Pin(version, place)
    token = _PIN.set(pin)
    try:
        yield pin.asked
    finally:
        _PIN.reset(token)


def pinned_version(place: str) -> int | None:
    """Return the version for a Delta table that is opened without one; None: the latest."""
    pin = _PIN.get()
    if pin is None:
        return None
    pin.asked.add(place)
    return pin.version if pin.place in (None, place) else None

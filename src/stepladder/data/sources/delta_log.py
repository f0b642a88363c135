"""List the files of a Delta table at one version, without a JVM."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from stepladder.data.remote.arrow_files import asked_again
from stepladder.data.remote.places import object_place, shown
from stepladder.data.sources.safe_arrow import first_line
from stepladder.errors import DataError, MissingExtraError, UsageError

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow import Schema
else:
    DeltaTable = Schema = Any

LOG_FOLDER = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_READ_FEATURES = frozenset(
    {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors"}
)


class VersionOption(StrEnum):
    """How the caller selects a table version; error messages name this option."""

    PREPARE = "--delta-version"
    OPEN_TABLE = "version"
    RUN = "--data.table-version"

    def of(self, version: int | None = None) -> str:
        """Return the text that selects a version; None: a placeholder."""
        number = "N" if version is None else version
        if self is VersionOption.OPEN_TABLE:
            return f"{self}={number}"
        later = (
            ", with --accept-new-data if the run has already started" if self is self.RUN else ""
        )
        return f"{self} {number}{later}"

    def latest(self, newest: int) -> str:
        """Return the text that selects the latest version; a resumed run keeps its own."""
        return self.of(newest) if self is VersionOption.RUN else f"omit {self}"


@dataclass(frozen=True)
class DeltaFile:
    """A data file of a table.

    Attributes:
        name: path relative to the table's folder.
        size_bytes: size of the file.
        values: values of the partition columns, which are not stored in the file.
        keep: for each row, whether it is still in the table; None: all rows are. Rows beyond the
            end of the list are kept; older releases of deltalake omit them.
    """

    name: str
    size_bytes: int
    values: dict[str, Any]
    keep: list[bool] | None = None


@dataclass(frozen=True)
class DeltaVersion:
    """A table as it was at one version.

    Attributes:
        version: version number.
        files: data files, sorted by name.
        schema: columns in the log, whether or not a file contains them.
        warnings: warnings for the user.
    """

    version: int
    files: list[DeltaFile]
    schema: Schema
    warnings: tuple[str, ...] = ()


def is_delta(source: Path) -> bool:
    """Return True if a local folder is a Delta table."""
    return (source / LOG_FOLDER).is_dir()


def read_version(
    source: Path, version: int | None, option: VersionOption = VersionOption.PREPARE
) -> DeltaVersion:
    """List the files of a table at a version; None: the latest complete version.

    A latest commit that is only partly written is skipped with a warning.

    Args:
        source: folder of the table, or its address in an object store.
        version: version number, from 0.
        option: option that error messages name.

    Raises:
        MissingExtraError: if deltalake is not installed.
        UsageError: if the table or the version does not exist.
        DataError: if the log is damaged, the table uses an unsupported feature, or one of its
            files was removed.
    """
    import pyarrow as pa

    torn = _torn_version(source)
    warnings: tuple[str, ...] = ()
    if torn is not None and version is None and torn > 0:
        version = torn - 1
        warnings = (
            f"{shown(source)}: the commit of version {torn} is incomplete; reading {version}",
        )
    if torn is not None and version == torn:
        raise _unreadable(source, version, "its commit is incomplete", option)
    table = _open(source, version, torn, option)
    _refuse_features(table, source, option)
    if version is not None and table.version() != version:
        raise _no_version(source, version, table.version(), option)
    files = sorted(_files(table, source, option), key=lambda file: file.name)
    _refuse_missing(files, source, table.version(), option)
    schema = pa.schema(table.schema().to_arrow())
    return DeltaVersion(table.version(), files, schema, warnings)


def import_deltalake(feature: str) -> Any:
    """Import deltalake for a feature.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        import deltalake
    except ModuleNotFoundError:
        raise MissingExtraError(feature, "delta") from None
    return deltalake


def _open(source: Path, version: int | None, torn: int | None, option: VersionOption) -> DeltaTable:
    import_deltalake("reading a Delta table")
    from deltalake.exceptions import DeltaError, TableNotFoundError

    if object_place(source) is None and not is_delta(source):
        raise _no_table(source)
    try:
        return _loaded(source, version)
    except (DeltaError, OSError, ValueError) as error:
        newest = None if version in (None, torn) else _newest(source)
        if version is not None and newest is not None and version > newest:
            raise _no_version(source, version, newest, option) from None
        if (place := object_place(source)) is not None and (refused := asked_again(place)):
            raise refused from None
        if not isinstance(error, TableNotFoundError):
            raise _unreadable(source, version, first_line(error), option) from None
        if version is None or newest is None:
            raise _no_table(source) from None
        raise _cleaned_up(source, version, newest, option) from None


def _loaded(source: Path, version: int | None) -> DeltaTable:
    import deltalake

    place = object_place(source)
    return deltalake.DeltaTable(
        str(place) if place else str(source.resolve()),
        version=version,
        storage_options=_storage_options() if place else None,
    )


def _no_table(source: Path) -> UsageError:
    return UsageError(
        f"not a Delta table: there is no folder {LOG_FOLDER} in it",
        where=shown(source),
        fix=f"Pass the folder of the table, which contains {LOG_FOLDER}.",
    )


def _unreadable(source: Path, version: int | None, why: str, option: VersionOption) -> DataError:
    at = "the latest version" if version is None else f"version {version}"
    return DataError(
        f"{at} of the Delta table cannot be read ({why})",
        where=shown(source),
        fix=f"Read another version of the table: {option.of()}.",
    )


def _cleaned_up(source: Path, version: int, newest: int, option: VersionOption) -> DataError:
    return DataError(
        f"version {version} of the Delta table can no longer be read: the log of that version "
        "was deleted",
        where=shown(source),
        why="Delta deletes logs that are older than the table's delta.logRetentionDuration.",
        fix=f"Read the latest version, {newest} ({option.latest(newest)}).",
    )


def _storage_options() -> dict[str, str]:
    """Return the endpoint options; deltalake reads credentials from the environment itself."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    options = {"AWS_ENDPOINT_URL": endpoint} if endpoint else {}
    return options | ({"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {})


def _refuse_features(table: DeltaTable, source: Path, option: VersionOption) -> None:
    features = set(table.protocol().reader_features or ())
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode == "none":
        features.discard("columnMapping")
    else:
        features.add("columnMapping")  # not listed before reader version 3
    unknown = sorted(features - _READ_FEATURES)
    if unknown:
        raise DataError(
            f"the Delta table uses {', '.join(unknown)}, which only Spark can read",
            where=shown(source),
            why="The table is read here by the package deltalake, which does not support it.",
            fix="In Spark, write the rows to a new table: df.write.format('delta').save('NEW'). "
            f"Or read an older version of this table, from before it was used: {option.of()}.",
        )


def _files(table: DeltaTable, source: Path, option: VersionOption) -> Iterator[DeltaFile]:
    import pyarrow as pa

    keep = _rows_kept(table, option)
    prefix = "partition."
    for action in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        name = unquote(action["path"])
        if name.startswith("/") or "://" in name or ".." in name.split("/"):
            raise DataError(
                f"a data file of the Delta table is outside the table's folder: {name}",
                where=shown(source),
                why="The table is a shallow clone: its data files belong to another table.",
                fix="Pass the folder of that other table, or copy it with its data, in Spark: "
                "CREATE TABLE … DEEP CLONE ….",
            )
        values = {
            key.removeprefix(prefix): value
            for key, value in action.items()
            if key.startswith(prefix)
        }
        yield DeltaFile(name, action["size_bytes"], values, keep.pop(name, None))
    if keep:  # never read a deleted row
        raise DataError(
            "the Delta table is damaged: its log marks rows as deleted in a data file that does "
            f"not belong to the table: {next(iter(keep))}",
            where=shown(source),
            why="Nothing was read, because deleted rows might have been read as pictures.",
            fix=f"Read an earlier version of the table: {option.of()}.",
        )


def _rows_kept(table: DeltaTable, option: VersionOption) -> dict[str, list[bool]]:
    """Return, for each file that has a deletion vector, which of its rows are kept."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    if not hasattr(table, "deletion_vectors"):
        raise DataError(
            "the Delta table marks rows as deleted (deletionVectors), which the installed release "
            "of the package deltalake cannot read",
            where=table.table_uri,
            fix="Upgrade it: pip install --upgrade deltalake",
        )
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    try:
        vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    except (DeltaError, pa.ArrowException, OSError) as error:
        raise DataError(
            "the files that list the deleted rows of the Delta table (deletion vectors) cannot be "
            f"read ({first_line(error)})",
            where=table.table_uri,
            fix=f"Read an earlier version of the table: {option.of()}.\nOr remove the deleted rows "
            f"from its data files, in Spark: REORG TABLE delta.`{table.table_uri}` APPLY (PURGE).",
        ) from None
    root = table.table_uri.rstrip("/") + "/"
    found: dict[str, list[bool]] = {}
    for row in vectors.to_pylist():
        found[unquote(row["filepath"].removeprefix(root))] = row["selection_vector"]
    return found


def _refuse_missing(
    files: list[DeltaFile], source: Path, version: int, option: VersionOption
) -> None:
    if object_place(source) is not None:
        return  # found when it is opened: checking each file would cost a request
    missing = [file.name for file in files if not (source / file.name).is_file()]
    if missing:
        raise removed_file(missing[0], source, version, num_missing=len(missing), option=option)


def removed_file(
    name: str,
    source: Path,
    version: int,
    *,
    num_missing: int = 1,
    option: VersionOption = VersionOption.PREPARE,
) -> DataError:
    """Return the error for a missing file of a version, most likely removed by VACUUM."""
    others = f", and {num_missing - 1} more" if num_missing > 1 else ""
    newest = _newest(source)
    other = f"another version ({option.of()})"
    if newest is not None and newest != version:
        other = f"the latest version, {newest} ({option.latest(newest)})"
    return DataError(
        f"a data file of version {version} of the Delta table is missing: {name}{others}",
        where=shown(source),
        why="Delta's VACUUM command deletes data files that only older versions use.",
        fix=f"Read {other}, or restore the file from a backup.",
    )


def _no_version(source: Path, version: int, newest: int, option: VersionOption) -> UsageError:
    return UsageError(
        f"the Delta table has no version {version}; its latest version is {newest}",
        where=shown(source),
        fix=f"Use {option.of(newest)}, or leave it out to read the latest version.",
    )


def _commits(source: Path) -> list[tuple[int, Path]]:
    """List the commits of a local table, oldest first."""
    folder = source / LOG_FOLDER
    if object_place(source) is not None or not folder.is_dir():
        return []
    matches = ((_COMMIT.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def _newest(source: Path) -> int | None:
    """Return the number of the latest complete version; None: unknown."""
    from deltalake.exceptions import DeltaError

    if commits := _commits(source):
        newest = commits[-1][0] - (_torn_version(source) is not None)
        return newest if newest >= 0 else None
    try:
        return int(_loaded(source, None).version())
    except (DeltaError, OSError, ValueError):
        return None


def _torn_version(source: Path) -> int | None:
    """Return the newest version if its commit is incomplete; None if it is complete.

    Writers create commits atomically, but not every file system supports that.
    """
    commits = _commits(source)
    if not commits:
        return None
    version, path = commits[-1]
    try:
        with path.open("rb") as file:
            last = b""
            for line in file:
                last = line.strip() or last
        json.loads(last)
    except (OSError, ValueError, RecursionError):
        return version
    return None

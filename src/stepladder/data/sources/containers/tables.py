"""Open Parquet files and Delta tables of pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.config.choices import SourceFormat, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.reading.threads import map_in_order, reading_threads
from stepladder.data.remote.arrow_files import object_filesystem
from stepladder.data.remote.places import object_place, shown
from stepladder.data.sources.containers.columns import (
    Columns,
    ImageKind,
    check_drift,
    choose_columns,
    hugging_face_features,
)
from stepladder.data.sources.containers.contract import Container, Opened
from stepladder.data.sources.containers.files import (
    FoundFiles,
    SourceFile,
    file_of,
    find_files,
    partition_values,
    splits_by_name,
)
from stepladder.data.sources.containers.parquet import RowSource, open_parquet, parts_of
from stepladder.data.sources.delta_log import DeltaVersion, read_version, removed_file
from stepladder.data.sources.label_tables.labels import is_named_as_splits
from stepladder.data.sources.safe_arrow import require_safe_pyarrow
from stepladder.data.sources.splits.split_names import split_of_word
from stepladder.errors import DataError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData
else:
    FileMetaData = Any

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
_UNISCHEMA = b"dataset-toolkit.unischema.v1"
_PIN_NAME = "delta_version"
_THREADS = 16
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class _TableFile:
    """A Parquet file, and what is known about its rows without opening it."""

    file: SourceFile
    values: Mapping[str, Any]
    split: Split | None = None
    keep: list[bool] | None = None


def open_tables(config: PrepareConfig, kind: SourceFormat) -> Opened:
    """Open Parquet files: plain, written by Hugging Face, or written by Petastorm.

    Raises:
        UsageError: if no file is found, the format is not the given one, the columns cannot be
            determined, or pyarrow is too old.
        DataError: if one is damaged, or its columns differ from those of the first.
    """
    require_safe_pyarrow()
    source = config.source.expanduser()
    if kind is SourceFormat.PETASTORM:
        _require_unischema(source)
    found = find_files(source, suffixes=PARQUET_SUFFIXES, follow_symlinks=config.follow_symlinks)
    names = [file.name for file in found.files]
    splits = splits_by_name(names, source)
    values = _folder_values(names)
    files = [_TableFile(*facts) for facts in zip(found.files, values, splits, strict=True)]
    return _open_files(config, found, files, kind)


def open_delta(config: PrepareConfig, work: Path | None) -> Opened:
    """Open a Delta table at the version in the config, or the latest.

    The latest version is determined once and saved in the work folder, so that an interrupted
    prepare resumes with the same version.

    Raises:
        MissingExtraError: if deltalake is not installed.
        UsageError: if the table or version does not exist, or pyarrow is too old.
        DataError: if it cannot be read.
        ResourceError: if its object store does not respond.
    """
    require_safe_pyarrow()
    source = config.source.expanduser()
    place = object_place(source)
    if place is None:
        from pyarrow.fs import LocalFileSystem

        filesystem, root = LocalFileSystem(), str(source.resolve())
    else:
        filesystem, root = object_filesystem(), f"{place.bucket}/{place.key}"
    table = _pinned(source, config.delta_version, work)
    files = []
    for one in table.files:
        file = file_of(filesystem, root, one.name)
        if file is None:
            raise removed_file(one.name, source, table.version)
        files.append(_TableFile(file, one.values, None, one.keep))
    if not files:
        raise DataError(
            f"version {table.version} of the Delta table has no rows, so there are no pictures to "
            "prepare",
            where=shown(source),
            fix="Add rows to the table, or read another version of it: --delta-version N",
        )
    found = FoundFiles(Path(root), [one.file for one in files])
    opened = _open_files(config, found, files, SourceFormat.DELTA)
    warnings = (*opened.warnings, *table.warnings)
    return replace(opened, warnings=warnings, origin={"delta_version": table.version})


def _pinned(source: Path, version: int | None, work: Path | None) -> DeltaVersion:
    pin = None if work is None or version is not None else work / _PIN_NAME
    if pin is None:
        return read_version(source, version)
    began_with = int(pin.read_text()) if pin.is_file() else None
    try:
        table = read_version(source, began_with)
    except (DataError, UsageError):
        if began_with is None:
            raise
        table = read_version(source, None)
        told = f"{shown(source)}: version {began_with}, which this prepare started with, is gone"
        table = replace(table, warnings=(*table.warnings, told))
    pin.write_text(str(table.version))
    return table


def _open_files(
    config: PrepareConfig, found: FoundFiles, files: list[_TableFile], kind: SourceFormat
) -> Opened:
    columns: Columns | None = None
    containers: list[Container] = []
    for one, (schema, metadata) in zip(files, _footers(files), strict=True):
        if columns is None:
            config = _with_split_column(config, schema, metadata, one)
            columns = choose_columns(schema, config, constants=one.values, where=one.file.name)
            if kind is SourceFormat.HUGGINGFACE:
                _require_hugging_face(bool(hugging_face_features(schema)), columns, config)
        else:
            check_drift(schema, columns, where=one.file.name, first=files[0].file.name)
        rows = RowSource(
            file=one.file,
            columns=columns,
            constants=one.values,
            split=one.split,
            config=config,
            keep=one.keep,
        )
        containers += parts_of(rows, metadata)
    assert columns is not None
    is_guessed = columns.kind is ImageKind.FLAT and not (columns.height or config.pixel_height)
    warnings: tuple[str, ...] = (
        (
            f"{shown(config.source)}: column {columns.image!r} is read as square pictures, row by "
            "row from the top, channels last (--pixel-height, --pixel-width)",
        )
        if is_guessed
        else ()
    )
    if columns.label != config.label_column:
        told = f"the classes are those of the column {columns.label}"
        warnings += (f"{shown(config.source)}: {told} (--label-column {columns.label})",)
    if columns.split is not None and columns.split != PrepareConfig.split_column:
        told = f"the splits are those of the column {columns.split}"
        warnings += (f"{shown(config.source)}: {told} (--split-column {columns.split})",)
    return Opened(
        root=found.root,
        containers=containers,
        key=_key(config, columns),
        class_names=columns.class_names,
        skipped=found.skipped,
        warnings=warnings,
        has_group=columns.group is not None,
    )


def _with_split_column(
    config: PrepareConfig, schema: pa.Schema, metadata: FileMetaData, file: _TableFile
) -> PrepareConfig:
    """Return options with the column of splits, if it has another usual name.

    The least and the greatest cell of each row group, which footers name, must be splits.
    """
    is_default = config.split_column == PrepareConfig.split_column
    if not is_default or file.split or config.split_column in {*schema.names, *file.values}:
        return config
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    found = []
    for at in range(metadata.num_columns if groups else 0):
        name = metadata.schema.column(at).path
        limits = [group.column(at).statistics for group in groups]
        if is_named_as_splits(name) and all(
            one is not None
            and one.has_min_max
            and split_of_word(str(one.min))
            and split_of_word(str(one.max))
            for one in limits
        ):
            found.append(name)
    return replace(config, split_column=found[0]) if len(found) == 1 else config


def _footers(files: list[_TableFile]) -> Iterator[tuple[pa.Schema, FileMetaData]]:
    """Yield the schema and footer of each file; remote files are read in parallel."""

    def read(one: _TableFile) -> tuple[pa.Schema, FileMetaData]:
        with open_parquet(one.file) as parquet:
            return parquet.schema_arrow, parquet.metadata

    num_threads = _THREADS if files[0].file.is_far else 0
    with reading_threads(num_threads) as pool:
        yield from map_in_order(pool, read, files, ahead=2 * num_threads or 1)


def _key(config: PrepareConfig, columns: Columns) -> str:
    """Hash everything that affects how rows are converted."""
    facts = [repr(columns), config.pixel_height, config.pixel_width, config.max_pixels]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _folder_values(names: list[str]) -> list[dict[str, Any]]:
    """Return the `column=value` pairs of folder names; columns of digits become integers."""
    texts = [partition_values(name) for name in names]
    columns = {column for row in texts for column in row}
    numbers = {
        column
        for column in columns
        if all(
            row[column].isdecimal()
            for row in texts
            if row.get(column, _NULL_PARTITION) != _NULL_PARTITION
        )
    }
    return [
        {
            column: None if text == _NULL_PARTITION else int(text) if column in numbers else text
            for column, text in row.items()
        }
        for row in texts
    ]


def _require_unischema(source: Path) -> None:
    """Check that Petastorm wrote a folder, without loading its pickled schema."""
    import pyarrow as pa
    from pyarrow.parquet import read_schema

    place = object_place(source)
    root = source if place is None else f"{place.bucket}/{place.key}"
    far = None if place is None else object_filesystem()
    try:
        metadata = read_schema(f"{root}/_common_metadata", filesystem=far).metadata or {}
    except (pa.ArrowException, OSError):
        metadata = {}
    if _UNISCHEMA not in metadata:
        raise UsageError(
            "not a Petastorm dataset: there is no Unischema",
            where=shown(source),
            fix="Pass the folder that contains _common_metadata, or use --source-format parquet.",
        )


def _require_hugging_face(has_features: bool, columns: Columns, config: PrepareConfig) -> None:
    if not has_features and columns.kind is not ImageKind.STRUCT:
        raise UsageError(
            "no Hugging Face image column (a struct of bytes and path)",
            where=shown(config.source),
            fix="Omit --source-format, or use --source-format parquet.",
        )

"""Read Parquet footers (row groups, types, identity) and row groups."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from stepladder.data.remote.retries import StoreAwayError
from stepladder.data.sources.safe_arrow import first_line
from stepladder.data.tables.listing import Listing, TableFile
from stepladder.errors import DataError

_MAGIC = b"PAR1"
_ASSUMED_BYTES = 1 << 16  # most footers fit: one request
_NUM_PARSED = 32  # cached footers; those of wide tables are large
_INT96_UNIT = "us"  # nanoseconds, as stored, would overflow after 2262
_TAKEABLE = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


@dataclass(frozen=True)
class Footer:
    """The metadata in the footer of a file.

    Attributes:
        size_bytes: size of the file.
        changed_ns: modification time if it is available without a request; else 0.
        sha256: hash of the footer.
        rows: number of rows in each row group.
        schema: schema of the file, with the types of the decoded row groups.
        has_int96: whether times are stored as INT96, which is read as microseconds.
    """

    size_bytes: int
    changed_ns: int
    sha256: str
    rows: tuple[int, ...]
    schema: pa.Schema
    has_int96: bool


def read_footer(
    file_system: fs.FileSystem, file: TableFile, place: str
) -> tuple[Footer, pq.FileMetaData]:
    """Return the footer of a file, and the full metadata parsed by pyarrow.

    Raises:
        DataError: if it is not a complete Parquet file; names it.
        ResourceError: if an object store does not respond or denies access.
    """
    where = f"{place}: {file.name}"
    try:
        with file_system.open_input_file(file.path) as stream:
            size_bytes, changed_ns = stream.size(), _changed_ns(file_system, file)
            tail = _tail(stream, size_bytes)
        metadata = pq.read_metadata(pa.BufferReader(tail))
        has_int96 = _has_int96(metadata)
        schema = _int96_schema(tail, metadata) if has_int96 else metadata.schema.to_arrow_schema()
    except FileNotFoundError:
        raise DataError(
            "this file of the table no longer exists",
            where=where,
            why="It was deleted after the table was opened; in a Delta table, VACUUM does this.",
            fix="Open the table again. Of a Delta table, read a version whose files still exist, "
            "such as the latest.",
        ) from None
    except StoreAwayError as error:
        error.where = where
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"this file of the table is not a complete Parquet file ({first_line(error)})",
            where=where,
            fix="Write the file again, or remove it from the folder of the table.",
        ) from None
    footer = Footer(
        size_bytes=size_bytes,
        changed_ns=changed_ns,
        sha256=hashlib.sha256(tail).hexdigest(),
        rows=tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)),
        schema=schema,
        has_int96=has_int96,
    )
    return footer, metadata


def _has_int96(metadata: pq.FileMetaData) -> bool:
    columns = metadata.schema
    return any(columns.column(i).physical_type == "INT96" for i in range(metadata.num_columns))


def _int96_schema(tail: bytes, metadata: pq.FileMetaData) -> pa.Schema:
    reader = pq.ParquetFile(
        pa.BufferReader(tail), metadata=metadata, coerce_int96_timestamp_unit=_INT96_UNIT
    )
    return reader.schema_arrow


def _changed_ns(file_system: fs.FileSystem, file: TableFile) -> int:
    is_local = isinstance(file_system, fs.LocalFileSystem)
    return Path(file.path).stat().st_mtime_ns if is_local else 0


def _tail(stream: pa.NativeFile, size_bytes: int) -> bytes:
    """Return the footer, its length and the magic bytes."""
    if size_bytes < 12:
        raise ValueError(f"it has only {size_bytes} bytes")
    assumed = min(size_bytes, _ASSUMED_BYTES)
    tail: bytes = stream.read_at(assumed, size_bytes - assumed)
    if tail[-4:] != _MAGIC:
        raise ValueError("it does not end in PAR1")
    need = int.from_bytes(tail[-8:-4], "little") + 8
    if need > size_bytes:
        raise ValueError("its footer is longer than the file")
    if need > assumed:
        tail = stream.read_at(need, size_bytes - need)
    return tail[-need:]


class RowGroups:
    """Reads row groups of a table by file and number.

    Args:
        footers: footers of the files at the time the table was opened.
    """

    def __init__(self, listing: Listing, footers: Sequence[Footer]) -> None:
        self._listing = listing
        self._footers = footers
        self._lock = threading.Lock()
        self._parsed: OrderedDict[int, pq.FileMetaData] = OrderedDict()

    def read(self, file_idx: int, group: int, columns: Sequence[str]) -> pa.Table:
        """Return columns of a row group, including partition columns.

        Raises:
            DataError: if the file changed or is damaged; names file and row group.
            ResourceError: if an object store does not respond or denies access.
        """
        file, file_system = self._listing.files[file_idx], self._listing.file_system
        where = f"{self._listing.place}: {file.name}, row group {group}"
        footer, metadata = self._footers[file_idx], self._metadata(file_idx)
        held = [name for name in columns if name in footer.schema.names]
        try:
            with file_system.open_input_file(file.path) as stream:
                now = stream.size(), _changed_ns(file_system, file)
                if now != (footer.size_bytes, footer.changed_ns):
                    raise self._changed(file)
                reader = pq.ParquetFile(
                    stream,
                    metadata=metadata,
                    pre_buffer=not isinstance(file_system, fs.LocalFileSystem),
                    page_checksum_verification=True,
                    coerce_int96_timestamp_unit=_INT96_UNIT,
                )
                table = reader.read_row_group(group, columns=held, use_threads=False)
        except StoreAwayError as error:
            error.where = where
            raise
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"this part of the table cannot be read ({first_line(error)})",
                where=where,
                fix="Write the file again, or remove it from the folder of the table.",
            ) from None
        for name in columns:
            if name not in held:
                column = pa.repeat(file.constants[name], footer.rows[group])
                table = table.append_column(name, column)
        return _takeable(table.select(list(columns)))

    def nullable(self, names: Collection[str]) -> frozenset[str]:
        """Return the non-list columns that contain nulls, or may if statistics are missing."""
        found: set[str] = set()
        for file_idx, file in enumerate(self._listing.files):
            left = set(names) - found
            found |= {
                name for name in left & file.constants.keys() if not file.constants[name].is_valid
            }
            found |= _with_nulls(self._metadata(file_idx), left)
        return frozenset(found)

    def _metadata(self, file_idx: int) -> pq.FileMetaData:
        with self._lock:
            if file_idx in self._parsed:
                self._parsed.move_to_end(file_idx)
                return self._parsed[file_idx]
        file = self._listing.files[file_idx]
        footer, metadata = read_footer(self._listing.file_system, file, self._listing.place)
        known = self._footers[file_idx]
        if (footer.sha256, footer.changed_ns) != (known.sha256, known.changed_ns):
            raise self._changed(file)
        with self._lock:
            self._parsed[file_idx] = metadata
            while len(self._parsed) > _NUM_PARSED:
                self._parsed.popitem(last=False)
        return metadata

    def _changed(self, file: TableFile) -> DataError:
        return DataError(
            "this file of the table was changed after the table was opened",
            where=f"{self._listing.place}: {file.name}",
            why="It may have other rows now than when they were counted.",
            fix="Run the same command again when nothing writes to the table. Or use a Delta "
            "table, which can be written to while a version of it is read.",
        )


def _with_nulls(metadata: pq.FileMetaData, names: Collection[str]) -> set[str]:
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    return {
        column.path
        for i, column in enumerate(columns)
        if column.path in names
        and column.max_definition_level
        and any(
            _may_hold_nulls(metadata.row_group(group).column(i))
            for group in range(metadata.num_row_groups)
        )
    }


def _may_hold_nulls(chunk: pq.ColumnChunkMetaData) -> bool:
    known = chunk.statistics
    return known is None or not known.has_null_count or known.null_count > 0


def _takeable(table: pa.Table) -> pa.Table:
    """Convert the types that `take` of pyarrow does not support: string and binary views."""
    kinds = [_TAKEABLE.get(field.type) for field in table.schema]
    for i, kind in enumerate(kinds):
        if kind is not None:
            table = table.set_column(i, table.schema.names[i], table.column(i).cast(kind))
    return table

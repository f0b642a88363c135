"""Read rows of pictures from a Parquet file in parts; errors name the file and row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.remote.retries import StoreAwayError
from stepladder.data.sources.containers.batch_pictures import BatchPictures
from stepladder.data.sources.containers.columns import Columns, ImageKind, column_of
from stepladder.data.sources.containers.contract import (
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    Container,
    Item,
)
from stepladder.data.sources.containers.files import SourceFile, cut_off
from stepladder.data.sources.containers.labels import checked_label, encodable
from stepladder.data.sources.safe_arrow import first_line, require_safe_pyarrow
from stepladder.data.sources.splits.split_names import split_of_cell
from stepladder.data.sources.walk import Skipped
from stepladder.errors import DataError

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyarrow.parquet import FileMetaData, ParquetFile
else:
    RecordBatch = FileMetaData = ParquetFile = Any

MIN_PART_BYTES = 256 << 20
_COPY_AGAIN = (
    "Copy or write the file again, or set --source to a quoted pattern that leaves it out."
)


def open_parquet(file: SourceFile) -> ParquetFile:
    """Open a Parquet file; pages are read on demand and their checksums are verified.

    Raises:
        DataError: if it does not exist, is not a Parquet file, or its footer is damaged.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    require_safe_pyarrow()
    try:
        return ParquetFile(
            file.open(),
            buffer_size=file.ahead_bytes,
            pre_buffer=False,
            page_checksum_verification=True,
            arrow_extensions_enabled=False,
        )
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"this file cannot be read as Parquet ({first_line(error)})",
            where=file.name,
            fix=_COPY_AGAIN,
        ) from None


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """How the rows of a file are read.

    Attributes:
        file: the file.
        columns: columns of the table.
        constants: values of partition columns, from folder names or a Delta log.
        split: split in the file's name, or None.
        keep: see `DeltaFile.keep`.
        config: options.
    """

    file: SourceFile
    columns: Columns
    constants: Mapping[str, Any]
    split: Split | None
    config: PrepareConfig
    keep: list[bool] | None = None

    def key_of(self, rows: range) -> str:
        """Hash everything outside the file that affects how its rows are read.

        A Delta table deletes rows in its log only; splits depend on the names of other files.
        """
        deleted = b"" if self.keep is None else bytes(self.keep[rows.start : rows.stop])
        digest = hashlib.sha256(repr((self.split, sorted(self.constants.items()))).encode())
        digest.update(deleted.rstrip(b"\1"))  # rows beyond its end are kept
        return digest.hexdigest()


def parts_of(source: RowSource, metadata: FileMetaData) -> list[Container]:
    """Divide a file into parts of whole row groups, so that an interrupted prepare can resume."""
    parts: list[Container] = []
    groups: list[int] = []
    sizes: list[int] = []
    first_row = 0
    for group in range(metadata.num_row_groups):
        groups.append(group)
        sizes.append(_picture_bytes(metadata, group, source.columns))
        is_last = group == metadata.num_row_groups - 1
        if sum(sizes) >= MIN_PART_BYTES or is_last:
            num_rows = sum(metadata.row_group(at).num_rows for at in groups)
            parts.append(ParquetPart(source, tuple(groups), first_row, num_rows, sum(sizes)))
            first_row += num_rows
            groups, sizes = [], []
    return parts


class ParquetPart(Container):
    """Some row groups of a Parquet file."""

    def __init__(
        self,
        source: RowSource,
        groups: tuple[int, ...],
        first_row: int,
        num_rows: int,
        picture_bytes: int,
    ) -> None:
        self.name = source.file.name
        facts = source.key_of(range(first_row, first_row + num_rows))
        self.key = f"{source.file.key} {groups[0]}-{groups[-1]} {facts}"
        self.num_rows = num_rows
        self.picture_bytes = picture_bytes
        self.skipped = Skipped()
        self._source = source
        self._groups = groups
        self._first_row = first_row

    def items(self) -> Iterator[list[Item]]:
        """Yield rows; see `Container.items`."""
        import pyarrow as pa

        row = self._first_row
        mean_bytes = max(1, self.picture_bytes // max(1, self.num_rows or 1))
        batch_rows = max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // mean_bytes))
        parquet = open_parquet(self._source.file)
        try:
            batches = parquet.iter_batches(
                batch_rows, row_groups=list(self._groups), columns=self._source.columns.names
            )
            for batch in batches:
                yield self._items_of(batch, row)
                row += batch.num_rows
        except StoreAwayError as error:
            raise cut_off(error, f"from row {row} on") from None
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"the rows from here on cannot be read ({first_line(error)})",
                where=f"{self.name}: from row {row} on",
                fix=_COPY_AGAIN,
            ) from None
        finally:
            parquet.close(force=True)
        self._source.file.refuse_changed()

    def _items_of(self, batch: RecordBatch, first_row: int) -> list[Item]:
        columns, keep = self._source.columns, self._source.keep
        values = {
            name: self._values(batch, name)
            for name in (columns.label, columns.split, columns.path, columns.group)
            if name is not None
        }
        file = self._source.file
        folder = None if file.is_far else Path(file.path).parent
        pictures = BatchPictures(batch, columns, self._source.config, folder=folder, name=self.name)
        items = []
        for at in range(batch.num_rows):
            row = first_row + at
            if keep is not None and row < len(keep) and not keep[row]:
                continue
            where = f"{self.name}: row {row}"
            data, reason = pictures.read(at, where)
            group = values[columns.group][at] if columns.group else None
            items.append(
                Item(
                    row,
                    data,
                    checked_label(values[columns.label][at], columns.label, where),
                    self._split_of(values, at, where),
                    values[columns.path][at] if columns.path else pictures.path(at),
                    None if group is None else encodable(str(group)),
                    reason,
                )
            )
        self.is_complete &= pictures.num_files == 0
        return items

    def _values(self, batch: RecordBatch, name: str) -> list[Any]:
        if name in self._source.constants:
            return [self._source.constants[name]] * batch.num_rows
        values: list[Any] = column_of(batch, name).to_pylist()
        return values

    def _split_of(self, values: dict[str, list[Any]], at: int, where: str) -> Split | None:
        name = self._source.columns.split
        if name is None:
            return self._source.split
        return split_of_cell(values[name][at], where)


def _picture_bytes(metadata: FileMetaData, group: int, columns: Columns) -> int:
    """Estimate the uncompressed size of the pictures in a row group."""
    row_group = metadata.row_group(group)
    is_flat_list = columns.kind is ImageKind.FLAT and "list" in columns.types[columns.image]
    is_list = columns.kind is ImageKind.NESTED or is_flat_list
    total = 0
    for at in range(row_group.num_columns):
        column = row_group.column(at)
        path = column.path_in_schema
        if path == columns.image or path.startswith(f"{columns.image}."):
            # uint8 lists: one byte per value, however Parquet encodes them
            total += column.num_values if is_list else column.total_uncompressed_size
    return total

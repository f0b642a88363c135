"""The layout of a table: files, row groups and the rows of a split, read from footers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from stepladder.config.choices import Split
from stepladder.data.tables.columns import is_text
from stepladder.data.tables.footers import Footer, RowGroups, read_footer
from stepladder.data.tables.listing import Listing, split_named
from stepladder.data.tables.schema import difference, plain_type
from stepladder.errors import DataError, UsageError

_FORMAT = 1  # version of the fingerprint; changes if the same table is read differently
_NUM_THREADS = 8  # they wait for footers, mostly on object stores


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a table.

    Attributes:
        listing: its files.
        footers: one per file.
        kept: for each row group, the positions that belong to the split; None: all.
    """

    listing: Listing
    footers: tuple[Footer, ...]
    kept: tuple[np.ndarray | None, ...]

    @cached_property
    def groups(self) -> list[tuple[int, int]]:
        """File and number of each row group."""
        return [
            (file_idx, group)
            for file_idx, footer in enumerate(self.footers)
            for group in range(len(footer.rows))
        ]

    @cached_property
    def stored(self) -> list[int]:
        """Number of rows in each row group of the files."""
        return [rows for footer in self.footers for rows in footer.rows]

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Number of rows that are read from each row group."""
        pairs = zip(self.stored, self.kept, strict=True)
        return tuple(num if kept is None else len(kept) for num, kept in pairs)

    def row_name(self, number: int, row: int) -> str:
        """Return the name of a row: its file and its position in the file, from 0."""
        file_idx, group = self.groups[number]
        first = sum(self.footers[file_idx].rows[:group])
        return f"{self.file_name(file_idx)}, row {first + row}"

    def file_name(self, file_idx: int) -> str:
        """Return the name of a file and its table."""
        return f"{self.listing.place}: {self.listing.files[file_idx].name}"

    def fingerprint(self, key: str) -> str:
        """Return a hash of the footers, and of modification times if they are known.

        Footers contain sizes and statistics; reordered rows may have the same footer.
        """
        digest = hashlib.sha256(json.dumps([_FORMAT, self.listing.version, key]).encode())
        for file, footer in zip(self.listing.files, self.footers, strict=True):
            constants = {name: str(value) for name, value in file.constants.items()}
            facts = [file.name, footer.size_bytes, footer.sha256, constants]
            facts += [] if file.changed_ns is None else [file.changed_ns]
            facts += ["INT96 as us"] if footer.has_int96 else []
            digest.update(json.dumps(facts, sort_keys=True).encode())
        for kept in self.kept:
            digest.update(b"all" if kept is None else kept.tobytes())
        return digest.hexdigest()

    def require_same(self, schema: pa.Schema, names: Sequence[str]) -> None:
        """Check that all files have the same columns.

        Raises:
            DataError: at the first file with different columns or duplicate names; names it.
        """
        for file_idx, (file, footer) in enumerate(
            zip(self.listing.files, self.footers, strict=True)
        ):
            _refuse_twins(footer.schema, names, self.file_name(file_idx))
            for name in set(names) & set(footer.schema.names):
                plain_type(footer.schema.field(name), self.file_name(file_idx))
            other = difference(schema, footer.schema, names, file.constants)
            if other is not None:
                raise DataError(
                    other,
                    where=f"{self.file_name(file_idx)}, from row 0 on",
                    why="All files of a table must have the same columns.",
                    fix="Write the file again, remove it from the folder of the table, or read "
                    "only columns that all files have: list them in columns=[...].",
                )

    def values_of(self, row_groups: RowGroups, name: str) -> Iterator[pa.ChunkedArray]:
        """Yield the selected values of a column from each row group that has any."""
        for place, rows, kept in zip(self.groups, self.rows, self.kept, strict=True):
            if rows:
                values = row_groups.read(*place, [name]).column(name)
                yield values if kept is None else values.take(pa.array(kept))

    def of_split(
        self, row_groups: RowGroups, schema: pa.Schema, split: Split, column: str
    ) -> Layout:
        """Keep the rows of a split; reads the split column of the whole table.

        Raises:
            UsageError: if the table does not have that column.
        """
        if column not in schema.names or not is_text(
            plain_type(schema.field(column), self.listing.place)
        ):
            raise UsageError(
                f"it is unknown which rows of the table are {split}: no folder or file is named "
                f"train, val or test, and there is no string column {column}",
                where=self.listing.place,
                fix="Name the column that contains train, val or test: split_column='NAME'. Or "
                f"pass the path of the folder or file that contains {split}.",
            )
        kept = []
        for place, before in zip(self.groups, self.kept, strict=True):
            values = row_groups.read(*place, [column]).column(column)
            texts = values.cast(pa.string()).combine_chunks().dictionary_encode()
            if isinstance(texts, pa.ChunkedArray):
                texts = texts.combine_chunks()
            own = [split_named(text) is split for text in texts.dictionary.to_pylist()]
            codes = texts.indices.fill_null(len(own)).to_numpy(zero_copy_only=False)
            is_own = np.array([*own, False])[codes]
            rows = np.arange(len(codes), dtype=np.int32) if before is None else before
            kept.append(rows[is_own[rows]])
        return replace(self, kept=tuple(kept))


def lay_out(listing: Listing) -> tuple[Layout, pa.Schema]:
    """Read the footers of a table's files.

    A column added to a Delta table later is null in older files. It has the type of the files that
    contain it, or the type in the log if none does.

    Returns:
        The layout, and the schema of the table.

    Raises:
        DataError: if a file is not a complete Parquet file.
    """
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        read = pool.map(lambda f: read_footer(listing.file_system, f, listing.place), listing.files)
        footers = [footer for footer, _ in read]
    first = footers[0].schema
    # thousands of files have the same schema: it is kept once
    footers = [replace(f, schema=first) if f.schema.equals(first) else f for f in footers]
    fields = {field.name: field for field in first}
    if listing.version is not None:
        for footer in footers:
            for field in footer.schema:
                fields.setdefault(field.name, field)
        for field in listing.schema or ():
            if field.name not in listing.files[0].constants:  # partition columns come last
                fields.setdefault(field.name, field)
        listing = _with_missing(listing, footers, fields)
    for name, value in listing.files[0].constants.items():
        fields.setdefault(name, pa.field(name, value.type))
    kept = [
        part
        for file, footer in zip(listing.files, footers, strict=True)
        for part in _kept(file.keep, footer.rows)
    ]
    layout = Layout(listing=listing, footers=tuple(footers), kept=tuple(kept))
    return layout, pa.schema(list(fields.values()))


def _refuse_twins(schema: pa.Schema, names: Collection[str], where: str) -> None:
    if len(set(schema.names)) == len(schema.names):
        return
    twins = [name for name in names if schema.names.count(name) > 1]
    if twins:
        raise DataError(
            f"several columns of the file have the same name: {', '.join(twins)}",
            where=where,
            fix="Write the file again with a different name for each column, or read only other "
            "columns: list them in columns=[...].",
        )


def _kept(keep: np.ndarray | None, rows: Sequence[int]) -> list[np.ndarray | None]:
    """Return the kept rows of each row group, including those beyond the end of `keep`."""
    if keep is None:
        return [None] * len(rows)
    whole = np.ones(sum(rows), dtype=bool)
    whole[: len(keep)] = keep[: len(whole)]
    ends = np.cumsum(rows, dtype=np.int64)
    return [
        np.flatnonzero(whole[end - num : end]).astype(np.int32)
        for num, end in zip(rows, ends, strict=True)
    ]


def _with_missing(
    listing: Listing, footers: Sequence[Footer], fields: Mapping[str, pa.Field]
) -> Listing:
    """Add nulls for the columns that a file does not have."""
    files = []
    for file, footer in zip(listing.files, footers, strict=True):
        nulls = {
            name: pa.scalar(None, field.type)
            for name, field in fields.items()
            if name not in footer.schema.names and name not in file.constants
        }
        files.append(replace(file, constants={**file.constants, **nulls}))
    return replace(listing, files=tuple(files))

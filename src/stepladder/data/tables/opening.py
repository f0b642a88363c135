"""Open a table: `open_table`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from stepladder.config.choices import Split
from stepladder.data.tables.blocks import BlockCache
from stepladder.data.tables.columns import Scalar
from stepladder.data.tables.footers import RowGroups
from stepladder.data.tables.layout import lay_out
from stepladder.data.tables.listing import list_table, of_split, written
from stepladder.data.tables.schema import Choices, columns_of
from stepladder.data.tables.source import TableSource
from stepladder.errors import DataError, UsageError


def open_table(
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    target: str | None = None,
    split: Split | str | None = None,
    split_column: str = "split",
    version: int | None = None,
    vectors: Iterable[str] = (),
    fill: Mapping[str, Scalar] | None = None,
    pad_value: float = 0,
    max_cache_bytes: int | None = None,
) -> TableSource:
    """Read rows of Parquet files, or of a Delta table, as dictionaries of tensors.

    Args:
        path: a file, a folder, a glob or a Delta table; of this machine or `s3://BUCKET/KEY`.
        columns: to read; None: all.
        target: column that becomes the batch's targets.
        split: take the rows of this split only: by a folder's name (`train/`, `split=train/`), by
            how file names begin (`train-0.parquet`), or else by the column split_column.
        version: of a Delta table; None: the latest, unless `data.table_version` says otherwise.
        vectors: columns of lists that all have one length, to be read as (n, k); other lists are
            padded to the longest of the batch, and NAME_lengths gives their lengths.
        fill: what takes the place of nulls, by column, as a batch holds it; a null in another
            column is an error.
        pad_value: behind the end of a shorter list; fits every list that is padded.
        max_cache_bytes: that this table's decoded row groups may take; None: all tables of the
            process share a quarter of the memory that is free when the first one is opened.

    Raises:
        DataError: if there is no such table, or a file of it is damaged, or other than the first.
        UsageError: if the choices do not fit its columns.
    """
    place = written(path)
    choices = Choices(
        columns=None if columns is None else tuple(columns),
        target=target,
        vectors=frozenset(vectors),
        fill=dict(fill or {}),
        pad_value=pad_value,
    )
    reopened = partial(
        open_table,
        path,
        columns=columns,
        target=target,
        split=split,
        split_column=split_column,
        vectors=tuple(vectors),
        fill=fill,
        pad_value=pad_value,
        max_cache_bytes=max_cache_bytes,
    )
    listing = list_table(place, version)
    wanted = None if split is None else _known(split)
    by_files = None if wanted is None else of_split(listing, wanted, split_column)
    layout, schema = lay_out(by_files or listing)
    names = choices.names(schema, place)
    layout.require_same(schema, names)
    row_groups = RowGroups(layout.listing, layout.footers)
    found = columns_of(
        schema, names, choices, place=place, values=partial(layout.values_of, row_groups)
    )
    if wanted is not None and by_files is None:
        layout = layout.of_split(row_groups, schema, wanted, split_column)
    if sum(layout.rows) == 0:
        raise DataError(
            f"there are no rows{'' if wanted is None else f' of the split {wanted}'}",
            where=place,
            fix="Give another path, or another split.",
        )
    return TableSource(
        layout,
        found,
        row_groups,
        target=target,
        key=repr((names, choices, wanted)),
        is_pinned=version is not None,
        at_version=lambda other: reopened(version=other),
        cache=None if max_cache_bytes is None else BlockCache(max_cache_bytes),
    )


def _known(split: Split | str) -> Split:
    try:
        return Split(split)
    except ValueError:
        raise UsageError(
            f"{split!r} is no split", where="split", fix=f"Give one of: {', '.join(Split)}."
        ) from None

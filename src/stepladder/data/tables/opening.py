"""Open a table (`open_table`) and load one shard of it (`shard_loader`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path

from stepladder.config.choices import OrderMode, Split
from stepladder.data.reading.arguments import choice, require_at_least
from stepladder.data.reading.examples import Source
from stepladder.data.reading.loader import Loader
from stepladder.data.sources.delta_log import VersionOption
from stepladder.data.tables.blocks import BlockCache
from stepladder.data.tables.columns import Scalar, cells_of
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
    """Read rows of Parquet files or a Delta table as dictionaries of tensors.

    Args:
        path: a file, a folder, a glob or a Delta table; a local path or `s3://BUCKET/KEY`.
        columns: columns to read; None: all.
        target: column of the batch's targets.
        split: read only the rows of this split, selected by folder name (`train/`, `split=train/`),
            by prefix of the file name (`train-0.parquet`), or else by the column split_column.
        version: version of a Delta table; None: the latest, or `data.table_version` if it is set.
        vectors: columns of lists that all have the same length, read as (n, k). Other lists are
            padded to the longest of the batch, with their lengths in NAME_lengths.
        fill: value that replaces nulls, by column, of the batch's type; nulls in other columns are
            an error.
        pad_value: padding value for all padded lists.
        max_cache_bytes: memory limit of this table's decoded row groups; None: all tables of the
            process share a quarter of the memory that is free when the first one is opened.

    Raises:
        DataError: if the table does not exist, or one of its files is damaged or has other columns.
        UsageError: if an argument does not match the columns.
    """
    choices = Choices(
        columns=None if columns is None else tuple(columns),
        target=target,
        vectors=frozenset(vectors),
        fill=dict(fill or {}),
        pad_value=pad_value,
    )
    return open_chosen(
        path,
        choices,
        split=split,
        split_column=split_column,
        version=version,
        max_cache_bytes=max_cache_bytes,
    )


def open_chosen(
    path: str | Path,
    choices: Choices,
    *,
    split: Split | str | None = None,
    split_column: str = "split",
    version: int | None = None,
    max_cache_bytes: int | None = None,
    option: VersionOption = VersionOption.OPEN_TABLE,
) -> TableSource:
    """Read rows like `open_table`, with the options of another interface.

    Args:
        option: option that errors about the version name.

    Raises:
        DataError: if the table does not exist, or one of its files is damaged or has other columns.
        UsageError: if an argument does not match the columns.
    """
    place = written(path)
    split = None if split is None else choice(Split, split, where="split")
    version = None if version is None else _counted(version)
    listing = list_table(place, version, option)
    by_files = None if split is None else of_split(listing, split, split_column)
    if by_files is not None and not by_files.files:
        raise _no_rows(place, split)
    layout, schema = lay_out(by_files or listing)
    names = choices.names(schema, place)
    layout.require_same(schema, names)
    row_groups = RowGroups(layout.listing, layout.footers)
    found = columns_of(
        schema, names, choices, place=place, values=partial(layout.values_of, row_groups)
    )
    if choices.as_cells:
        found = cells_of(found, row_groups.nullable(names))
    if split is not None and by_files is None:
        layout = layout.of_split(row_groups, schema, split, split_column)
    if sum(layout.rows) == 0:
        raise _no_rows(place, split)
    return TableSource(
        layout,
        found,
        row_groups,
        target=choices.target,
        key=repr((names, choices, split)),
        is_pinned=version is not None,
        at_version=lambda other: open_chosen(
            place,
            choices,
            split=split,
            split_column=split_column,
            version=other,
            max_cache_bytes=max_cache_bytes,
            option=VersionOption.RUN,
        ),
        cache=None if max_cache_bytes is None else BlockCache(max_cache_bytes),
    )


def _no_rows(place: str, split: Split | None) -> DataError:
    return DataError(
        f"the table has no rows{'' if split is None else f' of the split {split}'}",
        where=place,
        fix="Pass the path of another table."
        if split is None
        else "Pass another split, or the path of a table that has this split.",
    )


def _counted(version: int) -> int:
    if isinstance(version, bool) or not isinstance(version, Integral) or version < 0:
        raise UsageError(
            f"version must be an integer of 0 or more, not {version!r}",
            where="version",
            fix="Pass the number of a version, such as version=3, or None for the latest.",
        )
    return int(version)


def shard_loader(
    source: Source,
    *,
    batch_size: int,
    cur_shard: int = 0,
    shard_count: int = 1,
    num_epochs: int | None = None,
    seed: int = 42,
    shuffle: bool = True,
    threads: int = 0,
    order: OrderMode | str = OrderMode.AUTO,
    window_rows: int = 0,
) -> Loader:
    """Return a loader of one shard's part of each global batch, as dictionaries of tensors.

    A global batch has batch_size rows per shard, so all shards yield the same number of batches per
    epoch and no shard waits forever for another. If fewer rows than shards remain at the end of an
    epoch, they are dropped, as some shards would get an empty batch. The same applies when an epoch
    is resumed with a different number of shards.

    Raises:
        UsageError: if there are more shards than rows, or an argument is out of range.
    """
    require_at_least(1, batch_size=batch_size, shard_count=shard_count)
    require_at_least(0, cur_shard=cur_shard)
    if not cur_shard < shard_count <= len(source):
        raise UsageError(
            f"the {len(source)} rows of the table cannot be divided so that cur_shard={cur_shard} "
            f"of shard_count={shard_count} has any",
            where="cur_shard, shard_count",
            fix="Set cur_shard to a number from 0 to shard_count - 1, and shard_count to at most "
            "the number of rows.",
        )
    return Loader(
        source,
        batch_size=batch_size * shard_count,
        shuffle=shuffle,
        seed=seed,
        rank=cur_shard,
        world_size=shard_count,
        num_epochs=num_epochs,
        min_last=shard_count,
        threads=threads,
        order=order,
        window_rows=window_rows,
    )

"""Which order a source is read in: what `auto` and 0 mean for it, decided in one place."""

from __future__ import annotations

from dataclasses import replace

from stepladder.config.choices import OrderMode, Sampling
from stepladder.config.recipe import DataConfig
from stepladder.data.order.order import Order
from stepladder.data.reading.examples import ArrivalSource, Source
from stepladder.errors import UsageError

MIXED_BLOCKS_OF_A_WINDOW = 4
BLOCKS_OF_A_WINDOW = 16  # rows that lie in an order of their own want a wider mix
MIN_WINDOW_ROWS = 1024


def resolve_order(data: DataConfig, source: Source) -> DataConfig:
    """Replace `auto` and 0 by what they mean for a source, to be written down and kept.

    Depends on what the source is and not on how it is read: the same in memory and streamed.
    """
    window_rows = data.window_rows
    mode = _mode(data.order, source)
    if mode is OrderMode.WINDOWED:
        window_rows = window_rows or default_window_rows(source)
    is_far = source.block_rows is not None and not source.is_near
    sample = data.sample
    if sample is Sampling.AUTO:
        sample = Sampling.FILES if is_far else Sampling.ROWS
    return replace(data, order=mode, window_rows=window_rows, sample=sample)


def resolve_for_ranks(data: DataConfig, source: Source) -> DataConfig:
    """Replace what would depend on the memory or the disk of one rank alone, where there are more.

    A table is read in windows, however much of it fits: those of its blocks, which all ranks know.

    Raises:
        UsageError: if ranks could come to other orders, so that one must be named for all.
    """
    if source.block_rows is None or isinstance(source, ArrivalSource):
        return data
    is_by_memory = source.max_window_rows is not None
    is_fetched = source.files_stats() is not None
    if data.sample is Sampling.AUTO:
        is_of_files = is_by_memory or is_fetched
        data = replace(data, sample=Sampling.FILES if is_of_files else Sampling.ROWS)
    if data.order is OrderMode.AUTO and is_by_memory:
        data = replace(data, order=OrderMode.WINDOWED)
    if data.order is OrderMode.AUTO and not (source.is_near or is_fetched):
        raise UsageError(
            "rows are slow to read one by one here, and perhaps not for the other ranks",
            where="order",
            why="All ranks must have the same order, and auto would look at each machine alone.",
            fix="Give all ranks order=OrderMode.WINDOWED, or OrderMode.GLOBAL.",
        )
    if data.order is OrderMode.WINDOWED and not data.window_rows:
        data = replace(data, window_rows=_window_for_ranks(source))
    return data


def order_of(
    data: DataConfig, source: Source, *, seed: int, mode: OrderMode | None = None
) -> Order:
    """Return the order in which a run reads a source.

    Args:
        data: as the user gave it, or resolved.
        source: what is read.
        seed: chooses the shuffles.
        mode: in place of the one that data names; the same sample.
    """
    resolved = resolve_order(data if mode is None else replace(data, order=mode), source)
    return Order(
        seed=seed,
        num_examples=len(source),
        mode=_mode(resolved.order, source),
        fingerprint=source.fingerprint,
        fraction=resolved.fraction,
        fraction_seed=resolved.seed,
        block_rows=source.block_rows or (),
        window_rows=resolved.window_rows,
        is_sample_of_blocks=resolved.sample is Sampling.FILES and source.block_rows is not None,
    )


def default_window_rows(source: Source) -> int:
    """Return the rows of four blocks that are mixed already, or of sixteen; of small ones, more."""
    wanted = _window_of_blocks(source)
    return max(1, min(wanted, source.max_window_rows or wanted))


def _window_for_ranks(source: Source) -> int:
    wanted, limit = _window_of_blocks(source), source.max_window_rows
    if not source.is_near and limit is not None and wanted > limit:
        raise UsageError(
            f"a window of {wanted} rows does not fit into the memory of this rank",
            where="window_rows",
            why="All ranks must have the same order, so no rank takes a smaller one alone.",
            fix=f"Give all ranks window_rows={max(1, limit)} or fewer, or make row groups smaller.",
        )
    return wanted


def _window_of_blocks(source: Source) -> int:
    assert source.block_rows is not None
    mean = len(source) / len(source.block_rows)
    num_blocks = MIXED_BLOCKS_OF_A_WINDOW if source.has_mixed_blocks else BLOCKS_OF_A_WINDOW
    return max(MIN_WINDOW_ROWS, round(num_blocks * mean))


def _mode(mode: OrderMode, source: Source) -> OrderMode:
    """Say what a mode is for a source: without blocks, shuffled is shuffled over everything."""
    has_blocks = source.block_rows is not None and not isinstance(source, ArrivalSource)
    if mode is OrderMode.AUTO:
        is_far = has_blocks and not source.is_near
        return OrderMode.WINDOWED if is_far else OrderMode.GLOBAL
    if mode is OrderMode.WINDOWED and not has_blocks:
        return OrderMode.GLOBAL
    return mode

"""Choose the order in which a source is read: resolve `auto` and 0."""

from __future__ import annotations

from dataclasses import replace

from stepladder.config.choices import OrderMode, Sampling
from stepladder.config.recipe import DataConfig
from stepladder.data.order.order import Order
from stepladder.data.reading.examples import ArrivalSource, Source
from stepladder.errors import UsageError

MIXED_BLOCKS_OF_A_WINDOW = 4
BLOCKS_OF_A_WINDOW = 16  # unshuffled rows need more mixing
MIN_WINDOW_ROWS = 1024


def resolve_order(data: DataConfig, source: Source, *, num_hosts: int = 1) -> DataConfig:
    """Replace `auto` and 0 by their values for a source, to be saved with the run.

    Depends only on the source and the hosts: the result is the same in memory and streamed.

    Args:
        num_hosts: hosts of the run; the files of a far source are divided among them.
    """
    window_rows = data.window_rows
    mode = _mode(data.order, source, num_hosts=data.hosts)
    if mode is OrderMode.WINDOWED:
        window_rows = window_rows or default_window_rows(source)
    is_far = source.block_rows is not None and not source.is_near
    hosts = data.hosts or (num_hosts if is_far and mode is OrderMode.WINDOWED else 1)
    sample = data.sample
    if sample is Sampling.AUTO:
        sample = Sampling.FILES if is_far else Sampling.ROWS
    return replace(data, order=mode, window_rows=window_rows, sample=sample, hosts=hosts)


def refuse_hosts(data: DataConfig, source: Source) -> None:
    """Check that the files of a source can be divided among hosts, if the config says so.

    Raises:
        UsageError: if it has no files, or each batch is drawn from all of them.
    """
    if data.hosts <= 1:
        return
    off = "or type --data.hosts 1, so that every host reads all files."
    if data.order in (OrderMode.GLOBAL, OrderMode.SEQUENTIAL):
        raise UsageError(
            f"the files cannot be divided among {data.hosts} hosts, because the order of the "
            f"examples is {data.order}",
            where="data.hosts",
            why="Only a windowed order reads a few files at a time.",
            fix=f"Type --data.order windowed, {off}",
        )
    if source.block_rows is None or isinstance(source, ArrivalSource):
        raise UsageError(
            f"the training data cannot be divided among {data.hosts} hosts, because they are not "
            "in files that are read one after the other",
            where="data.hosts",
            fix=f"Read a store or a table, {off}",
        )


def resolve_for_ranks(data: DataConfig, source: Source) -> DataConfig:
    """Replace choices that could differ between ranks, such as by their memory or disk.

    A table is read in windows of its blocks, which are the same on all ranks.

    Raises:
        UsageError: if ranks could choose different orders, so that the user must set one.
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
            "order=auto cannot be used with several ranks (processes that train together) on this "
            "machine, whose disk is slow at random reads",
            where="order",
            why="All ranks must read in the same order, but auto chooses by the speed of the disk, "
            "which may differ on another machine.",
            fix="Set order=OrderMode.WINDOWED or OrderMode.GLOBAL on all ranks.",
        )
    if data.order is OrderMode.WINDOWED and not data.window_rows:
        data = replace(data, window_rows=_window_for_ranks(source))
    return data


def order_of(
    data: DataConfig,
    source: Source,
    *,
    seed: int,
    mode: OrderMode | None = None,
    batch_size: int = 0,
) -> Order:
    """Return the order in which a run reads a source.

    Args:
        data: config of the user, or resolved.
        source: the source.
        seed: seed of the shuffles.
        mode: overrides the mode in data; the sample is the same.
        batch_size: examples of a global batch, by which files are divided among hosts; 0: they are
            not divided.
    """
    resolved = resolve_order(data if mode is None else replace(data, order=mode), source)
    mode = _mode(resolved.order, source)
    is_divided = batch_size > 0 and source.block_rows is not None and mode is not OrderMode.GLOBAL
    return Order(
        seed=seed,
        num_examples=len(source),
        mode=mode,
        fingerprint=source.fingerprint,
        fraction=resolved.fraction,
        fraction_seed=resolved.seed,
        block_rows=source.block_rows or (),
        window_rows=resolved.window_rows,
        is_sample_of_blocks=resolved.sample is Sampling.FILES and source.block_rows is not None,
        num_hosts=resolved.hosts if is_divided else 1,
        batch_size=batch_size if is_divided and resolved.hosts > 1 else 0,
    )


def default_window_rows(source: Source) -> int:
    """Return the rows of four mixed blocks or sixteen others, and at least MIN_WINDOW_ROWS."""
    wanted = _window_of_blocks(source)
    return max(1, min(wanted, source.max_window_rows or wanted))


def _window_for_ranks(source: Source) -> int:
    wanted, limit = _window_of_blocks(source), source.max_window_rows
    if not source.is_near and limit is not None and wanted > limit:
        raise UsageError(
            f"{wanted:,} rows do not fit in the memory of this process (rank), but window_rows "
            "says that so many are read into memory to be shuffled",
            where="window_rows",
            why="window_rows must be the same in all processes that train together.",
            fix=f"Set window_rows={max(1, limit)} or less in all of them.",
        )
    return wanted


def _window_of_blocks(source: Source) -> int:
    assert source.block_rows is not None
    mean = len(source) / len(source.block_rows)
    num_blocks = MIXED_BLOCKS_OF_A_WINDOW if source.has_mixed_blocks else BLOCKS_OF_A_WINDOW
    return max(MIN_WINDOW_ROWS, round(num_blocks * mean))


def _mode(mode: OrderMode, source: Source, *, num_hosts: int = 1) -> OrderMode:
    """Return the resolved mode for a source; without blocks, windowed becomes global.

    Args:
        num_hosts: hosts among which the user has divided the files.
    """
    has_blocks = source.block_rows is not None and not isinstance(source, ArrivalSource)
    if mode is OrderMode.AUTO:
        is_far = has_blocks and (not source.is_near or num_hosts > 1)
        return OrderMode.WINDOWED if is_far else OrderMode.GLOBAL
    if mode is OrderMode.WINDOWED and not has_blocks:
        return OrderMode.GLOBAL
    return mode

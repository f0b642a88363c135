"""Measure the time of one thread to read an example from its storage."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stepladder.data.reading.examples import ArrivalSource, PictureSource, Source
from stepladder.data.reading.reader import Reader, ReaderStats

_LOOK_S: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class ReadingCost:
    """Seconds of one thread, and bytes, per example.

    Attributes:
        cpu_s: time of the reader's threads: a copy, if images are held in memory.
        fetch_s, decode_s: fetching and verifying its stored bytes, and decoding them; None: the
            source does not measure them separately.
        num_bytes: stored bytes; None: unknown.
    """

    cpu_s: float
    fetch_s: float | None = None
    decode_s: float | None = None
    num_bytes: float | None = None


def cost_while_drained(
    reader: Reader,
    drained: ReaderStats,
    rows: np.ndarray,
    *,
    now: Callable[[], float] = time.perf_counter,
) -> ReadingCost | None:
    """Return the cost per example in an interval of reading.

    If files are remote, threads also waited for them; then some of the rows are read again, now
    that their files are local. The link is measured separately.

    Args:
        drained: the reader's statistics of that interval.
        rows: the last rows that it returned.
    """
    source = reader.source
    if not isinstance(source, PictureSource):
        return measure_reading(source, reader.global_batch_size, now=now)
    counted = reader.stats if reader.is_held else drained
    stored = ReadingCost(
        cpu_s=(drained.fetch_s + drained.decode_s) / max(1, drained.num_rows),
        fetch_s=counted.fetch_example_s,
        decode_s=counted.decode_example_s,
        num_bytes=counted.example_bytes,
    )
    if source.files_stats() is not None:
        stored = _of_pictures(source, rows, now=now)
    if not reader.is_held:
        return stored
    return ReadingCost(
        cpu_s=drained.copy_s / max(1, drained.num_rows),
        fetch_s=stored.fetch_s,
        decode_s=stored.decode_s,
        num_bytes=stored.num_bytes,
    )


def measure_reading(
    source: Source, batch_size: int, *, now: Callable[[], float] = time.perf_counter
) -> ReadingCost | None:
    """Time some batches in this thread; None if rows cannot be requested.

    The rows are spread over the source, or are its first ones if random access is expensive.
    """
    if isinstance(source, ArrivalSource):
        return None
    num_rows = min(len(source), 4 * batch_size)
    rows = np.arange(num_rows)
    if source.is_near:
        rows = np.linspace(0, len(source) - 1, num_rows).astype(np.int64)
    if isinstance(source, PictureSource):
        source.labels_of(rows[:1])  # opens (or fetches) its file here, outside of the timing
        return _of_pictures(source, rows, now=now)
    started = now()
    num_read = 0
    for start in range(0, num_rows, batch_size):
        part = rows[start : start + batch_size]
        source.read(part)
        num_read += len(part)
        if now() - started > _LOOK_S:
            break
    return ReadingCost(cpu_s=(now() - started) / num_read)


def loader_facts(cost: ReadingCost | None, source: Source) -> dict[str, Any]:
    """Return the fields of a Profile about reading a source."""
    files = source.files_stats()
    facts: dict[str, Any] = {
        "cache_hit_frac": files.hit_frac if files is not None else None,
        "is_store_near": source.is_near if source.block_rows is not None else None,
    }
    if cost is None:
        return facts
    rate = cost.num_bytes / cost.fetch_s if cost.num_bytes and cost.fetch_s else None
    return {
        **facts,
        "loader_cpu_s": cost.cpu_s,
        "loader_fetch_s": cost.fetch_s,
        "loader_decode_s": cost.decode_s,
        "fetch_bytes_per_s": rate,
    }


def _of_pictures(
    source: PictureSource, rows: np.ndarray, *, now: Callable[[], float]
) -> ReadingCost:
    started = now()
    stats, num_read = ReaderStats(), 0
    out = np.empty((source.rows_per_task, *source.picture_shape), dtype=np.uint8)
    for start in range(0, len(rows), source.rows_per_task):
        part = rows[start : start + source.rows_per_task]
        stats.add(source.read_into(part, out[: len(part)]))
        num_read += len(part)
        if now() - started > _LOOK_S:
            break
    return ReadingCost(
        cpu_s=(stats.fetch_s + stats.decode_s) / num_read,
        fetch_s=stats.fetch_s / num_read,
        decode_s=stats.decode_s / num_read,
        num_bytes=stats.num_bytes / num_read,
    )

"""The reader's own statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.config.choices import Encoding, Split
from stepladder.data.reading.examples import ReadCost
from stepladder.data.reading.reader import Reader, ReaderStats
from stepladder.data.store.shard_files import ShardFilesStats
from stepladder.data.store.store import Store


def test_numbers_of_an_example_and_of_a_second() -> None:
    stats = ReaderStats(wait_s=0.5, num_read=10)
    stats.add(ReadCost(fetch_s=2.0, decode_s=6.0, num_bytes=1000))
    assert (stats.fetch_example_s, stats.decode_example_s, stats.example_bytes) == (0.2, 0.6, 100)
    assert stats.fetch_bytes_per_s == 500
    assert stats.wait_frac(10.0) == 0.05
    before = replace(stats)
    stats.add(ReadCost(fetch_s=1.0))
    stats.num_read += 5
    assert stats.since(before) == ReaderStats(fetch_s=1.0, num_read=5)


def test_what_was_not_read_has_no_numbers() -> None:
    empty = ReaderStats(num_rows=3)
    assert empty.fetch_example_s is None
    assert empty.decode_example_s is None
    assert empty.example_bytes is None
    assert empty.fetch_bytes_per_s is None
    assert empty.wait_frac(0.0) == 0.0
    assert ShardFilesStats().hit_frac is None
    assert ShardFilesStats(num_hits=3, num_misses=1).hit_frac == 0.75


@pytest.mark.parametrize("encoding", [Encoding.PIXELS, Encoding.JPEG])
def test_a_store_counts_what_was_read_of_it(
    tmp_path: Path, build_store: Callable, encoding: Encoding
) -> None:
    build_store(tmp_path / "s", num_rows={"train": 50}, size=16, encoding=encoding)
    source = Store.open(tmp_path / "s").split(Split.TRAIN)
    assert source is not None
    assert source.files_stats() is None
    reader = Reader(source, seed=0, global_batch_size=16, threads=2)
    list(reader.epoch(0))
    stats = reader.stats
    assert stats.num_read == stats.num_rows == 50
    assert stats.fetch_s > 0
    assert (stats.decode_s > 0) == (encoding is Encoding.JPEG)
    is_whole = stats.num_bytes == 50 * 16 * 16 * 3
    assert is_whole == (encoding is Encoding.PIXELS)
    assert stats.num_bytes > 0

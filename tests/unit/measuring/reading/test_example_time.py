"""The time of one thread to read an example, without waiting and copying."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from stepladder.config.choices import Where
from stepladder.data.reading.examples import Examples, PictureSource, ReadCost, Source
from stepladder.data.reading.reader import Reader
from stepladder.data.remote.objects import ObjectInfo
from stepladder.data.remote.places import ObjectPlace
from stepladder.data.store.shard_files import ShardFilesStats
from stepladder.measuring.reading.example_time import (
    ReadingCost,
    cost_while_drained,
    loader_facts,
    measure_reading,
)
from stepladder.measuring.reading.link import link_rate


class Rows(Source):
    fingerprint = "rows"

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __len__(self) -> int:
        return 10

    def read(self, rows: np.ndarray) -> Examples:
        self.seen += rows.tolist()
        return Examples(torch.zeros(len(rows)), None)


class Pictures(PictureSource):
    """Each takes 1 s to fetch and 3 s to decode, by its own clock, and the first one waits."""

    fingerprint = "pictures"
    picture_shape = (2, 2, 3)

    def __init__(self, *, waited_s: float = 0.0) -> None:
        self.labels = np.zeros(64, dtype=np.int64)
        self.waited_s = waited_s

    def __len__(self) -> int:
        return 64

    def files_stats(self) -> ShardFilesStats | None:
        return ShardFilesStats(num_hits=3, num_misses=1) if self.waited_s else None

    def read_into(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        out[:] = 0
        waited_s = self.waited_s if 0 in rows else 0.0
        n = len(rows)
        return ReadCost(fetch_s=n + waited_s, decode_s=3.0 * n, num_bytes=100 * n)


def drained(source: PictureSource, where: Where = Where.STREAM) -> ReadingCost:
    """Read an epoch in order, and return the cost measured on its last sixteen rows."""
    reader = Reader(source, seed=0, global_batch_size=16, where=where, threads=1)
    before = replace(reader.stats)
    list(reader.epoch(0))
    cost = cost_while_drained(reader, reader.stats.since(before), np.arange(48, 64))
    assert cost is not None
    return cost


def test_fetching_and_decoding_are_distinguished() -> None:
    assert drained(Pictures()) == ReadingCost(cpu_s=4, fetch_s=1, decode_s=3, num_bytes=100)


def test_of_pictures_in_memory_a_copy_counts_and_what_loading_took() -> None:
    cost = drained(Pictures(), Where.MEMORY)
    assert (cost.fetch_s, cost.decode_s, cost.num_bytes) == (1, 3, 100)
    assert 0 < cost.cpu_s < 1


def test_waiting_for_files_to_arrive_is_no_work_of_a_thread() -> None:
    assert drained(Pictures(waited_s=1000.0)).fetch_s == 1


def test_reading_is_timed_over_rows_from_the_whole_source() -> None:
    source = Rows()
    cost = measure_reading(source, 2)
    assert cost is not None
    assert cost.cpu_s > 0
    assert (cost.fetch_s, cost.decode_s) == (None, None)
    assert (source.seen[0], source.seen[-1]) == (0, 9)


def test_where_single_rows_are_dear_the_first_ones_are_read() -> None:
    source = Rows()
    source.is_near = False
    measure_reading(source, 2)
    assert source.seen == [*range(8)]


def test_facts_of_the_profile() -> None:
    source = Pictures(waited_s=1.0)
    source.block_rows, source.is_near = (32, 32), False
    cost = ReadingCost(cpu_s=0.5, fetch_s=0.1, decode_s=0.4, num_bytes=1000)
    assert loader_facts(cost, source) == {
        "cache_hit_frac": 0.75,
        "is_store_near": False,
        "loader_cpu_s": 0.5,
        "loader_fetch_s": 0.1,
        "loader_decode_s": 0.4,
        "fetch_bytes_per_s": pytest.approx(10_000),
    }
    assert loader_facts(None, Rows()) == {"cache_hit_frac": None, "is_store_near": None}


class OneObject:
    """An object store with one object of a given size; records the requested ranges."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.asked: list[tuple[int, int]] = []

    def info(self, place: ObjectPlace) -> ObjectInfo:
        return ObjectInfo(place=place, size_bytes=self.size_bytes, etag="")

    def stream(self, _: ObjectPlace, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        assert stop is not None
        self.asked.append((start, stop))
        yield bytes(stop - start)


def test_the_link_is_measured_over_each_byte_once() -> None:
    objects = OneObject(1_000_003)
    rate = link_rate(objects, ObjectPlace("bucket", "key"), objects.size_bytes)  # type: ignore[arg-type]
    assert rate is not None
    assert rate > 0
    asked = sorted(objects.asked)
    assert (asked[0][0], asked[-1][1], len(asked)) == (0, 1_000_003, 16)
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(asked))

"""A split of a store with remote files: which files are open, and for whom."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.config.choices import OrderMode, Split, Where
from stepladder.config.recipe import DataConfig
from stepladder.data.order.order_choice import resolve_order
from stepladder.data.reading.reader import Reader
from stepladder.data.store.index import index_path
from stepladder.data.store.shard_files import LocalShardFiles
from stepladder.data.store.store import Store, StoreSplit
from stepladder.records import ShardInfo

NUM_FILES = 24


class FetchedFiles(LocalShardFiles):
    """Files that must be fetched; counts those that are held."""

    is_local = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._lock = threading.RLock()  # a file may be released within our own calls
        self._users: Counter[str] = Counter()
        self._expected: set[str] = set()
        self.most_held = 0
        self.not_expected: set[str] = set()

    def path(self, info: ShardInfo) -> Path:
        with self._lock:
            self._users[info.name] += 1
            self.most_held = max(self.most_held, len(+self._users))
            self.not_expected |= {info.name} - self._expected
        return super().path(info)

    def index(self, info: ShardInfo) -> bytes:
        return index_path(super().path(info)).read_bytes()

    def release(self, info: ShardInfo) -> None:
        with self._lock:
            self._users[info.name] -= 1

    def expect(self, infos: Sequence[ShardInfo]) -> None:
        self._expected |= {info.name for info in infos}


def train_of(folder: Path, files: FetchedFiles | None = None) -> StoreSplit:
    split = Store.open(folder, files=files).split(Split.TRAIN)
    assert split is not None
    return split


@pytest.fixture
def many(tmp_path: Path, build_store: Any, monkeypatch: pytest.MonkeyPatch) -> FetchedFiles:
    """A store with more files than a window has."""
    monkeypatch.setattr("stepladder.data.order.order_choice.MIN_WINDOW_ROWS", 1)
    build_store(tmp_path / "s", num_rows={"train": 10 * NUM_FILES}, shards=NUM_FILES)
    return FetchedFiles(tmp_path / "s")


@pytest.mark.parametrize("kind", ["fetched", "large"])
def test_a_rank_without_rows_gets_an_empty_part_of_the_batch(
    tmp_path: Path, build_store: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    build_store(tmp_path / "s", num_rows={"train": 18})
    if kind == "large":
        monkeypatch.setattr("stepladder.data.store.store_split.MAX_ROWS", 1)
    split = train_of(tmp_path / "s", FetchedFiles(tmp_path / "s") if kind == "fetched" else None)
    parts = [
        list(Reader(split, seed=0, global_batch_size=16, rank=rank, world_size=4).epoch(0))
        for rank in range(4)
    ]
    assert [[len(batch.targets) for batch in part] for part in parts] == [
        [4, 1],
        [4, 1],
        [4, 0],
        [4, 0],
    ]


@pytest.mark.parametrize("where", [Where.STREAM, Where.MEMORY])
def test_reading_in_stored_order_holds_a_few_files_announced_ahead(
    many: FetchedFiles, tmp_path: Path, where: Where
) -> None:
    split = train_of(tmp_path / "s", many)
    split.rows_per_task = 8
    made = Reader(split, seed=0, global_batch_size=8, mode=OrderMode.SEQUENTIAL, where=where)
    assert sum(len(batch.ids) for batch in made.epoch(0)) == len(split)
    assert many.not_expected == set()
    assert many.most_held < 0.75 * NUM_FILES  # three steps of about five


@pytest.mark.parametrize("name", ["describe", "sha256", "picture"])
def test_rows_that_were_not_announced_hold_a_few_files(
    many: FetchedFiles, tmp_path: Path, name: str
) -> None:
    split, here = train_of(tmp_path / "s", many), train_of(tmp_path / "s")
    for row in range(0, len(split), 5):
        assert np.array_equal(getattr(split, name)(row), getattr(here, name)(row))
    assert len(many.not_expected) > NUM_FILES / 2
    assert many.most_held < NUM_FILES / 2


def test_a_store_behind_a_network_is_read_in_windows_and_not_mapped(
    tmp_path: Path, build_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = build_store(tmp_path / "s")["train"]
    assert train_of(tmp_path / "s").is_near
    monkeypatch.setattr(
        "stepladder.data.store.store_split.is_far", lambda path: path == tmp_path / "s"
    )
    split = train_of(tmp_path / "s")
    assert resolve_order(DataConfig(), split).order is OrderMode.WINDOWED
    os.truncate(tmp_path / "s" / "train-0.parquet.index", 0)  # read when it was opened
    for _ in range(2):  # the second time, pages are verified and would be mapped
        assert np.array_equal(split.picture(0), pictures[0])
    assert "mapping" not in vars(split._shards[0])

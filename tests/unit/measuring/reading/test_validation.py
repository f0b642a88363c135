"""Validation pictures that a run holds in memory are read once, and only as far as needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stepladder.config.choices import OptimizerName, Split, WeightsSource, Where
from stepladder.config.recipe import DataConfig, DeviceConfig, ModelConfig, OptimizerConfig, Recipe
from stepladder.data.reading.examples import PictureSource, ReadCost
from stepladder.data.store.store import Store, StoreSplit
from stepladder.measuring.blocks.workload import Workload
from stepladder.measuring.reading.validation import KeptPictures, hold_batches, open_validation
from stepladder.task.image_classification import ImageClassification
from stepladder.training.setup.build import open_sources

RECIPE = Recipe(
    data=DataConfig(where=Where.MEMORY),
    model=ModelConfig(name="test_byobnet", weights=WeightsSource.NONE),
    optimizer=OptimizerConfig(name=OptimizerName.SGD),
    device=DeviceConfig(threads=1),
)
HOW = RECIPE.batch, RECIPE.loader


class Numbers(PictureSource):
    """Pictures filled with their row number, recording all reads."""

    def __init__(self, n: int) -> None:
        self.fingerprint = "numbers"
        self.labels = np.arange(n, dtype=np.int64) % 7
        self.picture_shape = (2, 4, 3)
        self.rows_per_task = 3
        self.seen: list[int] = []

    def __len__(self) -> int:
        return len(self.labels)

    def read_into(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        self.seen += rows.tolist()
        out[...] = rows[:, None, None, None]
        return ReadCost(num_bytes=out.nbytes)


def test_rows_are_read_once_and_come_as_they_are() -> None:
    source = Numbers(40)
    kept = KeptPictures(source)
    out = np.empty((3, 2, 4, 3), dtype=np.uint8)
    for rows in ([7, 2, 39], [2, 7, 2], [39, 1, 7]):
        cost = kept.read_into(np.array(rows), out)
        assert out[:, 0, 0, 0].tolist() == rows
        assert cost.num_bytes == out.nbytes
    assert sorted(source.seen) == [1, 2, 7, 39]
    assert len(kept) == 40


def test_only_the_batches_that_are_used_are_read_ahead() -> None:
    source = Numbers(100)
    reader = open_validation(source, *HOW, Where.MEMORY)
    assert reader is not None
    hold_batches(reader, 2)
    assert source.seen == list(range(64))
    hold_batches(reader, 9)
    assert source.seen == list(range(100))
    (*_, last) = reader.epoch(0)
    assert last.inputs[:, 0, 0, 0].tolist() == [96, 97, 98, 99]
    reader.close()


def test_a_run_that_streams_reads_each_validation_again() -> None:
    source = Numbers(10)
    reader = open_validation(source, *HOW, Where.STREAM)
    assert reader is not None
    hold_batches(reader, 1)
    assert source.seen == []
    assert open_validation(None, *HOW, Where.MEMORY) is None


def test_no_block_of_a_run_in_memory_waits_for_its_validation_pictures(
    tmp_path: Path, build_store: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    build_store(folder)
    recipe = replace(RECIPE, data=replace(RECIPE.data, store=folder))
    task = ImageClassification(folder, recipe)
    sources = open_sources(task)
    seen: list[int] = []
    read_into = StoreSplit.read_into

    def spy(self: StoreSplit, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        if self is sources.val:
            seen.extend(rows.tolist())
        return read_into(self, rows, out)

    monkeypatch.setattr(StoreSplit, "read_into", spy)
    workload = Workload(recipe, task, sources, device=torch.device("cpu"), cache=tmp_path / "cache")
    try:
        blocks = [workload.block(1e-3) for _ in range(3)]
    finally:
        workload.close()
    val = Store.open(folder).split(Split.VAL)
    assert val is not None
    assert all(block.validation_s > 0 for block in blocks)
    assert sorted(seen) == list(range(len(val))), "each once, over all validations"

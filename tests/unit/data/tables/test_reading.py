"""A table through the Reader: shuffled, streamed in windows, by rank; and a Task on tokens."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

from stepladder.config.choices import OptimizerName, OrderMode, Split, TrainMode
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.data import open_table
from stepladder.data.batch import Batch
from stepladder.data.order.order_choice import resolve_order
from stepladder.data.reading.reader import Reader
from stepladder.data.tables.footers import RowGroups
from stepladder.data.tables.source import TableSource
from stepladder.task import Task
from stepladder.training.output.display import Display
from stepladder.training.run import train

NUM_ROWS = 3000


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of ten row groups each; x is the row number."""
    folder = tmp_path_factory.mktemp("numbers")
    for i in range(3):
        x = np.arange(i * 1000, (i + 1) * 1000)
        pq.write_table(pa.table({"x": x}), folder / f"{i}.parquet", row_group_size=100)
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """Return how often each row group is read."""
    counts: Counter[tuple[int, int]] = Counter()
    plain = RowGroups.read

    def counted(self, file_idx, group, columns):
        counts[file_idx, group] += 1
        return plain(self, file_idx, group, columns)

    monkeypatch.setattr(RowGroups, "read", counted)
    return counts


def make_reader(source: TableSource, mode: OrderMode, **more: int) -> Reader:
    options = {"seed": 3, "global_batch_size": 32, "mode": mode, "window_rows": 400, **more}
    return Reader(source, **options)


@pytest.mark.parametrize(
    ("mode", "files", "limit"),
    [
        (OrderMode.GLOBAL, "*", None),
        (OrderMode.GLOBAL, "0", 4_000),
        (OrderMode.WINDOWED, "*", None),
        (OrderMode.WINDOWED, "*", 12_000),
    ],
)
def test_an_epoch_is_every_row_once_wherever_it_is(
    mode: OrderMode, files: str, limit: int | None, numbers: Path
) -> None:
    source = open_table(numbers / f"{files}.parquet", max_cache_bytes=limit)
    assert source.is_near == (limit is None)
    batches = list(make_reader(source, mode).epoch(0))
    rows = torch.cat([batch.inputs["x"] for batch in batches]).tolist()
    assert rows != sorted(rows) == list(range(len(source)))
    assert rows == torch.cat([batch.ids for batch in batches]).tolist()


def test_windows_decode_each_row_group_once_an_epoch_in_bounded_memory(
    numbers: Path, reads: Counter[tuple[int, int]]
) -> None:
    limit = 12_000  # 15 row groups of 30: two windows of four, and some in flight
    source = open_table(numbers, max_cache_bytes=limit)
    reads.clear()
    for _ in make_reader(source, OrderMode.WINDOWED, threads=2).epoch(0):
        pass
    assert len(reads) == 30
    assert set(reads.values()) == {1}


def test_a_large_table_is_read_in_windows_and_a_small_one_shuffled_over_all(numbers: Path) -> None:
    data = DataConfig()
    assert resolve_order(data, open_table(numbers)).order is OrderMode.GLOBAL
    large = open_table(numbers, max_cache_bytes=1000)
    assert resolve_order(data, large).order is OrderMode.WINDOWED


def test_ranks_share_a_batch_and_an_empty_part_keeps_its_form(numbers: Path) -> None:
    source = open_table(numbers / "0.parquet")
    parts = [
        list(make_reader(source, OrderMode.GLOBAL, rank=r, world_size=3).epoch(0)) for r in (0, 1)
    ]
    whole = list(make_reader(source, OrderMode.GLOBAL).epoch(0))
    for own, next_one, batch in zip(*parts, whole, strict=True):
        both = torch.cat([own.inputs["x"], next_one.inputs["x"]])
        assert torch.equal(both, batch.inputs["x"][: len(both)])
    reader = make_reader(source, OrderMode.GLOBAL, rank=2, world_size=3, global_batch_size=2)
    assert next(reader.epoch(0)).inputs["x"].shape == (0,)


class Languages(Task):
    """Classify two languages by their tokens: padded lists, with a column of lengths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 2))

    def data(self, split: Split) -> TableSource | None:
        return None if split is Split.TEST else open_table(self.folder, target="y", split=split)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens, lengths = batch.inputs["tokens"], batch.inputs["tokens_lengths"]
        is_real = torch.arange(tokens.shape[1]) < lengths[:, None]  # (n, t)
        logits = (model(tokens) * is_real[..., None]).sum(1) / lengths[:, None]
        return nn.functional.cross_entropy(logits, batch.targets, reduction="none")


def test_a_task_of_tokens_learns(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for split, num_rows in (("train", 200), ("val", 50)):
        y = random.integers(0, 2, num_rows)
        tokens = [(10 * k + random.integers(0, 14, random.integers(1, 9))) % 20 for k in y]
        pq.write_table(pa.table({"tokens": tokens, "y": y}), tmp_path / f"{split}-0.parquet")
    recipe = Recipe(
        train=TrainMode.ALL,
        batch=BatchConfig(global_batch_size=16, lr=0.05),
        optimizer=OptimizerConfig(name=OptimizerName.NADAM),
        schedule=ScheduleConfig(max_epochs=4),
        stopping=StoppingConfig(early=False),
    )
    job = JobConfig(recipe=recipe, run=RunConfig(dir=tmp_path / "run"))
    display = Display(io.StringIO())
    summary = train(job, Languages(tmp_path), task_name="x.py:Languages", display=display)
    assert summary["val_loss"] < 0.45  # chance is ln 2 = 0.69

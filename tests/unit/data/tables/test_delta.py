"""A Delta table is read at one version, and a run goes on with the version that it began with."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from stepladder.config.choices import OptimizerName, Split, TrainMode
from stepladder.config.load import load_job
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
from stepladder.data.tables.source import TableSource
from stepladder.errors import DataError, InterruptedRun, UsageError
from stepladder.task import Task
from stepladder.train.display import Display
from stepladder.train.run import train

deltalake = pytest.importorskip("deltalake")


def points(num_rows: int, seed: int, split: str) -> pa.Table:
    random = np.random.default_rng(seed)
    x = random.normal(size=(num_rows, 2)).astype(np.float32)
    columns = {"a": x[:, 0], "b": x[:, 1], "y": (x.sum(1) > 0).astype(np.int64)}
    return pa.table(columns).append_column("split", pa.array([split] * num_rows))


def append(place: Path, num_rows: int, seed: int) -> None:
    table = pa.concat_tables([points(num_rows, seed, "train"), points(8, seed + 1, "val")])
    deltalake.write_deltalake(place, table, mode="append", partition_by=["split"])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A table in its first version."""
    append(tmp_path / "delta", 24, seed=1)
    return tmp_path / "delta"


class Points(Task):
    """Tell on which side of a line a point lies."""

    def __init__(self, place: Path, *, version: int | None = None) -> None:
        self.place = place
        self.version = version
        self.stop_at: int | None = None
        self.num_steps = 0

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Linear(2, 2)

    def data(self, split: Split) -> TableSource | None:
        if split is Split.TEST:
            return None
        columns = ["a", "b"]
        return open_table(
            self.place, columns=columns, target="y", split=split, version=self.version
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x = torch.stack([batch.inputs["a"], batch.inputs["b"]], dim=1)
        return nn.functional.cross_entropy(model(x), batch.targets, reduction="none")

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        self.num_steps += 1
        if self.num_steps == self.stop_at:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)
        return batch


def job(folder: Path, **data: object) -> JobConfig:
    recipe = Recipe(
        train=TrainMode.ALL,
        data=DataConfig(**data),
        batch=BatchConfig(global_batch_size=5, lr=0.05),
        optimizer=OptimizerConfig(name=OptimizerName.NADAM),
        schedule=ScheduleConfig(max_epochs=2),
        stopping=StoppingConfig(early=False),
    )
    return JobConfig(recipe=recipe, run=RunConfig(dir=folder, checkpoint_every_s=0))


def run(config: JobConfig, task: Task, **options: bool) -> dict:
    return train(
        config, task, task_name="points.py:Points", display=Display(io.StringIO()), **options
    )


def weights(folder: Path) -> bytes:
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    return (newest / "model.safetensors").read_bytes()


def test_a_version_is_what_it_was(place: Path) -> None:
    before = open_table(place, split="train")
    append(place, 10, seed=5)
    now = open_table(place, split="train")
    assert (before.version, len(before), now.version, len(now)) == (0, 24, 1, 34)
    pinned = open_table(place, split="train", version=0)
    assert (pinned.is_pinned, now.is_pinned) == (True, False)
    assert pinned.fingerprint == before.fingerprint == now.at_version(0).fingerprint
    assert now.fingerprint != before.fingerprint
    assert now.read(np.array([0])).inputs["split"] == ["train"]


def test_rows_that_were_deleted_are_not_read(place: Path) -> None:
    table = deltalake.DeltaTable(place)
    kept = [value for value in table.to_pyarrow_table()["a"].to_pylist() if value <= 0]
    table.delete("a > 0")
    source = open_table(place)
    assert sorted(source.read(np.arange(len(source))).inputs["a"].tolist()) == sorted(kept)


def test_a_column_that_came_later_is_null_before(place: Path) -> None:
    new = points(3, 9, "train").append_column("c", pa.array([1.0, 2.0, 3.0]))
    deltalake.write_deltalake(place, new, mode="append", schema_mode="merge")
    source = open_table(place, columns=["c"], fill={"c": 0.0})
    values = source.read(np.arange(len(source))).inputs["c"]
    assert sorted(values.tolist())[-4:] == [0, 1, 2, 3]
    with pytest.raises(DataError, match="column c is null"):
        open_table(place, columns=["c"]).read(np.arange(len(source)))


def test_a_version_that_is_not_there_and_a_vacuumed_file_are_told(place: Path) -> None:
    with pytest.raises(UsageError, match=r"no version 7(.|\n)*version=0"):
        open_table(place, version=7)
    next(place.rglob("*.parquet")).unlink()
    with pytest.raises(DataError, match="VACUUM"):
        open_table(place)


def test_a_resumed_run_reads_the_version_that_it_began_with(place: Path, tmp_path: Path) -> None:
    run(job(tmp_path / "whole"), Points(place, version=0))
    task = Points(place)
    task.stop_at = 7
    with pytest.raises(InterruptedRun):
        run(job(tmp_path / "cut"), task)
    append(place, 40, seed=5)
    again = Points(place)
    run(job(tmp_path / "cut"), again)
    assert again.num_steps == 2 * 5 - 7
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    written = load_job(tmp_path / "cut" / "config.yaml").recipe.data
    assert written.table_version == 0


def test_another_version_is_other_data(place: Path, tmp_path: Path) -> None:
    run(job(tmp_path / "r"), Points(place))
    append(place, 40, seed=5)
    more = job(tmp_path / "r", table_version=1)
    more = replace(more, recipe=replace(more.recipe, schedule=ScheduleConfig(max_epochs=3)))
    with pytest.raises(DataError, match="accept-new-data"):
        run(more, Points(place))
    run(more, Points(place), accept_new_data=True)
    assert load_job(tmp_path / "r" / "config.yaml").recipe.data.table_version == 1


def test_two_versions_that_are_asked_for_are_refused(place: Path, tmp_path: Path) -> None:
    append(place, 40, seed=5)
    with pytest.raises(UsageError, match="reads version 1, and the run version 0"):
        run(job(tmp_path / "r", table_version=0), Points(place, version=1))

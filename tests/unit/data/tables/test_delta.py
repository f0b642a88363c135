"""A Delta table is read at one version, and a resumed run uses the version that it started with."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

from stepladder.checks.job import open_job
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
from stepladder.data.reading.examples import Source
from stepladder.data.tables.source import TableSource
from stepladder.diagnosis.runs.opened_run import open_run
from stepladder.errors import (
    DataError,
    InterruptedRun,
    ResourceError,
    StepladderError,
    UsageError,
)
from stepladder.ladder import climb_run as climb_module
from stepladder.ladder.ledger import Ledger
from stepladder.task import Task
from stepladder.training.features.feature_stage import compute_features
from stepladder.training.features.spark import FeatureTasks
from stepladder.training.output.display import Display
from stepladder.training.run import train
from stepladder.training.setup.table_version import open_at_version

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
    """Classify points by the side of a line."""

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


class Stacked(nn.Module):
    """Concatenate the columns, and apply a fixed layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 4)

    def forward(self, columns: dict[str, Tensor]) -> Tensor:
        return self.layer(torch.stack([columns["a"], columns["b"]], dim=1))


class Frozen(Points):
    """The same with a trunk and a head."""

    is_random_before_head = False

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(Stacked(), nn.Linear(4, 2))

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        return model[0], model[1]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


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


@pytest.mark.usefixtures("short_vectors")
@pytest.mark.parametrize("deleted", [[2, 5], [1, 7, 12], [0, 19]])
def test_rows_beyond_the_end_of_a_deletion_vector_are_read(
    tmp_path: Path, delete_by_vector: Any, deleted: list[int]
) -> None:
    place = tmp_path / "vectors"
    place.mkdir()
    pq.write_table(pa.table({"x": range(20)}), place / "rows.parquet", row_group_size=6)
    deltalake.convert_to_deltalake(place)
    delete_by_vector(place, deleted)
    source = open_table(place)
    kept = [row for row in range(20) if row not in deleted]
    assert source.read(np.arange(len(source))).inputs["x"].tolist() == kept
    assert source.describe(len(kept) - 1) == f"rows.parquet, row {kept[-1]}"


def test_a_column_that_came_later_is_null_before(place: Path) -> None:
    new = points(3, 9, "train").append_column("c", pa.array([1.0, 2.0, 3.0]))
    deltalake.write_deltalake(place, new, mode="append", schema_mode="merge")
    source = open_table(place, columns=["c"], fill={"c": 0.0})
    values = source.read(np.arange(len(source))).inputs["c"]
    assert sorted(values.tolist())[-4:] == [0, 1, 2, 3]
    with pytest.raises(DataError, match="column c is null"):
        open_table(place, columns=["c"]).read(np.arange(len(source)))


def test_a_version_that_is_not_there_and_a_vacuumed_file_are_reported(place: Path) -> None:
    with pytest.raises(UsageError, match=r"no version 7(.|\n)*version=0"):
        open_table(place, version=7)
    next(place.rglob("*.parquet")).unlink()
    with pytest.raises(DataError, match="VACUUM"):
        open_table(place)


def vacuum(place: Path) -> None:
    """Remove the files that the latest version does not use."""
    table = deltalake.DeltaTable(place)
    rows = table.to_pyarrow_table()
    deltalake.write_deltalake(place, rows, mode="overwrite", partition_by=["split"])
    table = deltalake.DeltaTable(place)
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)


def test_a_missing_version_is_reported_in_the_terms_of_the_caller(place: Path) -> None:
    now = open_table(place)
    vacuum(place)
    newest = deltalake.DeltaTable(place).version()
    with pytest.raises(DataError, match=rf"latest version, {newest} \(omit version\), or"):
        open_table(place, version=0)
    with pytest.raises(UsageError, match=rf"Use version={newest}, or leave it out"):
        open_table(place, version=99)
    typed = f"--data.table-version {newest}, with --accept-new-data if the run has already started"
    for version in (0, 99):
        with pytest.raises(StepladderError, match=typed):
            open_at_version(Points(place), version)
        with pytest.raises(StepladderError, match=typed):
            now.at_version(version)


def test_a_version_whose_log_was_removed_is_reported_with_the_latest(place: Path) -> None:
    append(place, 4, seed=5)
    append(place, 4, seed=6)
    deltalake.DeltaTable(place).create_checkpoint()
    for version in (0, 1):
        (place / "_delta_log" / f"{version:020}.json").unlink()
    assert open_table(place).version == 2
    with pytest.raises(
        DataError, match=r"version 1 .* the log of that version was deleted(.|\n)*version, 2 \("
    ):
        open_table(place, version=1)


@pytest.mark.parametrize("version", [-1, "1", 1.5, True], ids=repr)
def test_what_is_not_a_version_is_refused(version: Any, place: Path) -> None:
    with pytest.raises(UsageError, match=r"version must be an integer of 0 or more, not "):
        open_table(place, version=version)
    assert open_table(place, version=np.int64(0)).version == 0


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


def lose_a_column(place: Path) -> None:
    other = pa.table({"z": [1.0], "split": ["train"]})
    deltalake.write_deltalake(place, other, mode="overwrite", schema_mode="overwrite")


def damage_the_newest_file(place: Path) -> None:
    before = set(place.rglob("*.parquet"))
    append(place, 40, seed=5)
    for path in set(place.rglob("*.parquet")) - before:
        path.write_bytes(b"PAR1")


@pytest.mark.parametrize("spoil", [lose_a_column, damage_the_newest_file])
def test_no_newer_version_stops_a_run_that_reads_an_older_one(
    place: Path, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    task = Points(place)
    task.stop_at = 7
    with pytest.raises(InterruptedRun):
        run(job(tmp_path / "cut"), task)
    spoil(place)
    with pytest.raises(StepladderError):
        open_table(place, columns=["a", "b"])
    run(job(tmp_path / "cut"), Points(place))
    run(job(tmp_path / "whole", table_version=0), Points(place))
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    config = load_job(tmp_path / "cut" / "config.yaml")
    assert open_run(tmp_path / "cut", config, Points(place)).sources.train.version == 0
    assert open_job(config, Points(place), task_name="p").sources.train.version == 0


class ValidatedElsewhere(Points):
    """Reads validation data from another table."""

    def __init__(self, place: Path, other: Path) -> None:
        super().__init__(place)
        self.places = {Split.TRAIN: place, Split.VAL: other}

    def data(self, split: Split) -> TableSource | None:
        return open_table(self.places[split]) if split in self.places else None


class OpenedOnce(ValidatedElsewhere):
    """Opens both tables on the first call, and keeps them."""

    held: dict[Split, TableSource] | None = None

    def data(self, split: Split) -> TableSource | None:
        if self.held is None:
            self.held = {split: open_table(place) for split, place in self.places.items()}
        return self.held.get(split)


@pytest.mark.parametrize("num_others", [1, 3])
def test_the_version_is_that_of_the_training_data_alone(
    place: Path, tmp_path: Path, num_others: int
) -> None:
    append(place, 10, seed=5)
    append(place, 10, seed=6)
    for seed in range(num_others):
        append(tmp_path / "other", 4, seed)
    task = ValidatedElsewhere(place, tmp_path / "other")
    sources = open_at_version(task, 1)
    assert (sources.train.version, sources.val.version) == (1, num_others - 1)
    assert open_table(place).version == 2  # outside, nothing has changed
    assert open_at_version(task, None, earlier=1).train.version == 1
    assert open_at_version(task, None, earlier=9).train.version == 2  # of another table, possibly
    with pytest.raises(UsageError, match="no version 9; its latest version is 2"):
        open_at_version(task, 9)
    with pytest.raises(
        UsageError, match=r"table-version 1 is for the table of training examples(.|\n)*version=N"
    ):
        open_at_version(OpenedOnce(place, tmp_path / "other"), 1)


def test_features_are_computed_of_the_version_that_is_asked_for(
    place: Path, tmp_path: Path
) -> None:
    append(place, 10, seed=5)
    asked = job(tmp_path / "r", table_version=0)
    asked = replace(asked, recipe=replace(asked.recipe, train=TrainMode.HEAD))
    made = compute_features(asked, Frozen(place), display=Display(io.StringIO()))
    assert made.num_rows == {"train": 24, "val": 8}


def test_an_executor_that_finds_other_rows_refuses(place: Path, tmp_path: Path) -> None:
    first = open_table(place, columns=["a", "b"], target="y", split="train").fingerprint
    append(place, 10, seed=5)

    def opened(version: int | None) -> Source:
        work = FeatureTasks(
            site=None,  # type: ignore[arg-type]
            recipe=job(tmp_path / "r", table_version=version).recipe,
            task_name="points.py:Points",
            split=Split.TRAIN,
            fingerprint=first,
            num_views=0,
            spans=[],
            weights=None,  # type: ignore[arg-type]
            trunk="",
            threads=1,
        )
        return work._open(Points(place))

    assert len(opened(0)) == 24
    with pytest.raises(ResourceError, match="other examples of the split train than this"):
        opened(None)


def test_a_resumed_climb_reads_the_version_that_it_began_with(place: Path, tmp_path: Path) -> None:
    (tmp_path / "climb").mkdir()
    ledger = Ledger(tmp_path / "climb")
    config = job(tmp_path / "climb")

    def opened(config: JobConfig, *, goes_on: bool = True) -> tuple[int | None, str]:
        _, sources, _, key = climb_module._open(
            config, Points(place), "points", ledger, goes_on=goes_on
        )
        return sources.train.version, key

    version, key = opened(config)
    keys = {"job": key, "machine": "here", "options": "some", "commit": "one"}
    ledger.begin(**keys, is_fresh=False, table_version=version)
    append(place, 40, seed=5)
    assert opened(config) == (0, key)
    assert opened(config, goes_on=False)[0] == 1
    other = replace(config.recipe, batch=BatchConfig(global_batch_size=6, lr=0.05))
    assert opened(replace(config, recipe=other))[0] == 1  # the ledger is of another job


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
    with pytest.raises(
        UsageError, match=r"opens version 1 .*, but the option data.table_version of this run is 0"
    ):
        run(job(tmp_path / "r", table_version=0), Points(place, version=1))

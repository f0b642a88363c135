"""Complete runs of a small real job: their files, how they end, and how they resume."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from stepladder.config.choices import Monitor, ScheduleKind, TrainMode
from stepladder.config.recipe import (
    BatchConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.data.batch import Batch
from stepladder.errors import DataError, DivergedError, InterruptedRun, UsageError
from stepladder.records import read_json, read_jsonl
from stepladder.training.checkpoint.checkpoint import Checkpoints, load_best
from stepladder.training.output.display import Display
from stepladder.training.run import train

MakeJob = Callable[..., Any]
RunJob = Callable[..., dict[str, Any]]


def state_of(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the newest checkpoint's tensors by group/name, and its time-independent values."""
    loaded = Checkpoints(folder / "checkpoints").newest()
    assert loaded is not None
    tensors = {
        f"{group}/{name}": tensor
        for group, members in loaded.tensors.items()
        for name, tensor in members.items()
    }
    keys = ("position", "stopping", "top", "optimizer", "window_examples", "last_loss")
    return tensors, {key: loaded.state[key] for key in keys}


def assert_same(first: Path, second: Path) -> None:
    (tensors, values), (other_tensors, other_values) = state_of(first), state_of(second)
    assert tensors.keys() == other_tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, other_tensors[name]), name
    assert json.dumps(values) == json.dumps(other_values)
    best, other_best = load_best(first).weights, load_best(second).weights
    assert all(torch.equal(best[name], other_best[name]) for name in best)


def at_call(number: int, action: Callable[[], None]) -> Callable[[Batch], None]:
    calls = iter(range(10**9))
    return lambda batch: action() if next(calls) == number else None


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_leaves_what_people_and_scripts_ask_for(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    summary = run(job(tmp_path / "run"), points())
    assert summary == read_json(tmp_path / "run" / "summary.json")
    assert summary["status"] == "finished"
    assert summary["stop_reason"] == "max_epochs"
    assert (summary["epochs"], summary["steps"]) == (5, 25)
    assert (summary["num_train"], summary["num_val"], summary["num_test"]) == (37, 20, 15)
    assert summary["test_accuracy"] > 0.5
    phases = summary["phases_s"]
    assert sum(phases.values()) == pytest.approx(summary["total_s"])
    events = list(read_jsonl(tmp_path / "run" / "events.jsonl"))
    assert [e["epoch"] for e in events if e["event"] == "validation"] == [1, 2, 3, 4, 5]
    trains = [e for e in events if e["event"] == "train"]
    # windows of at most three steps in epochs of five
    assert [e["step"] for e in trains] == [3, 5, 8, 10, 13, 15, 18, 20, 23, 25]
    assert all(e["grad_norm"] > 0 for e in trains)
    assert trains[-1]["train_loss"] < trains[0]["train_loss"]
    text = (tmp_path / "run" / "predictions.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 35
    hits = [row["label"] == row["predicted"] for row in rows if row["split"] == "test"]
    assert sum(hits) / len(hits) == pytest.approx(summary["test_accuracy"])
    assert (tmp_path / "run" / "env.json").exists()
    assert not list((tmp_path / "run").glob("*.tmp"))


def test_every_epoch_sees_every_example_once(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    task = points()
    run(job(tmp_path / "run", schedule=ScheduleConfig(max_epochs=2)), task)
    first, second = list(chain(*task.seen[:5])), list(chain(*task.seen[5:]))
    assert sorted(first) == sorted(second) == list(range(37))
    assert first != second
    assert [len(ids) for ids in task.seen] == [8, 8, 8, 8, 5] * 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, job: MakeJob, points: Any, run: RunJob) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("undisturbed") / "whole"
    run(job(folder), points())
    return folder


@pytest.mark.parametrize("step", [0, 1, 4, 5, 12, 24])
def test_a_run_that_was_interrupted_ends_as_one_that_was_not(
    step: int, tmp_path: Path, whole: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    broken = points()
    broken.on_step = at_call(step, interrupt)
    with pytest.raises(InterruptedRun) as caught:
        run(job(tmp_path / "broken"), broken)
    assert caught.value.exit_code == 143
    summary = read_json(tmp_path / "broken" / "summary.json")
    assert summary["status"] == "interrupted"
    assert summary["steps"] == step + 1
    summary = run(job(tmp_path / "broken"), points())
    assert summary["attempts"] == 2
    assert_same(whole, tmp_path / "broken")


@pytest.mark.parametrize("call", [0, 2, 5])
def test_an_interrupted_validation_is_done_first_on_resume(
    call: int, tmp_path: Path, whole: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    broken = points()
    broken.on_metrics = at_call(call, interrupt)
    with pytest.raises(InterruptedRun):
        run(job(tmp_path / "broken"), broken)
    run(job(tmp_path / "broken"), points())
    assert_same(whole, tmp_path / "broken")
    events = list(read_jsonl(tmp_path / "broken" / "events.jsonl"))
    assert [e["epoch"] for e in events if e["event"] == "validation"] == [1, 2, 3, 4, 5]


def test_without_any_checkpoint_a_run_starts_again_and_ends_the_same(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    class Crash(Exception):
        pass

    def crash() -> None:
        raise Crash

    run(job(tmp_path / "whole", checkpoint_every_s=1e9), points())
    broken = points()
    broken.on_step = at_call(7, crash)
    with pytest.raises(Crash):
        run(job(tmp_path / "broken", checkpoint_every_s=1e9), broken)
    summary = run(job(tmp_path / "broken", checkpoint_every_s=1e9), points())
    assert summary["attempts"] == 2
    assert_same(tmp_path / "whole", tmp_path / "broken")
    discarded = list(read_jsonl(tmp_path / "broken" / "events.discarded.jsonl"))
    assert {e["attempt"] for e in discarded} == {1}


def test_a_finished_run_is_not_trained_again(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    first = run(job(tmp_path / "run"), points())
    task = points()
    assert run(job(tmp_path / "run"), task) == first
    assert task.seen == []


def test_more_epochs_continue_where_a_finished_run_ended(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    run(job(tmp_path / "whole", schedule=ScheduleConfig(max_epochs=5)), points())
    run(job(tmp_path / "grown", schedule=ScheduleConfig(max_epochs=3)), points())
    task = points()
    summary = run(job(tmp_path / "grown", schedule=ScheduleConfig(max_epochs=5)), task)
    assert len(task.seen) == 10
    assert summary["epochs"] == 5
    assert_same(tmp_path / "whole", tmp_path / "grown")


class Countdown(IterableDataset):
    """Claims to hold twenty examples, and yields thirteen."""

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Any:
        return ((torch.zeros(2), torch.tensor(0)) for _ in range(13))


def test_a_dataset_that_yields_less_than_its_length_is_reported(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = points()
    monkeypatch.setattr(task, "data", lambda split: Countdown())
    with pytest.raises(DataError, match="13 examples, but their __len__ returns 20"):
        run(job(tmp_path / "run"), task)


def test_another_config_in_the_same_folder_is_refused(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    run(job(tmp_path / "run"), points())
    other = job(tmp_path / "run", batch=BatchConfig(global_batch_size=5))
    with pytest.raises(UsageError, match="already has a run with other options"):
        run(other, points())
    assert run(other, points(), overwrite=True)["global_batch_size"] == 5


def test_accumulation_gives_the_gradient_of_the_whole_batch(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    # BatchNorm sees micro-batches, so the trunk is frozen: only the head's gradient counts
    head = {"train": TrainMode.HEAD}
    whole = run(job(tmp_path / "whole", **head), points(dropout=0.0))
    batch = BatchConfig(global_batch_size=8, micro_batch_size=3, lr=0.02)
    parts = run(job(tmp_path / "parts", batch=batch, **head), points(dropout=0.0))
    assert parts["accumulation_steps"] == 3
    assert parts["val_loss"] == pytest.approx(whole["val_loss"], rel=1e-4)


def test_only_the_head_learns_and_frozen_batchnorm_is_unchanged(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    run(job(tmp_path / "run", train=TrainMode.HEAD), points())
    loaded = load_best(tmp_path / "run")
    assert set(loaded.tensors["model"]) == {"head.1.weight", "head.1.bias"}
    assert torch.equal(loaded.frozen["trunk.1.running_mean"], torch.zeros(8))
    assert int(loaded.frozen["trunk.1.num_batches_tracked"]) == 0


def test_head_then_all_trains_the_trunk_in_its_second_stage(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    settings = {"train": TrainMode.HEAD_THEN_ALL, "schedule": ScheduleConfig(max_epochs=2)}
    summary = run(job(tmp_path / "whole", **settings), points())
    assert summary["epochs"] == 4
    rates = [
        e["learning_rate"]
        for e in read_jsonl(tmp_path / "whole" / "events.jsonl")
        if e["event"] == "train"
    ]
    assert sorted(set(rates)) == [1e-4, 0.02]
    tensors, _ = state_of(tmp_path / "whole")
    assert "model/trunk.0.weight" in tensors
    for step in (7, 12):  # in the first stage, in the second
        broken = points()
        broken.on_step = at_call(step, interrupt)
        folder = tmp_path / f"broken{step}"
        with pytest.raises(InterruptedRun):
            run(job(folder, **settings), broken)
        run(job(folder, **settings), points())
        assert_same(tmp_path / "whole", folder)


def test_the_best_of_the_first_stage_comes_back_whole_if_the_second_only_harms(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    harmful = {
        "train": TrainMode.HEAD_THEN_ALL,
        "batch": BatchConfig(global_batch_size=8, lr=0.02, lr_all=3.0),
        "schedule": ScheduleConfig(max_epochs=2),
    }
    folder = tmp_path / "run"
    summary = run(job(folder, **harmful, checkpoint_every_s=1e9), points())
    validations = [e for e in read_jsonl(folder / "events.jsonl") if e["event"] == "validation"]
    best = min(validations, key=lambda e: e["val_loss"])
    assert best["epoch"] <= 2 < validations[-1]["epoch"]
    assert summary["val_loss"] == pytest.approx(best["val_loss"], rel=1e-6)
    assert load_best(folder).weights.keys() == points().build_model(Recipe()).state_dict().keys()


def test_a_loss_that_is_not_finite_names_its_step_and_samples(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    healthy = points()
    run(job(tmp_path / "healthy"), healthy)
    bad_step = next(i for i, ids in enumerate(healthy.seen) if 11 in ids)
    task = points()
    task.poisoned = 11
    with pytest.raises(DivergedError) as caught:
        run(job(tmp_path / "run", checkpoint_every_s=1e9), task)
    assert caught.value.exit_code == 5
    message = str(caught.value)
    assert f"step {bad_step}" in message
    assert ("Lower the learning rate" in message) is (bad_step > 0)  # at 0, no step was taken
    for row in healthy.seen[bad_step]:
        assert str(row) in message
    event = next(
        e for e in read_jsonl(tmp_path / "run" / "events.jsonl") if e["event"] == "diverged"
    )
    assert event["sample_ids"] == healthy.seen[bad_step]
    assert read_json(tmp_path / "run" / "summary.json")["status"] == "diverged"
    for _, tensor in state_or_nothing(tmp_path / "run"):
        assert torch.isfinite(tensor).all()


def state_or_nothing(folder: Path) -> list[tuple[str, torch.Tensor]]:
    loaded = Checkpoints(folder / "checkpoints").newest()
    return [] if loaded is None else list(loaded.weights.items())


def test_early_stopping_restores_the_best_weights(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    settings = {
        "batch": BatchConfig(global_batch_size=8, lr=0.3),  # so fast that it overfits at once
        "schedule": ScheduleConfig(max_epochs=40),
        "stopping": StoppingConfig(patience=3),
    }
    summary = run(job(tmp_path / "run", **settings), points())
    assert summary["stop_reason"] == "early_stopping"
    assert summary["epochs"] < 40
    validations = [
        e for e in read_jsonl(tmp_path / "run" / "events.jsonl") if e["event"] == "validation"
    ]
    best = min(validations, key=lambda e: e["val_loss"])
    assert summary["best_epoch"] == best["epoch"]
    assert summary["val_loss"] == pytest.approx(best["val_loss"], rel=1e-6)
    assert load_best(tmp_path / "run").name == f"best-{best['step']:09d}"


def test_the_last_weights_are_the_result_when_asked(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    settings = {"stopping": StoppingConfig(early=False, restore_best=False)}
    summary = run(job(tmp_path / "run", **settings), points())
    last = [e for e in read_jsonl(tmp_path / "run" / "events.jsonl") if e["event"] == "validation"]
    assert summary["val_loss"] == pytest.approx(last[-1]["val_loss"], rel=1e-6)


def test_the_k_best_are_kept(tmp_path: Path, job: MakeJob, points: Any, run: RunJob) -> None:
    run(job(tmp_path / "run", save_top_k=2, keep_last=1), points())
    validations = [
        e for e in read_jsonl(tmp_path / "run" / "events.jsonl") if e["event"] == "validation"
    ]
    best = sorted(validations, key=lambda e: e["val_loss"])[:2]
    names = set(Checkpoints(tmp_path / "run" / "checkpoints").names())
    assert names == {f"best-{e['step']:09d}" for e in best} | {"step-000000025"}


def test_without_a_validation_split_the_run_says_so(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    settings = {"stopping": StoppingConfig()}
    summary = run(job(tmp_path / "run", **settings), points(num_val=0))
    assert summary["val_accuracy"] is None
    assert any("no validation split" in warning for warning in summary["warnings"])
    assert load_best(tmp_path / "run").name == "step-000000025"


def test_accuracy_can_be_monitored(tmp_path: Path, job: MakeJob, points: Any, run: RunJob) -> None:
    settings = {"stopping": StoppingConfig(monitor=Monitor.VAL_ACCURACY)}
    summary = run(job(tmp_path / "run", **settings), points())
    validations = [
        e for e in read_jsonl(tmp_path / "run" / "events.jsonl") if e["event"] == "validation"
    ]
    assert summary["val_accuracy"] == max(e["val_accuracy"] for e in validations)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [({"max_steps": 7}, "max_steps"), ({"max_time_s": 1e-6}, "max_time")],
)
def test_limits_end_the_run(
    limit: dict[str, Any], reason: str, tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    summary = run(job(tmp_path / "run", schedule=ScheduleConfig(**limit)), points())
    assert summary["stop_reason"] == reason
    assert summary["status"] == "finished"


def test_a_dry_run_leaves_nothing_and_gives_the_plan(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    task = points()
    plan = run(job(tmp_path / "run"), task, dry_run=True)
    assert len(task.seen) == 2
    assert plan["steps_per_epoch"] == 5
    assert plan["checkpoint_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_the_plan_of_a_dry_run_counts_stages_and_the_limit_of_steps(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    schedule = ScheduleConfig(max_epochs=60, max_steps=10)  # two epochs of five steps
    two_stages = {"train": TrainMode.HEAD_THEN_ALL, "schedule": schedule}
    plan = run(job(tmp_path / "run", **two_stages), points(), dry_run=True)
    assert plan["at_most_s"] == pytest.approx(4 * plan["epoch_s"])


def test_an_interrupted_dry_run_leaves_nothing(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    task = points()
    task.on_step = lambda batch: interrupt()
    with pytest.raises(InterruptedRun):
        run(job(tmp_path / "run"), task, dry_run=True)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_attempt_leaves_the_config_as_it_was(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    folder = tmp_path / "run"
    run(job(folder, schedule=ScheduleConfig(max_epochs=1)), points())
    before = (folder / "config.yaml").read_bytes()
    with pytest.raises(DataError, match="--accept-new-data"):
        run(job(folder, schedule=ScheduleConfig(max_epochs=2)), points(num_train=38))
    assert (folder / "config.yaml").read_bytes() == before


def test_a_cosine_that_is_cut_by_the_clock_warns(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    cosine = ScheduleConfig(max_epochs=40, kind=ScheduleKind.COSINE)
    cut = run(job(tmp_path / "cut", schedule=replace(cosine, max_time_s=1e-6)), points())
    assert any(
        "the cosine schedule lowers it to its end over 40 epochs" in warning
        for warning in cut["warnings"]
    )
    whole = run(job(tmp_path / "whole", schedule=replace(cosine, max_steps=7)), points())
    assert whole["warnings"] == []


def test_a_mean_instead_of_losses_is_refused(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    class Mean(points):  # type: ignore[misc, valid-type]
        def loss(self, model: Any, batch: Batch) -> Any:
            return super().loss(model, batch)[0].mean()

    with pytest.raises(UsageError, match="one loss for each example"):
        run(job(tmp_path / "run"), Mean())


def test_the_loss_shown_after_a_validation_is_since_the_last_display(
    tmp_path: Path, job: MakeJob, points: Any
) -> None:
    shown: list[float] = []

    class Spy(Display):
        def validation(self, values: Any) -> None:
            shown.append(values["train_loss"])

    # validations between log lines: those are at the ends of epochs of five steps
    stopping = StoppingConfig(early=False, validate_every_steps=2)
    short = job(tmp_path / "run", log_every=1000, stopping=stopping)
    train(short, points(), task_name="points.py:PointsTask", display=Spy(io.StringIO()))
    assert len(set(shown)) == len(shown) == 12
    logged = [e for e in read_jsonl(tmp_path / "run" / "events.jsonl") if e["event"] == "train"]
    loaded = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert loaded is not None
    # what is displayed, and when, does not change the state
    assert loaded.state["last_loss"] == logged[-1]["train_loss"]


def test_clipping_and_weight_decay_survive_a_resume(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    settings = {"optimizer": OptimizerConfig(clip_norm=0.5, weight_decay=0.1)}
    run(job(tmp_path / "whole", **settings), points())
    broken = points()
    broken.on_step = at_call(8, interrupt)
    with pytest.raises(InterruptedRun):
        run(job(tmp_path / "broken", **settings), broken)
    run(job(tmp_path / "broken", **settings), points())
    assert_same(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize("name", ["population.state.json", "population.json"])
def test_the_folder_of_a_population_is_refused(
    name: str, tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    made = job(tmp_path / "run")
    run(made, points())
    (tmp_path / "run" / name).write_text("{}")
    for options in ({}, {"overwrite": True}):
        with pytest.raises(UsageError, match="has a population"):
            run(made, points(), **options)

"""A run that is really worse than its baseline is stopped; one that is as good never is."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.config.choices import BaselineAt, Monitor
from stepladder.config.options import RunConfig
from stepladder.config.recipe import BatchConfig, ScheduleConfig
from stepladder.errors import InterruptedRun, UsageError
from stepladder.records import read_json, read_jsonl
from stepladder.reporting.schema import check_summary
from stepladder.training.baseline import (
    MAX_EXAMPLES,
    Against,
    Baseline,
    Mark,
    baseline_warnings,
    examples_of,
    read_baseline,
    samples_seen,
)
from stepladder.training.evaluate import Evaluation
from stepladder.training.output.display import Display, PlainDisplay
from stepladder.training.run import train

MakeJob = Callable[..., Any]
RunJob = Callable[..., dict[str, Any]]
EPOCHS = {"schedule": ScheduleConfig(max_epochs=5), "checkpoint_every_s": 60.0}
SLOW = BatchConfig(global_batch_size=8, lr=1e-4)


def losses(mean: float, n: int = 100, spread: float = 0.3) -> Evaluation:
    noise = np.linspace(-spread, spread, n)
    values = (mean + noise).astype(np.float32)
    return Evaluation(
        rows=np.arange(n), losses=values, values={}, predicted=None, probability=None, targets=None
    )


def against(*values: float, sem: float = 0.01, patience: int = 3) -> Against:
    marks = tuple(Mark(100.0 * (idx + 1), value, sem) for idx, value in enumerate(values))
    baseline = Baseline(run="b", at=BaselineAt.SAMPLES_SEEN, losses=marks, errors=())
    return Against(baseline, patience=patience)


def judged(one: Against, *values: float) -> list[int]:
    counts = []
    for idx, value in enumerate(values):
        fields = one.judge(losses(value), Monitor.VAL_LOSS, seen=100 * (idx + 1), wall_s=0.0)
        counts.append(fields["num_worse_than_baseline"])
    return counts


def test_without_a_baseline_nothing_is_compared() -> None:
    alone = Against()
    assert alone.judge(losses(9.0), Monitor.VAL_LOSS, seen=1, wall_s=1.0) == {}
    assert not alone.is_exhausted
    assert alone.last() is None


def test_three_clearly_worse_validations_in_a_row_exhaust_a_patience_of_three() -> None:
    one = against(1.0, 0.9, 0.8, 0.7, 0.6)
    assert judged(one, 2.0, 1.9, 1.8) == [1, 2, 3]
    assert one.is_exhausted


def test_a_validation_that_is_not_worse_sets_the_count_back() -> None:
    one = against(1.0, 0.9, 0.8, 0.7, 0.6)
    assert judged(one, 2.0, 1.9, 0.9, 0.95, 0.95) == [1, 2, 0, 1, 2]
    assert not one.is_exhausted


def test_a_run_one_validation_behind_is_as_good_and_one_two_behind_is_not() -> None:
    curve = (2.0, 1.5, 1.2, 1.0, 0.9)
    assert judged(against(*curve), 2.0, 2.0, 1.5, 1.2, 1.0) == [0, 0, 0, 0, 0]
    assert judged(against(*curve), 2.0, 2.0, 2.0, 1.5, 1.2) == [0, 0, 1, 2, 3]


def test_worse_by_less_than_twice_the_noise_of_both_does_not_count() -> None:
    sem = float(losses(1.0).loss().sem)  # of this run: 0.0175
    margin = 2 * (0.01**2 + sem**2) ** 0.5
    for excess, count in ((0.9 * margin, 0), (1.1 * margin, 1)):
        assert judged(against(1.0), 1.0 + excess) == [count]


def test_the_same_examples_are_compared_one_by_one() -> None:
    """Examples differ far more than the two runs do on each of them."""
    theirs = tuple(float(one) for one in losses(1.0, spread=0.9).losses)
    ours = losses(1.05, spread=0.9)
    baseline = against(1.0, sem=losses(1.0, spread=0.9).loss().sem).baseline
    assert baseline is not None
    singly = replace(baseline, losses=(replace(baseline.losses[0], examples=theirs),))
    counts = [
        Against(one).judge(ours, Monitor.VAL_LOSS, seen=100, wall_s=0.0)["num_worse_than_baseline"]
        for one in (baseline, singly)
    ]
    assert counts == [0, 1]
    of_others = tuple(reversed(theirs))
    unlike = replace(baseline, losses=(replace(baseline.losses[0], examples=of_others),))
    judged = Against(unlike).judge(ours, Monitor.VAL_LOSS, seen=100, wall_s=0.0)
    assert judged["num_worse_than_baseline"] == 0


def test_an_event_keeps_few_examples_and_not_many() -> None:
    fields = examples_of(losses(1.0, n=3))
    assert fields == {"val_losses": [0.7, 1.0, 1.3]}
    right = replace(losses(1.0, n=3), predicted=np.array([0, 1, 2]), targets=np.array([0, 2, 2]))
    assert examples_of(right)["val_right"] == "101"
    assert examples_of(losses(1.0, n=MAX_EXAMPLES + 1)) == {}


def test_a_baseline_that_jumps_allows_for_its_jumps() -> None:
    calm = against(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    wild = against(1.0, 1.4, 1.0, 1.5, 1.0, 1.4)
    assert judged(calm, *[1.2] * 6)[-1] == 6
    assert judged(wild, *[1.2] * 6)[-1] == 0


def test_before_the_first_validation_of_the_baseline_nothing_is_compared() -> None:
    one = against(1.0)
    assert one.judge(losses(9.0), Monitor.VAL_LOSS, seen=99, wall_s=0.0) == {}
    assert one.num_worse == 0


def test_past_the_end_of_the_baseline_its_best_is_what_counts() -> None:
    one = against(1.0, 0.5, 0.9)
    fields = one.judge(losses(2.0), Monitor.VAL_LOSS, seen=10_000, wall_s=0.0)
    assert fields["baseline_value"] == 0.5


def test_a_loss_that_is_not_finite_is_worse_than_any() -> None:
    assert judged(against(1.0, 1.0), float("nan"), float("nan")) == [1, 2]


def test_samples_count_the_short_last_batch_once_an_epoch() -> None:
    assert samples_seen({"step": 5, "epoch": 1}, 37, 8) == 37
    assert samples_seen({"step": 7, "epoch": 1}, 37, 8) == 37 + 16
    assert samples_seen({"step": 7, "epoch": 1, "samples_seen": 50}, 37, 8) == 50
    assert samples_seen({"step": 7, "epoch": 1}, None, 8) == 56
    assert samples_seen({"step": 7, "epoch": 1}, None, None) is None


def test_the_state_brings_back_count_best_and_the_validations_of_the_baseline() -> None:
    one = against(1.0, 0.9, 0.8)
    judged(one, 2.0, 1.9)
    again = against(1.0, 0.2, 0.1)  # the earlier run has continued since, which must not matter
    again.restore(json.loads(json.dumps(one.state())))
    assert again.baseline == one.baseline
    assert (again.num_worse, again.last()) == (2, one.last())
    other = against(1.0)
    other.baseline = replace(other.baseline, run="another")  # type: ignore[type-var]
    other.restore(one.state())
    assert other.num_worse == 0


@pytest.fixture(name="first", scope="module")
def _first(
    tmp_path_factory: pytest.TempPathFactory, job: MakeJob, points: Any, run: RunJob
) -> Path:
    """An earlier run, for comparison."""
    folder = tmp_path_factory.mktemp("earlier") / "first"
    run(job(folder, **EPOCHS), points(num_train=200, num_val=100))
    return folder


@pytest.fixture(name="small", scope="module")
def _small(
    tmp_path_factory: pytest.TempPathFactory, job: MakeJob, points: Any, run: RunJob
) -> Path:
    """An earlier run on few examples."""
    folder = tmp_path_factory.mktemp("earlier") / "small"
    run(job(folder), points())
    return folder


def test_a_run_that_learns_too_slowly_is_stopped_and_says_by_how_much(
    tmp_path: Path, first: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    slow = job(tmp_path / "slow", **EPOCHS, batch=SLOW, baseline=first)
    summary = run(slow, points(num_train=200, num_val=100))
    assert (summary["status"], summary["stop_reason"]) == ("finished", "worse_than_baseline")
    assert summary["epochs"] == 3
    assert check_summary(summary) == []
    numbers = summary["baseline"]
    assert numbers["value"] - numbers["baseline_value"] > numbers["margin"] > 0
    assert (numbers["num_worse"], numbers["point"]) == (3, 600)
    stop = [e for e in read_jsonl(tmp_path / "slow" / "events.jsonl") if e["event"] == "stop"]
    assert stop[-1]["baseline"] == numbers
    # it is finished; without the baseline the same folder can be resumed
    assert run(slow, points(num_train=200, num_val=100))["epochs"] == 3
    on = replace(slow, run=replace(slow.run, baseline=None))
    assert run(on, points(num_train=200, num_val=100))["stop_reason"] == "max_epochs"


def test_a_run_of_the_same_or_another_seed_is_never_stopped(
    tmp_path: Path, first: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    for seed in range(3):
        other = job(tmp_path / f"seed{seed}", **EPOCHS, seed=seed, baseline=first)
        summary = run(other, points(num_train=200, num_val=100))
        assert summary["stop_reason"] == "max_epochs"
        assert summary["baseline"]["num_worse"] < 3


def test_by_the_clock_a_run_is_compared_after_the_same_seconds_and_warned(
    tmp_path: Path, small: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    by_clock = BaselineAt.WALL_TIME
    marks = [e["elapsed_s"] for e in read_jsonl(small / "events.jsonl") if "val_loss" in e]
    read = read_baseline(RunConfig(baseline=small, baseline_at=by_clock))
    assert read is not None
    assert [mark.at for mark in read.losses] == marks
    summary = run(job(tmp_path / "second", baseline=small, baseline_at=by_clock), points())
    assert any("depends on the speed of the machine" in text for text in summary["warnings"])


def test_an_interrupted_run_stops_where_an_uninterrupted_one_does(
    tmp_path: Path, first: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    whole = run(
        job(tmp_path / "whole", **EPOCHS, batch=SLOW, baseline=first),
        points(num_train=200, num_val=100),
    )
    slow = job(tmp_path / "broken", **EPOCHS, batch=SLOW, baseline=first)
    for num_steps in (30, 22):  # in the second epoch of 25 steps, and in the third
        broken, calls = points(num_train=200, num_val=100), itertools.count(1)
        broken.on_step = lambda _, calls=calls, last=num_steps: (
            os.kill(os.getpid(), signal.SIGTERM) if next(calls) == last else None
        )
        with pytest.raises(InterruptedRun):
            run(slow, broken)
    resumed = run(slow, points(num_train=200, num_val=100))
    assert resumed["stop_reason"] == whole["stop_reason"] == "worse_than_baseline"
    assert resumed["steps"] == whole["steps"]
    assert resumed["baseline"] == whole["baseline"]


def test_a_run_is_not_a_baseline_of_itself(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be compared with itself"):
        read_baseline(RunConfig(dir=tmp_path, baseline=tmp_path))


def test_a_folder_without_a_validation_is_refused_before_anything_is_written(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="recorded no validations"):
        run(job(tmp_path / "run", baseline=tmp_path / "empty"), points())
    assert not (tmp_path / "run").exists()


def test_a_validation_set_of_another_size_is_reported(
    tmp_path: Path, small: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    summary = run(job(tmp_path / "second", baseline=small), points(num_val=30))
    assert any("was validated on 20 examples" in text for text in summary["warnings"])
    assert read_json(tmp_path / "second" / "summary.json") == summary


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ("nope", "this folder does not exist", "folder of an earlier run"),
        ("first/summary.json", "this is a file", "--baseline .*first$"),
    ],
)
def test_a_folder_without_a_run_is_refused_for_that_reason(
    given: str, what: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "summary.json").write_text("{}")
    with pytest.raises(UsageError, match=what) as caught:
        read_baseline(RunConfig(baseline=tmp_path / given))
    assert re.search(fix, str(caught.value.fix))


def test_a_run_says_at_its_start_at_validations_and_at_its_end_what_it_is_compared_with(
    tmp_path: Path, first: Path, job: MakeJob, points: Any
) -> None:
    stream = io.StringIO()
    slow = job(tmp_path / "slow", **EPOCHS, batch=SLOW, baseline=first)
    task = points(num_train=200, num_val=100)
    summary = train(slow, task, task_name="PointsTask", display=PlainDisplay(stream))
    said = stream.getvalue()
    assert (
        f"  baseline  {first}, after the same training examples; stops if it is worse by more "
        "than noise at 3 validations in a row\n"
    ) in said
    assert "worse than the baseline by more than noise (2 in a row)\n" in said
    numbers = summary["baseline"]
    assert said.splitlines()[-1] == (
        f"baseline: {first}, after 600 examples: validation loss {numbers['value']:.4f} here, "
        f"{numbers['baseline_value']:.4f} in the baseline; differences up to "
        f"{numbers['margin']:.4f} are noise"
    )


def test_another_task_or_other_data_of_the_baseline_is_reported(
    tmp_path: Path, small: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    display = Display(io.StringIO())
    of_other = job(tmp_path / "other", baseline=small)
    summary = train(of_other, points(num_train=40), task_name="o.py:Rings", display=display)
    texts = "\n".join(summary["warnings"])
    assert "trained another Task, points.py:PointsTask, than this run, o.py:Rings" in texts
    assert "the earlier run (run.baseline) used other training data (fingerprint " in texts
    same = run(job(tmp_path / "same", baseline=small), points())
    assert "run.baseline" not in "\n".join(same["warnings"])


def test_a_task_is_the_same_from_wherever_its_file_is_named() -> None:
    known = replace(against(1.0).baseline, task="examples/o.py:Rings", num_val=5)  # type: ignore[type-var]
    assert baseline_warnings(known, 5, task="o.py:Rings") == []
    assert len(baseline_warnings(known, 5, task="o.py:Squares")) == 1

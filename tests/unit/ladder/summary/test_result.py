"""Both ends of a climb are measured in the same way, and compared only if they are comparable."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.config.choices import Split
from stepladder.config.options import JobConfig, LadderConfig, RunConfig
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.errors import InterruptedRun, UsageError
from stepladder.ladder import climb as climb_module
from stepladder.ladder import climb_run as run_module
from stepladder.ladder.climb_run import climb
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.budget import allows_after, budget_warning, plan_words
from stepladder.ladder.summary import result as result_module
from stepladder.ladder.summary.final_training import outside_clock_s, run_whole
from stepladder.ladder.summary.result import of_looks
from stepladder.ladder.summary.wording import baseline_epochs, baseline_time
from stepladder.ladder.trainings.training_cache import Trainings
from stepladder.records import read_json, to_json
from stepladder.records.climb import ClimbSummary, RatioFrom
from stepladder.records.from_json import from_json
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile, Provenance, TrainingTime
from stepladder.reporting.pages.report_page import write_report
from stepladder.rungs import RUNGS, Rung
from stepladder.rungs.devices.gpu import UseGpu
from stepladder.task import Metrics, Task
from stepladder.training.output.display import Display, PlainDisplay

LADDER = LadderConfig(block_s=0.01, num_seeds=2, budget_s=None, min_gain=100.0)
(GPU,) = [rung for rung in RUNGS if isinstance(rung, UseGpu)]


class Line(Task):
    """Regression of a line on a few points."""

    def __init__(self, num_test: int = 24, *, bad_test: bool = False) -> None:
        self.num = {Split.TRAIN: 64, Split.VAL: 16, Split.TEST: num_test}
        self.bad_test = bad_test
        self.reads: list[Split] = []

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))

    def data(self, split: Split) -> torch.utils.data.TensorDataset:
        self.reads.append(split)
        generator = torch.Generator().manual_seed(list(Split).index(split))
        x = torch.rand(self.num[split], 1, generator=generator)
        y = 2 * x + 0.1 * torch.randn(self.num[split], 1, generator=generator)
        if self.bad_test and split is Split.TEST:
            x[0] = math.nan
        return torch.utils.data.TensorDataset(x, y)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs) - batch.targets).square().squeeze(1)


class Few(Line):
    """Two classes: above or below the middle."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Linear(1, 2)

    def data(self, split: Split) -> torch.utils.data.TensorDataset:
        x, _ = super().data(split).tensors
        return torch.utils.data.TensorDataset(x, (x[:, 0] > 0.5).long())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        logits = model(batch.inputs)
        hits = (logits.argmax(1) == batch.targets).float()
        return Metrics(
            losses=F.cross_entropy(logits, batch.targets, reduction="none"),
            sums={"accuracy": hits.sum()},
            counts={"accuracy": torch.tensor(float(len(hits)))},
            outputs=logits,
        )


@pytest.fixture
def job(tmp_path: Path, recipe: Recipe) -> JobConfig:
    return JobConfig(recipe=recipe, run=RunConfig(dir=tmp_path / "runs" / "run"), ladder=LADDER)


@pytest.fixture(name="plain", scope="module")
def _plain(tmp_path_factory: pytest.TempPathFactory, recipe: Recipe) -> tuple[ClimbSummary, Path]:
    """Files of a climb without applicable rungs except the GPU, which is only predicted."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("plain") / "runs" / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(run_module, "RUNGS", (GPU,))
        monkeypatch.setattr(climb_module, "PROFILE_S", 0.2)
        job = JobConfig(recipe=recipe, run=RunConfig(dir=folder), ladder=LADDER)
        climb(job, Line(), task_name="task", display=Display(io.StringIO()))
    return from_json(ClimbSummary, read_json(folder / "climb.json")), folder


@pytest.fixture
def climbed(
    job: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[ClimbSummary, Path]]:
    """Climb without applicable rungs, or with the given ones."""

    def run(task: Task, *rungs: Rung, **options: float) -> tuple[ClimbSummary, Path]:
        monkeypatch.setattr(run_module, "RUNGS", rungs)
        monkeypatch.setattr(climb_module, "PROFILE_S", 0.2)
        chosen = replace(job, ladder=replace(LADDER, **options))
        climb(chosen, task, task_name="task", display=Display(io.StringIO()))
        folder = job.run.dir
        return from_json(ClimbSummary, read_json(folder / "climb.json")), folder

    return run


def test_a_short_job_is_run_whole_as_the_result_is(plain) -> None:
    summary, folder = plain
    before, after = summary.baseline, summary.result
    assert before is not None
    assert after is not None
    assert not before.is_extrapolated
    assert before.epochs == before.measured_epochs == after.epochs == 6
    assert before.epochs_are == "measured"
    assert after.total_s == pytest.approx(read_json(folder / "summary.json")["train_s"])
    assert summary.speedup == pytest.approx(before.total_s / after.total_s)
    assert summary.is_as_written
    assert not list(folder.glob(".ladder-*"))
    assert not list(folder.parent.glob(".ladder-*"))


class Waiting(nn.Linear):
    """A model whose time depends on how many batches its recipe reads ahead."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(1, 1)
        self.wait_s = wait_s

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.wait_s)
        return super().forward(x)


class Waits(Line):
    def build_model(self, recipe: Recipe) -> nn.Module:
        return Waiting(4e-3 * recipe.loader.prefetch_batches)


class WaitLess(Rung):
    name: ClassVar[str] = "wait_less"
    level: ClassVar[int] = 8
    exactness: ClassVar[Exactness] = Exactness.BITWISE

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        return "already on" if recipe.loader.prefetch_batches == 1 else None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        return Prediction(rung=self.name, gain=5.0, provenance=Provenance.MODELLED)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        return replace(recipe, loader=replace(recipe.loader, prefetch_batches=1))


def test_a_short_job_that_changed_is_run_once_more_next_to_its_result(climbed) -> None:
    summary, _ = climbed(Waits(), WaitLess(), min_gain=0.03)
    assert summary.baseline is not None
    assert not summary.is_as_written, "it waits a fraction of the time"
    assert len(summary.baseline.runs_s) == 2
    runs_s = summary.baseline.runs_s
    is_shorter = summary.speedup_from is RatioFrom.SHORTER
    assert summary.baseline.total_s == (min(runs_s) if is_shorter else runs_s[-1])
    assert summary.num_pairs >= 8
    assert summary.why_no_pairs is None
    assert summary.paired is not None
    assert summary.machine.keys() >= {"model", "num_cores", "instructions", "threads", "waiting"}
    assert summary.result is not None
    assert summary.result.paired_s is not None
    ratio = summary.baseline.total_s / summary.result.paired_s
    assert summary.speedup_bounds is not None
    assert summary.speedup == summary.speedup_bounds.estimate <= 1.3 * ratio
    assert [load.name for load in summary.loads] == ["trials", "training", "pairs"]


def test_a_timing_that_others_slowed_down_does_not_count() -> None:
    assert of_looks((10.0, 12.0)) == pytest.approx(11.0)
    assert of_looks((17280.0, 600.0)) == 600.0
    assert of_looks((5.0,)) == 5.0


def test_what_is_short_but_does_not_fit_the_budget_is_run_whole_at_the_end(
    climbed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_module, "_WHOLE_FRAC", 0.0)
    summary, folder = climbed(Line(), budget_s=600.0)
    assert summary.baseline is not None
    assert summary.baseline.epochs == summary.baseline.measured_epochs == 6
    assert not summary.baseline.is_extrapolated
    assert read_json(folder / "summary.json")["status"] == "finished"
    assert capsys.readouterr().err.count("warning:") == 1, "the other run says nothing"


def test_no_training_follows_the_one_that_passed_the_budget(
    job: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("one training more")

    monkeypatch.setattr(run_module, "RUNGS", ())
    monkeypatch.setattr(climb_module, "PROFILE_S", 0.2)
    monkeypatch.setattr(result_module, "run_whole", refuse)
    monkeypatch.setattr(Lab, "_train_own", refuse)
    short, said = replace(job, ladder=replace(LADDER, budget_s=1e-3)), io.StringIO()
    climb(short, Few(), task_name="task", display=PlainDisplay(said))
    summary = from_json(ClimbSummary, read_json(job.run.dir / "climb.json"))
    assert summary.baseline is not None
    assert summary.baseline.is_extrapolated
    assert summary.why_not_compared == ("not compared: the final training used up the budget")
    text = said.getvalue()
    assert text.index("this may exceed the budget of 1 ms") < text.index("0 original")
    assert re.search(r"the original job takes about .*\. Rungs that are kept shorten", text)


def test_a_budget_that_holds_says_nothing(make_lab, recipe: Recipe) -> None:
    time_s = 4.0, 10.0
    for budget_s, is_told in ((None, False), (600.0, False), (5.0, True)):
        said = budget_warning(make_lab(recipe, budget_s=budget_s), time_s)
        assert (said is not None) == is_told
    assert "the original job takes about 4.0 to 10 s." in str(said)
    lab = make_lab(recipe, budget_s=600.0)
    assert plan_words(make_lab(recipe), time_s) is None
    assert "takes about 4.0 to 10 s: about 4.0 to 10 s in all, within the budget of 10 min" in str(
        plan_words(lab, time_s)
    )
    long = 400.0, 1000.0
    assert "which may exceed the budget of 10 min" in str(plan_words(lab, long))
    assert allows_after(make_lab(recipe, budget_s=600.0), 700.0)
    assert not allows_after(make_lab(recipe, budget_s=600.0), 800.0)
    assert allows_after(make_lab(recipe), 1e9)


def test_a_long_job_is_extrapolated_with_its_one_time_work(
    climbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_module, "_WHOLE_S", 0.0)
    monkeypatch.setattr(result_module, "_BASELINE_FRAC", 1e-9)
    before = climbed(Line())[0].baseline
    assert before is not None
    assert before.is_extrapolated
    assert before.measured_epochs is not None
    assert before.measured_epochs < 6 == before.epochs


@pytest.mark.thorough
def test_a_long_job_that_changed_is_timed_once_more_next_to_its_result(
    climbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_module, "_WHOLE_S", 0.0)
    monkeypatch.setattr(result_module, "_BASELINE_FRAC", 1e-9)
    before = climbed(Waits(), WaitLess(), min_gain=0.03)[0].baseline
    assert before is not None
    assert before.is_extrapolated
    assert len(before.runs_s) == 2
    assert before.total_s == before.runs_s[-1]


def test_the_original_validation_accuracy_is_reported_if_trained_for_its_test_split(
    climbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "with_accuracy", lambda climbing, baseline: baseline)
    before = climbed(Few())[0].baseline
    assert before is not None
    assert before.val_accuracy is not None


@pytest.fixture
def stopping_early(job: JobConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that stops early and is too long to be trained just for the comparison."""
    stopping = replace(job.recipe.stopping, early=True)
    schedule = replace(job.recipe.schedule, max_epochs=400)
    recipe = replace(job.recipe, stopping=stopping, schedule=schedule)
    monkeypatch.setattr(run_module, "_prepare", _prepare_as(recipe))
    monkeypatch.setattr(result_module, "_WHOLE_S", 0.0)
    monkeypatch.setattr(result_module, "_BASELINE_FRAC", 1e-9)
    monkeypatch.setattr(Trainings, "forecast_s", lambda *_: 1e9)


def _prepare_as(recipe: Recipe) -> Callable[..., Any]:
    prepare = run_module._prepare
    return lambda job, task: prepare(replace(job, recipe=recipe), task)


@pytest.mark.usefixtures("stopping_early")
def test_epochs_that_early_stopping_would_not_have_taken_are_no_gain(climbed) -> None:
    summary, folder = climbed(Line())
    before, after = summary.baseline, summary.result
    assert before is not None
    assert after is not None
    assert after.epochs is not None
    assert after.epochs < 400
    assert before.epochs == after.epochs, "nothing was kept: both stop at the same epoch"
    assert before.epochs_are is Provenance.ASSUMED
    (written,) = (
        json.loads(line)
        for line in (folder / "trials.jsonl").read_text().splitlines()
        if json.loads(line)["kind"] == "baseline"
    )
    at_most = written["baseline"]
    assert at_most["epochs"] == 400
    assert before.total_s == pytest.approx(at_most["total_s"] * after.epochs / 400, rel=0.2)


@pytest.mark.thorough
def test_a_job_that_stops_early_has_one_range_in_profile_baseline_and_page(
    climbed, job: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = replace(job.recipe.stopping, early=True)
    schedule = replace(job.recipe.schedule, max_epochs=60)
    recipe = replace(job.recipe, stopping=stopping, schedule=schedule)
    monkeypatch.setattr(run_module, "_prepare", _prepare_as(recipe))
    monkeypatch.setattr(result_module, "_WHOLE_S", 0.0)
    monkeypatch.setattr(result_module, "_BASELINE_FRAC", 1e-9)
    summary, folder = climbed(Waits(), WaitLess(), min_gain=0.03)
    before = summary.baseline
    assert before is not None
    assert before.epoch_range is not None
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    (profile, *_) = (line["profile"] for line in lines if line["kind"] == "profile")
    assert profile["epoch_range"] == to_json(before.epoch_range)
    assert before.low_s is not None
    assert before.high_s is not None
    assert before.low_s <= before.total_s <= before.high_s
    assert summary.speedup is not None
    assert summary.speedup_low == pytest.approx(summary.speedup * before.low_s / before.total_s)
    assert summary.speedup_high == pytest.approx(summary.speedup * before.high_s / before.total_s)
    text = " ".join(re.sub("<[^>]*>", " ", write_report(folder).read_text()).split())
    assert f"{baseline_epochs(before)} → " in text
    assert f"{baseline_time(before)} → " in text


def test_a_job_that_its_clock_would_end_is_refused(climbed, job: JobConfig, monkeypatch) -> None:
    schedule = replace(job.recipe.schedule, max_epochs=100_000, max_time_s=1.0)
    recipe = replace(job.recipe, schedule=schedule)
    monkeypatch.setattr(run_module, "_prepare", _prepare_as(recipe))
    with pytest.raises(UsageError, match=r"hit its time limit: 100,000 epochs take"):
        climbed(Line())
    with pytest.raises(UsageError, match="hit its time limit"):
        run_module.advise(job, Line(), task_name="task", display=Display(io.StringIO()))
    roomy = replace(schedule, max_epochs=6, max_time_s=600.0)
    monkeypatch.undo()
    monkeypatch.setattr(run_module, "_prepare", _prepare_as(replace(recipe, schedule=roomy)))
    assert climbed(Line())[0].baseline is not None


def test_the_whole_run_leaves_no_trace_and_reads_no_test(make_lab, recipe, profile) -> None:
    task = Line()
    lab = make_lab(recipe, task)
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    task.reads.clear()
    found = run_whole(lab, profile)
    assert found is not None
    assert found.epochs == 6
    assert torch.equal(torch.rand(3), wanted)
    assert task.reads
    assert Split.TEST not in task.reads
    assert list(lab.cache.iterdir()) == []
    assert task.data(Split.TEST) is not None, "the task itself still has its test split"


def test_a_task_whose_model_reads_its_data_is_run_whole(make_lab, recipe, profile) -> None:
    class Looks(Line):
        def build_model(self, recipe: Recipe) -> nn.Module:
            x, y = self.data(Split.TRAIN)[0]
            return nn.Linear(len(x), len(y))

    found = run_whole(make_lab(recipe, Looks()), profile)
    assert found is not None
    assert found.epochs == 6


def test_a_task_that_cannot_be_run_whole_is_extrapolated(climbed, monkeypatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("of the whole run")

    monkeypatch.setattr(result_module, "run_whole", fails)
    summary, _ = climbed(Line())
    assert summary.baseline is not None
    assert summary.baseline.is_extrapolated
    assert summary.speedup is not None


def test_a_fault_of_the_original_job_does_not_lose_the_result(climbed, monkeypatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("of the forecast")

    monkeypatch.setattr(Lab, "judge", lambda *_: None)
    monkeypatch.setattr(Lab, "why_not_judged", fails)
    summary, _ = climbed(Few())
    assert summary.result is not None
    assert summary.why_not_compared is not None
    assert "raised RuntimeError: of the forecast" in summary.why_not_compared


def test_a_training_that_ends_within_an_epoch_has_a_part_of_one(climbed, job, monkeypatch) -> None:
    stopping = replace(job.recipe.stopping, validate_every_steps=2)
    schedule = replace(job.recipe.schedule, max_steps=4)
    recipe = replace(job.recipe, stopping=stopping, schedule=schedule)
    monkeypatch.setattr(run_module, "_prepare", _prepare_as(recipe))
    summary, _ = climbed(Line())
    assert summary.baseline is not None
    assert summary.result is not None
    assert summary.baseline.epochs == summary.result.epochs == 0.5, "four steps of eight"


def test_a_job_that_diverges_is_not_run_whole(make_lab, recipe, profile) -> None:
    class Diverges(Line):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return super().loss(model, batch) * math.inf

    lab = make_lab(recipe, Diverges())
    assert run_whole(lab, profile) is None
    assert list(lab.cache.iterdir()) == []


def test_a_signal_in_the_whole_run_reaches_the_climb(make_lab, recipe, profile) -> None:
    class Stops(Line):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().loss(model, batch)

    caught: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: caught.append(number))
    try:
        with pytest.raises(InterruptedRun):
            run_whole(make_lab(recipe, Stops()), profile)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught == [signal.SIGTERM]


def test_compiling_and_the_decoded_copy_count_although_they_are_set_up(
    make_lab, recipe, profile: Profile
) -> None:
    lab = make_lab(recipe)
    compiled = replace(recipe, device=replace(recipe.device, compile=True))
    once = TrainingTime(epochs=1, steps_per_epoch=1, step_s=1, one_time_s={"compile": 7, "load": 2})
    assert outside_clock_s(lab, replace(profile, time=once), compiled) == {"compile": 7}
    assert outside_clock_s(lab, replace(profile, time=once), recipe) == {}
    decoded = replace(recipe, data=replace(recipe.data, decode_once=True))
    lab.store_s[(True, recipe.loader.scaled_decode)] = 3.0
    assert outside_clock_s(lab, profile, decoded) == {"store": 3.0}


def test_a_task_without_classes_is_compared_by_its_losses(plain) -> None:
    summary, folder = plain
    assert summary.test_change is None
    assert summary.loss_change is not None
    assert summary.baseline is not None
    assert summary.result is not None
    assert summary.baseline.test_loss is not None
    assert summary.result.test_loss == pytest.approx(summary.baseline.test_loss, rel=1e-5)
    with (folder / "predictions.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "test"]
    assert [int(row["id"]) for row in rows] == list(range(24))
    assert {row["label"] + row["predicted"] + row["probability"] for row in rows} == {""}
    mean = float(np.mean([float(row["loss"]) for row in rows]))
    assert mean == pytest.approx(read_json(folder / "summary.json")["test_loss"], rel=1e-6)


@pytest.mark.parametrize("task", [Few(1), Line(bad_test=True)])
def test_one_example_or_a_loss_that_is_not_finite_is_not_compared(climbed, task: Task) -> None:
    summary, _ = climbed(task)
    assert summary.test_change is None
    assert summary.loss_change is None


def test_the_gpu_is_predicted_for_the_job_as_it_is_at_the_end(plain) -> None:
    if torch.cuda.is_available():
        pytest.skip("with a GPU, nothing is beyond this machine")
    summary, _ = plain
    assert summary.next is not None
    assert summary.next.rung == "gpu"
    assert summary.next.gain is not None
    assert summary.next.gain >= 1
    assert "T4" in summary.next.text

"""A rung that fails is dropped with its reason, and its trial leaves nothing behind."""

from __future__ import annotations

import gc
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder.config.choices import Split, TrainMode, Where
from stepladder.config.options import JobConfig, LadderConfig
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    DeviceConfig,
    LoaderConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.data.batch import Batch
from stepladder.ladder import trial as trial_module
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.guard import Watchdog
from stepladder.ladder.trial import TrialResult, run_trial
from stepladder.measuring.blocks import workload as workload_module
from stepladder.records.ladder import Decision, Exactness, Prediction
from stepladder.records.profile import Profile, Provenance, TrainingTime
from stepladder.rungs import Rung
from stepladder.task import Task
from stepladder.training.setup.build import open_sources

RECIPE = Recipe(
    train=TrainMode.ALL,
    data=DataConfig(where=Where.STREAM),
    batch=BatchConfig(global_batch_size=8, lr=0.01),
    schedule=ScheduleConfig(max_epochs=2),
    stopping=StoppingConfig(early=False, restore_best=False),
    device=DeviceConfig(threads=1),
)
WITH_RUNG = replace(RECIPE, loader=LoaderConfig(prefetch_batches=3))
"""The recipe by which the task below knows that it runs with the rung."""


class Faulty(Task):
    """A sound job that fails in one of many ways when the rung is applied."""

    def __init__(self, fault: Callable[[Tensor], Tensor]) -> None:
        self.fault = fault
        self.is_faulty = False
        self.models: list[weakref.ref[nn.Module]] = []

    def build_model(self, recipe: Recipe) -> nn.Module:
        self.is_faulty = recipe.loader.prefetch_batches == 3
        model = nn.Linear(2, 2)
        self.models.append(weakref.ref(model))
        return model

    def data(self, split: Split) -> TensorDataset | None:
        if split is Split.TEST:
            return None
        x = torch.randn(48, 2, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, (x[:, 0] > 0).long())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
        return self.fault(losses) if self.is_faulty else losses


class TheRung(Rung):
    name: ClassVar[str] = "the_rung"
    level: ClassVar[int] = 8

    def __init__(self, exactness: Exactness) -> None:
        self.exactness = exactness  # type: ignore[misc]

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        return Prediction(rung=self.name, gain=2.0, provenance=Provenance.MODELLED)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        if self.exactness is not Exactness.STATISTICAL:
            return WITH_RUNG
        return replace(WITH_RUNG, batch=replace(WITH_RUNG.batch, lr=2 * WITH_RUNG.batch.lr))


TIME = TrainingTime(epochs=2, steps_per_epoch=6, step_s=1e-3)


class SteadyTime:
    """Replacement for `time` in timed blocks, which other processes cannot disturb."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += 1e-4
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> SteadyTime:
    """Let blocks take exactly the time of their steps, on a busy machine as well."""
    found = SteadyTime()
    monkeypatch.setattr(workload_module, "time", found)
    return found


class _Lab:
    """Run one trial of a faulty rung."""

    def __init__(self, folder: Path, profile: Profile) -> None:
        self.folder = folder
        self.profile = profile
        self.task: Faulty | None = None

    def __call__(
        self, fault: Callable[[Tensor], Tensor], exactness: Exactness = Exactness.ROUNDING
    ) -> TrialResult:
        self.task = task = Faulty(fault)
        lab = Lab(
            job=JobConfig(recipe=RECIPE, ladder=LadderConfig(block_s=0.002, num_seeds=2)),
            task=task,
            sources=open_sources(task),
            device=torch.device("cpu"),
            cache=self.folder,
            seed=0,
        )
        rung, profile = TheRung(exactness), self.profile
        with lab:
            return run_trial(lab, rung, profile, RECIPE, rung.predict(profile, RECIPE))


@pytest.fixture
def attempt(tmp_path: Path, profile_of: Callable[..., Profile]) -> Iterator[_Lab]:
    torch.set_num_threads(1)
    sizes = {"num_train": 48, "num_val": 48, "weight_bytes": 24, "trainable_bytes": 24}
    profile = profile_of(TIME, has_head=False, is_trunk_frozen=False, **sizes)
    yield _Lab(tmp_path / "cache", profile)
    assert not list((tmp_path / "cache").iterdir())


def raise_(error: BaseException) -> Callable[[Tensor], Tensor]:
    def fault(losses: Tensor) -> Tensor:
        raise error

    return fault


def in_a_block(fault: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Inject the fault at the 60th loss, after the first batches were checked."""
    seen = [0]

    def later(losses: Tensor) -> Tensor:
        seen[0] += 1
        return fault(losses) if seen[0] >= 60 else losses

    return later


Fault = Callable[[Tensor], Tensor]
FAULTS: dict[str, tuple[Callable[[], Fault], str]] = {
    "raises": (
        lambda: raise_(ZeroDivisionError("no such thing")),
        "raised ZeroDivisionError",
    ),
    "out of memory on a GPU": (
        lambda: raise_(torch.OutOfMemoryError("CUDA out of memory")),
        "ran out of memory",
    ),
    "out of memory on the host": (
        lambda: raise_(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")),
        "ran out of memory",
    ),
    "diverges in a block": (lambda: in_a_block(lambda losses: losses * math.nan), "diverged"),
    "fails in a block": (lambda: in_a_block(raise_(KeyError("late"))), "raised KeyError: 'late'"),
    "other results": (lambda: lambda losses: losses * 1.5, "different results: "),
}


@pytest.mark.parametrize(("make_fault", "reason"), FAULTS.values(), ids=FAULTS.keys())
def test_a_faulty_rung_is_dropped_with_its_reason(
    attempt: _Lab, make_fault: Callable[[], Fault], reason: str
) -> None:
    state, threads = torch.get_rng_state(), set(threading.enumerate())
    result = attempt(make_fault())
    verdict = result.trial.verdict
    assert verdict.decision is Decision.DROPPED
    assert verdict.reason.startswith(reason), verdict.reason
    assert result.recipe == RECIPE
    assert torch.equal(torch.get_rng_state(), state), "randomness is untouched"
    assert set(threading.enumerate()) <= threads, "no reader thread is left"
    assert attempt.task is not None
    gc.collect()
    assert all(model() is None for model in attempt.task.models), "its models are freed"


def test_a_training_that_diverges_where_it_did_not_before_is_dropped(attempt: _Lab) -> None:
    result = attempt(lambda losses: losses * float("nan"), Exactness.STATISTICAL)
    assert result.trial.verdict.decision is Decision.DROPPED
    assert result.trial.verdict.reason.startswith("diverged")


def test_a_rung_that_hangs_is_dropped(attempt: _Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module, "Watchdog", lambda **kw: Watchdog(1.5, **kw))

    said: list[str] = []

    def hang(losses: Tensor) -> Tensor:
        said.append("begun")
        time.sleep(60)
        said.append("slept to the end")
        return losses

    result = attempt(in_a_block(hang))
    assert said == ["begun"], result.trial.verdict.reason
    assert result.trial.verdict.decision is Decision.DROPPED
    assert result.trial.verdict.reason.startswith("hung: not finished after")


def test_a_rung_that_outlasts_the_budget_may_be_decided_with_a_larger_one(
    attempt: _Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_module, "Watchdog", lambda **_: Watchdog(1.5, time_left=lambda: 0.0))

    def hang(losses: Tensor) -> Tensor:
        time.sleep(60)
        return losses

    verdict = attempt(in_a_block(hang)).trial.verdict
    assert verdict.decision is Decision.UNDECIDED
    assert verdict.reason.startswith("the budget ran out: not finished after")


@pytest.mark.parametrize(
    ("step_s", "when"),
    [(0.0008, "after one block"), (0.01, "in its first steps")],
    ids=["one block", "no block where one would be long"],
)
def test_a_rung_that_is_grossly_slower_costs_at_most_one_block(
    attempt: _Lab, steady: SteadyTime, step_s: float, when: str
) -> None:
    def crawl(losses: Tensor) -> Tensor:
        steady.sleep(step_s)
        return losses

    result = attempt(crawl)
    assert result.trial.verdict.decision is Decision.DROPPED
    assert f"times as slow {when}" in result.trial.verdict.reason


def test_ctrl_c_passes_through_and_leaves_nothing(attempt: _Lab) -> None:
    with pytest.raises(KeyboardInterrupt):
        attempt(in_a_block(raise_(KeyboardInterrupt())))


def test_noise_of_the_size_of_the_effect_is_not_a_verdict(
    attempt: _Lab, steady: SteadyTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)

    def uneven() -> float:
        steady.sleep(random.exponential(1e-4))
        return steady.now_s

    monkeypatch.setattr(steady, "perf_counter", uneven)
    verdict = attempt(lambda losses: losses).trial.verdict
    assert verdict.decision is Decision.UNDECIDED
    assert verdict.reason == "the noise is larger than the effect"
    assert verdict.speed is not None
    assert verdict.speed.low < 1 < verdict.speed.high

"""The gain that AdaScale measures in training, and what follows from it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from stepladder.config.choices import LrRule, OptimizerName, Precision, ScheduleKind, TrainMode
from stepladder.config.options import JobConfig
from stepladder.config.recipe import (
    BatchConfig,
    DeviceConfig,
    OptimizerConfig,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.errors import InterruptedRun, UsageError
from stepladder.optim.adascale import AdaScale
from stepladder.parallel.world import ALONE
from stepladder.records import read_jsonl
from stepladder.training import session
from stepladder.training.gain import GainMeter, require_gain
from stepladder.training.output.display import Display, ProgressState

MakeJob = Callable[..., JobConfig]
RunJob = Callable[..., dict[str, Any]]

BATCH = BatchConfig(global_batch_size=16, base_batch_size=4, lr=0.05, lr_rule=LrRule.ADASCALE)
SGD = OptimizerConfig(name=OptimizerName.SGD)


def trains(folder: Path) -> list[dict[str, Any]]:
    return [
        dict(event) for event in read_jsonl(folder / "events.jsonl") if event["event"] == "train"
    ]


@pytest.mark.parametrize("loss_scale", [None, 1024.0])
def test_the_meter_sees_the_gradient_of_each_part(loss_scale: float | None) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    x, y = torch.randn(12, 5), torch.randint(3, (12,))
    sizes, scale = [6, 4, 2], loss_scale or 1.0
    meter = GainMeter(
        AdaScale(batch=12, base=3), torch.optim.SGD(model.parameters(), lr=0.1), ALONE
    )
    meter.begin()
    for part, labels in zip(x.split(sizes), y.split(sizes), strict=True):
        losses = F.cross_entropy(model(part), labels, reduction="none")
        (scale * losses.sum() / 12).backward()
        meter.end_part(len(part))
    meter.end(num=12, loss_scale=lambda: loss_scale)

    def gradient(rows: slice) -> torch.Tensor:
        loss = F.cross_entropy(model(x[rows]), y[rows])
        found = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([one.flatten() for one in found])

    wanted = AdaScale(batch=12, base=3)
    parts = [gradient(slice(0, 6)), gradient(slice(6, 10)), gradient(slice(10, 12))]
    wanted.observe(
        parts_sq=sum(n * float(g.square().sum()) for n, g in zip(sizes, parts, strict=True)) / 12,
        whole_sq=float(gradient(slice(0, 12)).square().sum()),
        num_parts=3,
        num=12,
    )
    assert meter.gain.value == pytest.approx(wanted.value, rel=1e-4)
    assert meter.gain.value > 1
    meter.close()
    assert not any(weight._backward_hooks for weight in model.parameters())


def test_the_rate_follows_the_gain_and_training_lasts_as_many_base_steps(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = ScheduleConfig(max_epochs=4, kind=ScheduleKind.COSINE)
    made = job(tmp_path / "run", batch=BATCH, optimizer=SGD, schedule=schedule, log_every=1)
    planned: list[int] = []
    shown = session.progress_of

    def noted(training: session.Training, **last: Any) -> ProgressState:
        planned.append(shown(training, **last).max_epochs)
        return shown(training, **last)

    monkeypatch.setattr(session, "progress_of", noted)
    monkeypatch.setattr(Display, "is_due", lambda _: True)
    summary = run(made, points())
    steps = trains(tmp_path / "run")
    gains = [step["lr_gain"] for step in steps]
    assert gains[0] > 1  # of the next step
    assert all(1 <= gain <= 4 for gain in gains)
    base_steps = 4 * 10  # of 37 examples in batches of 4
    gained = [1.0]
    for gain in gains:
        gained.append(gained[-1] + gain)
    assert summary["stop_reason"] == "max_epochs"
    assert summary["epochs"] > 4
    assert summary["epochs"] == planned[-1]
    assert all(4 <= epochs <= 4 * 4 for epochs in planned)
    assert gained[len(steps) - 1] >= base_steps
    assert gained[len(steps) - 1 - 3] < base_steps  # it would not have lasted an epoch longer
    half = next(idx for idx, count in enumerate(gained) if count >= base_steps / 2)
    assert steps[half - 1]["learning_rate"] < 0.6 * 0.05 * gains[half - 1]
    assert steps[1]["learning_rate"] > 0.9 * 0.05 * gains[1]


def test_the_same_batch_size_is_plain_training(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    same = replace(BATCH, base_batch_size=16)
    schedule = ScheduleConfig(max_epochs=3, kind=ScheduleKind.COSINE)
    for name, rule in (("none", LrRule.NONE), ("gain", LrRule.ADASCALE)):
        batch = replace(same, lr_rule=rule)
        made = job(tmp_path / name, batch=batch, optimizer=SGD, schedule=schedule, log_every=1)
        summary = run(made, points())
        assert summary["epochs"] == 3
    keys = ("train_loss", "learning_rate")
    plain, adaptive = (
        [[step[key] for key in keys] for step in trains(tmp_path / name)]
        for name in ("none", "gain")
    )
    assert plain == adaptive


def test_an_interrupted_run_ends_as_one_that_was_not(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    def made(name: str) -> JobConfig:
        schedule = ScheduleConfig(max_epochs=2, kind=ScheduleKind.COSINE)
        return job(tmp_path / name, batch=BATCH, optimizer=SGD, schedule=schedule, log_every=1)

    run(made("whole"), points())
    broken = points()
    calls = iter(range(100))
    broken.on_step = lambda _: os.kill(os.getpid(), signal.SIGTERM) if next(calls) == 4 else None
    with pytest.raises(InterruptedRun):
        run(made("broken"), broken)
    run(made("broken"), points())
    whole, resumed = trains(tmp_path / "whole"), trains(tmp_path / "broken")
    keys = ("step", "train_loss", "learning_rate", "lr_gain")
    assert [[one[key] for key in keys] for one in whole] == [
        [one[key] for key in keys] for one in resumed
    ]


def test_each_stage_begins_without_a_gain(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    made = job(
        tmp_path / "run",
        batch=replace(BATCH, lr_all=0.01),
        optimizer=SGD,
        train=TrainMode.HEAD_THEN_ALL,
        schedule=ScheduleConfig(max_epochs=1),
        stopping=StoppingConfig(early=False),
        log_every=1,
    )
    assert run(made, points())["stop_reason"] == "max_epochs"
    rates = [step["learning_rate"] / step["lr_gain"] for step in trains(tmp_path / "run")]
    assert sorted({round(rate, 6) for rate in rates}) == [0.01, 0.05]


def test_optimizers_and_models_without_a_gain_are_refused(
    tmp_path: Path, job: MakeJob, points: Any, run: RunJob
) -> None:
    with pytest.raises(UsageError, match="AdaScale is derived for SGD, not for nadam") as caught:
        run(job(tmp_path / "run", batch=BATCH), points())
    assert "--batch.lr-rule sqrt" in str(caught.value)
    recipe = job(tmp_path / "run", batch=BATCH, optimizer=SGD).recipe
    require_gain(recipe)
    sharded = replace(recipe, device=DeviceConfig(sharded=True, precision=Precision.FP32))
    with pytest.raises(UsageError, match=r"--batch\.lr-rule linear"):
        require_gain(sharded)

"""Compiling before the first step leaves a run's random state and results unchanged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stepladder.config.choices import TrainMode
from stepladder.config.recipe import BatchConfig, DeviceConfig, ScheduleConfig
from stepladder.training.checkpoint.checkpoint import load_best
from stepladder.training.clock import Phase


@pytest.fixture(autouse=True)
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch.compile trace and guard, but run eager kernels: bit-identical results."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))


COMPILED = DeviceConfig(compile=True)


@pytest.mark.parametrize(
    ("train", "micro"),
    [(TrainMode.HEAD, None), (TrainMode.ALL, 3), (TrainMode.HEAD_THEN_ALL, None)],
)
def test_a_compiled_run_is_the_plain_run_to_the_last_bit(
    tmp_path: Path,
    job: Callable[..., Any],
    run: Callable[..., Any],
    points: Callable[..., Any],
    train: TrainMode,
    micro: int | None,
) -> None:
    batch = BatchConfig(global_batch_size=8, lr=0.02, micro_batch_size=micro)
    same = {"train": train, "batch": batch, "schedule": ScheduleConfig(max_epochs=2)}
    plain = run(job(tmp_path / "plain", **same), points())
    compiled = run(job(tmp_path / "c", **same, device=COMPILED), points())
    assert compiled["val_loss"] == plain["val_loss"]
    ours, theirs = load_best(tmp_path / "c").weights, load_best(tmp_path / "plain").weights
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_its_time_is_setup_and_no_step_compiles(
    tmp_path: Path, job: Callable[..., Any], run: Callable[..., Any], points: Callable[..., Any]
) -> None:
    from torch._dynamo.utils import counters

    task = points()
    num_graphs: list[int] = []
    task.on_step = lambda batch: num_graphs.append(counters["stats"]["unique_graphs"])
    counters.clear()
    # 37 examples: batches of 8 and a last one of 5, validated in one batch of 20
    summary = run(job(tmp_path / "run", device=COMPILED), task)
    first_step = 2  # the warm-up runs a batch of each size
    assert num_graphs[0] == 0
    assert len(set(num_graphs[first_step:])) == 1
    assert counters["stats"]["unique_graphs"] == num_graphs[-1] > 0
    assert summary["phases_s"][Phase.SETUP] > 0


def test_a_user_who_cannot_be_validated_is_warmed_up_too(
    tmp_path: Path, job: Callable[..., Any], run: Callable[..., Any], points: Callable[..., Any]
) -> None:
    assert run(job(tmp_path / "run", device=COMPILED), points(num_val=0))["steps"] == 25

"""Copies of the model within one process give what one model gives with the same batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stepladder
from stepladder.config.recipe import DeviceConfig
from stepladder.errors import UsageError
from stepladder.parallel.replicas import Replicas
from tests.ranks.test_equal_ranks import COMMON, SCENARIOS, TOLERANCE, events, weights
from tests.ranks.together import TASKS

NAMES = ("full", "head", "accumulation", "adamw", "idle", "bf16", "mixup", "small_batch")


def train(folder: Path, name: str, replicas: int, **more: Any) -> Path:
    """Train a scenario, and return its folder."""
    settings: dict[str, Any] = {**COMMON, **SCENARIOS.get(name, {}), **more}
    task = settings.pop("task", "Plain")
    run = folder / f"{name}-{replicas}"
    stepladder.train(
        task=f"{TASKS}:{task}",
        dir=str(run),
        **settings,
        **{"device.replicas": replicas, "device.kind": "cpu"},
    )
    return run


@pytest.mark.parametrize("name", NAMES)
def test_replicas_give_what_one_model_gives(name: str, tmp_path: Path) -> None:
    one, several = (train(tmp_path, name, num) for num in (1, 3))
    close = {"rtol": TOLERANCE.get(name, 2e-4), "atol": TOLERANCE.get(name, 1e-5)}
    for kind, field in (("train", "train_loss"), ("validation", "val_loss")):
        before, after = ([row[field] for row in events(run, kind)] for run in (one, several))
        assert before
        np.testing.assert_allclose(after, before, **close)
    before, after = weights(one), weights(several)
    assert before.keys() == after.keys()
    for key in before:
        np.testing.assert_allclose(after[key], before[key], **close)


def test_each_copy_normalises_over_its_part_and_the_first_keeps_the_statistics() -> None:
    norm = nn.BatchNorm1d(2)
    cpu = torch.device("cpu")

    def losses(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = model(batch).pow(2).mean(dim=1)
        return values

    first, second = torch.randn(4, 2), torch.randn(4, 2) + 5
    begun: list[int] = []
    found = Replicas(norm, losses, (cpu, cpu))((first, second), begun.append)
    found.sum().backward()
    plain = nn.BatchNorm1d(2)
    wanted = [losses(plain, first)]
    mean = plain.running_mean
    assert mean is not None
    kept = mean.clone()
    wanted.append(losses(plain, second))
    torch.cat(wanted).sum().backward()
    assert begun == [0, 1]
    torch.testing.assert_close(found, torch.cat(wanted))
    torch.testing.assert_close(norm.running_mean, kept)
    torch.testing.assert_close(norm.weight.grad, plain.weight.grad)


def test_the_run_says_what_is_faster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, "full", 2, **{"schedule.max_epochs": 1})
    printed = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert "per device 4, accumulation 1, 2 devices" in printed
    assert "--devices 2 gives the same and is faster" in printed


@pytest.mark.parametrize("other", [{"count": 2}, {"compile": True}])
def test_what_cannot_be_combined_is_refused(other: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"device\.replicas 2 cannot be combined") as caught:
        DeviceConfig(replicas=2, **other)
    assert "type --devices 2" in str(caught.value.fix)

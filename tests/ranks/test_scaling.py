"""Efficiency on several devices is split by real steps with one thing removed at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stepladder.config.choices import DeviceChoice, OptimizerName, TrainMode
from stepladder.config.options import JobConfig, LadderConfig
from stepladder.config.recipe import BatchConfig, DeviceConfig, OptimizerConfig, Recipe
from stepladder.ladder.scaling import measure_scaling
from stepladder.records.scaling import Part, ScalingPoint
from stepladder.task.load import load_task
from tests.ranks.together import ROOT, TASKS, environment

CPU = torch.device("cpu")
RECIPE = Recipe(
    auto=False,
    train=TrainMode.ALL,
    batch=BatchConfig(global_batch_size=8),
    optimizer=OptimizerConfig(name=OptimizerName.SGD),
    device=DeviceConfig(kind=DeviceChoice.CPU, threads=1),
)
LOSSES = (
    Part.MICRO_BATCH,
    Part.CONTENTION,
    Part.STRAGGLERS,
    Part.COMMUNICATION,
    Part.DATA,
)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the processes import the tasks of the tests, and give this one two cores."""
    for name, value in environment(PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{ROOT}").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("stepladder.ladder.scaling.num_cores", lambda: 2)
    return iter([None])


def points_of(name: str, folder: Path) -> dict[int, ScalingPoint]:
    job = JobConfig(recipe=RECIPE, ladder=LadderConfig(block_s=0.05))
    found = measure_scaling(
        job,
        RECIPE,
        load_task(f"{TASKS}:{name}", store=RECIPE.data.store, recipe=RECIPE),
        name=name,
        counts=(1, 2),
        device=CPU,
        folder=folder,
        copies=folder / "copies",
        budget_s=10.0,
    )
    assert {(point.hosts, point.devices) for point in found.measured} == {(1, 1), (1, 2)}
    return {point.devices: point for point in found.measured}


def largest_loss_of_steps(point: ScalingPoint) -> Part:
    return max(LOSSES, key=point.share)


@pytest.mark.distributed
def test_the_parts_add_up_to_the_time_of_an_epoch(tmp_path: Path) -> None:
    points = points_of("WithNorm", tmp_path)
    for point in points.values():
        assert set(point.parts_s) == set(Part)
        assert sum(point.parts_s.values()) == pytest.approx(point.epoch_s, rel=1e-9)
        assert all(s >= 0 for part, s in point.parts_s.items() if part != Part.UNEXPLAINED)
        assert point.parts_s[Part.SERIAL] == pytest.approx(sum(point.serial_s.values()))
        assert point.serial_s["validation"] > 0
        assert point.examples_per_s == pytest.approx(37 / point.epoch_s)
        assert len(point.use) == point.num
        for use in point.use:
            assert list(use.ends_s) == sorted(use.ends_s)
            assert all(0 <= busy <= 1 for busy in use.busy_frac)
    alone, both = points[1], points[2]
    assert alone.efficiency.estimate == 1
    assert alone.serial_s["start"] == 0 < both.serial_s["start"]
    for part in set(LOSSES) - {Part.DATA}:
        assert alone.parts_s[part] == 0
    ratio = both.share(Part.COMPUTE) / alone.share(Part.COMPUTE)
    assert both.efficiency.estimate == pytest.approx(ratio)
    assert both.efficiency.low < ratio < both.efficiency.high


@pytest.mark.distributed
def test_a_rank_that_is_slower_is_a_straggler(tmp_path: Path) -> None:
    both = points_of("SlowRank", tmp_path)[2]
    assert largest_loss_of_steps(both) is Part.STRAGGLERS


@pytest.mark.distributed
def test_slow_reading_is_lost_to_data_on_one_device_and_on_two(tmp_path: Path) -> None:
    points = points_of("SlowReading", tmp_path)
    assert largest_loss_of_steps(points[1]) is Part.DATA
    assert largest_loss_of_steps(points[2]) is Part.DATA


@pytest.mark.distributed
def test_large_gradients_are_lost_to_communication(tmp_path: Path) -> None:
    both = points_of("HeavyGradients", tmp_path)[2]
    assert largest_loss_of_steps(both) is Part.COMMUNICATION

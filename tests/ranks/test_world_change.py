"""A run that resumes on another number of devices keeps its batch, or the batch of each device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepladder.records import read_jsonl
from tests.ranks.together import TASKS, run_ranks

FIRST_STEPS = 3
"""Of 8 examples each, so that 13 of 37 are left of the first of two epochs."""


def call(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "task": f"{TASKS}:Plain",
        "dir": str(folder),
        "run.checks": "off",
        "run.log_every": 1,
        "batch.global_batch_size": 8,
        "batch.base_batch_size": 8,
        "batch.lr": 0.05,
        "batch.lr_rule": "linear",
        "schedule.max_epochs": 2,
        "stopping.early": False,
        "optimizer.name": "sgd",
        "train": "all",
        **more,
    }


def resumed(folder: Path, worlds: tuple[int, int], **more: Any) -> list[dict[str, Any]]:
    """Train a few steps on some devices and the rest on others; return the events."""
    for num, steps in zip(worlds, (FIRST_STEPS, 999), strict=True):
        run_ranks(num, [call(folder, **{**more, "schedule.max_steps": steps})], folder.parent)
    return [dict(event) for event in read_jsonl(folder / "events.jsonl")]


@pytest.mark.parametrize(
    ("worlds", "batch", "num_steps"),
    [((2, 1), 4, 3 + 4 + 10), ((1, 2), 16, 3 + 1 + 3)],
    ids=["2->1", "1->2"],
)
@pytest.mark.distributed
def test_the_batch_of_a_device_stays_and_the_rate_follows(
    tmp_path: Path, worlds: tuple[int, int], batch: int, num_steps: int
) -> None:
    """No example is repeated or skipped: both epochs end after 37 examples."""
    events = resumed(tmp_path / "run", worlds, **{"run.on_world_change": "scale_batch"})
    (change,) = [event for event in events if event["event"] == "world_change"]
    assert (change["world_size_before"], change["world_size"]) == worlds
    assert (change["global_batch_size_before"], change["global_batch_size"]) == (8, batch)
    assert change["step"] == FIRST_STEPS
    steps = [event for event in events if event["event"] == "train"]
    assert [event["step"] for event in steps] == list(range(1, num_steps + 1))
    rates = [event["learning_rate"] for event in steps]
    after = 0.05 * batch / 8
    assert rates == pytest.approx([0.05] * FIRST_STEPS + [after] * (num_steps - FIRST_STEPS))
    seen = [event["samples_seen"] for event in events if event["event"] == "validation"]
    assert seen == [37, 74]
    logs = (tmp_path / f"out-{worlds[1]}-0.txt").read_text()
    said = f"{worlds[0]} -> {worlds[1]} devices: global batch 8 -> {batch}, learning rate 0.05 -> "
    assert f"{said}{after:g} (batch.lr_rule linear)" in " ".join(logs.split())
    assert "has changed since: world size" not in logs


@pytest.mark.distributed
def test_by_default_the_global_batch_stays(tmp_path: Path) -> None:
    events = resumed(tmp_path / "run", (2, 1))
    assert not [event for event in events if event["event"] == "world_change"]
    assert [event["step"] for event in events if event["event"] == "train"][-1] == 10


@pytest.mark.distributed
def test_adascale_measures_what_more_devices_are_worth(tmp_path: Path) -> None:
    """The schedule counts steps of the first batch; the rate is at most that of the linear rule."""
    more = {
        "run.on_world_change": "scale_batch",
        "batch.lr_rule": "adascale",
        "schedule.max_epochs": 3,
    }
    events = resumed(tmp_path / "run", (1, 2), **more)
    steps = [event for event in events if event["event"] == "train"]
    gains = [event["lr_gain"] for event in steps]
    assert gains[:FIRST_STEPS] == [1.0] * FIRST_STEPS
    assert max(gains[FIRST_STEPS:]) > 1
    assert all(1 <= gain <= 2 for gain in gains[FIRST_STEPS:])
    rates = [event["learning_rate"] for event in steps]
    assert rates == pytest.approx([0.05 * gain for gain in gains])


@pytest.mark.distributed
def test_two_ranks_measure_what_two_parts_in_one_process_do(tmp_path: Path) -> None:
    more = {"batch.lr_rule": "adascale", "batch.base_batch_size": 2}
    found = []
    for num in (1, 2):
        run_ranks(num, [call(tmp_path / f"run-{num}", **more)], tmp_path)
        events = read_jsonl(tmp_path / f"run-{num}" / "events.jsonl")
        found.append([event["lr_gain"] for event in events if event["event"] == "train"])
    assert found[0][:5] == pytest.approx(found[1][:5], rel=1e-3)
    assert found[0][0] > 1

"""kill -9 at random moments of training, then the same command again: bit-identical."""

from __future__ import annotations

import random
import sys
import time
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import killed_training

from stepladder.records import read_json, read_jsonl
from stepladder.training.checkpoint.checkpoint import Checkpoints, load_best


def newest_step(folder: Path) -> str:
    return max((path.name for path in folder.glob("checkpoints/step-*")), default="")


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    loaded = Checkpoints(folder / "checkpoints").newest()
    assert loaded is not None
    groups = {**loaded.tensors, "best": load_best(folder).weights}
    return {f"{group}/{name}": t for group, ts in groups.items() for name, t in ts.items()}


def wait_for_step(folder: Path, before: str, process: ForkServerProcess) -> None:
    """Wait until a run has saved a later step, or has ended."""
    while process.is_alive() and newest_step(folder) <= before:
        process.join(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [5, pytest.param(20, marks=pytest.mark.thorough)])
def test_kills_leave_the_weights_of_a_run_that_was_never_killed(
    tmp_path: Path, server: ForkServerContext, num_kills: int
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    started = time.monotonic()
    process = server.Process(target=killed_training.run, args=(whole,))
    process.start()
    process.join()
    assert process.exitcode == 0
    whole_s = time.monotonic() - started

    random_moment = random.Random(0)
    num_killed = num_saved = 0
    for turn in range(200):
        before = newest_step(killed)
        process = server.Process(target=killed_training.run, args=(killed,))
        process.start()
        if num_killed < num_kills:
            # from startup to near the end, so that kills hit every part of the run; every other
            # one after a checkpoint, as most of a short run may be its start
            if num_killed % 2:
                wait_for_step(killed, before, process)
            process.join(random_moment.uniform(0.05, 0.9) * whole_s / (1 + num_killed % 2))
        else:
            process.join()
        if process.exitcode is None:
            process.kill()
            process.join()
            num_killed += 1
            num_saved += newest_step(killed) > before
        elif process.exitcode == 0 and num_killed >= num_kills:
            break
        elif process.exitcode == 0:  # finished before the kill: start again, and keep counting
            assert_same(whole, killed)
            killed = tmp_path / f"killed{turn}"
        else:
            pytest.fail(f"a resumed run failed with exit code {process.exitcode}")
    assert num_killed == num_kills
    assert num_saved >= min(3, num_kills // 2), "too few kills hit the training"
    assert_same(whole, killed)


def assert_same(whole: Path, killed: Path) -> None:
    expected, found = tensors_of(whole), tensors_of(killed)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
    names = ("steps", "epochs", "best_step", "val_loss", "test_loss", "test_accuracy")
    old, new = read_json(whole / "summary.json"), read_json(killed / "summary.json")
    assert [old[name] for name in names] == [new[name] for name in names]
    steps = {
        folder: [e["step"] for e in read_jsonl(folder / "events.jsonl") if e["event"] == "train"]
        for folder in (whole, killed)
    }
    assert steps[whole] == steps[killed]

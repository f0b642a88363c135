"""The range of learning rates, from losses with a known answer and from a real sweep."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from stepladder.diagnosis.fit.range_test import range_test, read_range
from stepladder.diagnosis.runs.opened_run import open_run
from stepladder.diagnosis.runs.run_curves import read_run
from stepladder.records.diagnosis import LrVerdict, RangeTest
from stepladder.reporting.pages.diagnosis_page import said_of_range
from stepladder.task.load import load_task

LRS = [10 ** (-5 + 0.06 * idx) for idx in range(100)]


def losses(*, noise: float = 0.02, seed: int = 0) -> list[float]:
    """Flat up to 1e-3, falling up to 1e-1, then diverging."""
    random = np.random.default_rng(seed)
    found = []
    for lr in LRS:
        x = math.log10(lr)
        loss = 2.3 if x < -3 else 2.3 - 0.8 * (x + 3) if x < -1 else 0.7 + 3 * (x + 1) ** 2
        found.append(loss + noise * random.standard_normal())
    return found


def test_the_range_is_where_the_loss_falls() -> None:
    found = read_range(LRS, losses())
    assert found.low is not None
    assert found.high is not None
    assert 5e-4 < found.low < 5e-3
    assert 5e-2 < found.high < 5e-1
    assert found.suggested is not None
    assert found.low <= found.suggested < found.high
    assert found.verdict(1e-6) is LrVerdict.TOO_LOW
    assert found.verdict(found.suggested) is LrVerdict.IN_RANGE
    assert found.verdict(5.0) is LrVerdict.TOO_HIGH


def test_a_rate_just_below_the_range_is_not_said_to_be_in_it() -> None:
    for lr, said in ((0.001, "slightly below the usable range"), (0.002, "within the usable")):
        test = RangeTest(
            lrs=(0.001, 0.01),
            losses=(2.0, 1.0),
            low=0.0011,
            high=0.028,
            suggested=0.0093,
            lr=lr,
            verdict=LrVerdict.IN_RANGE,
            took_s=1.0,
        )
        assert said in said_of_range(test)


def test_a_loss_that_never_falls_gives_no_range() -> None:
    random = np.random.default_rng(1)
    flat = (2.3 + 0.1 * random.standard_normal(100)).tolist()
    found = read_range(LRS, flat)
    assert found.low is None
    assert found.verdict(0.1) is LrVerdict.NOT_TOLD


def test_few_steps_give_no_range() -> None:
    assert read_range(LRS[:10], losses()[:10]).high is None
    assert read_range([], []).high is None


def test_a_sweep_leaves_no_trace_and_finds_where_a_net_learns(
    underfit_run: Path, task_file: Path
) -> None:
    files = read_run(underfit_run)
    assert files.job is not None
    name = f"{task_file}:Rings"  # a net that can learn, with the same recipe
    task = load_task(name, store=Path("none"), recipe=files.job.recipe)
    opened = open_run(underfit_run, files.job, task)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    found = range_test(opened, budget_s=60)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.lr == files.job.recipe.batch.lr
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.02
    assert 0.005 < found.high < 2
    assert list(found.lrs) == sorted(found.lrs)


def test_too_little_time_takes_no_steps(underfit_run: Path, task_file: Path) -> None:
    files = read_run(underfit_run)
    assert files.job is not None
    task = load_task(f"{task_file}:Straight", store=Path("none"), recipe=files.job.recipe)
    found = range_test(open_run(underfit_run, files.job, task), budget_s=0.0)
    assert found.lrs == ()
    assert found.verdict is LrVerdict.NOT_TOLD

"""A run that was stopped and resumed: each attempt is judged by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.diagnosis.runs.machine_use import judge_machine
from stepladder.diagnosis.runs.run_curves import RunFiles

PHASES = {"data_wait": 1.0, "forward": 40.0, "backward": 40.0, "optimizer": 10.0}
MEMORY = pytest.mark.parametrize("key", ["rss_bytes", "gpu_memory_bytes"])


def run_of(*attempts: Sequence[Mapping[str, float]], **summary: Any) -> RunFiles:
    events = tuple(
        {"event": "system", "attempt": attempt, **sample}
        for attempt, samples in enumerate(attempts, start=1)
        for sample in samples
    )
    whole = {"phases_s": PHASES, "data_wait_frac": 0.01, "attempts": len(attempts), **summary}
    env = {"cpu": {"num_cores": 4}}
    return RunFiles(path=Path("run"), events=events, summary=whole, env=env, job=None)


def said(run: RunFiles) -> str:
    return " ".join(judge_machine(run).said)


def of(key: str, values: Sequence[float]) -> list[dict[str, float]]:
    return [{key: float(value)} for value in values]


def flat(level: float, num: int, *, seed: int = 0) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, 2e6, num)
    return [level + float(value) for value in noise]


SETTLING = [965e6, 1010e6, 1090e6, 1180e6]


@MEMORY
def test_attempts_that_are_flat_at_other_levels_are_left_alone(key: str) -> None:
    for seed in range(20):
        first = of(key, flat(965e6, 30, seed=seed))
        second = of(key, [*SETTLING, *flat(1250e6, 40, seed=seed + 100)])
        assert "grew" not in said(run_of(first, second))


@pytest.mark.parametrize("jump_at", [2, 6, 12, 20, 30, 40, 50, 58])
def test_memory_that_jumps_once_is_left_alone(jump_at: int) -> None:
    for seed in range(20):
        steps = [*flat(965e6, jump_at, seed=seed), *flat(1650e6, 60 - jump_at, seed=seed + 100)]
        assert "grew" not in said(run_of(of("rss_bytes", steps)))


@MEMORY
def test_a_leak_in_the_second_attempt_is_told_with_its_number(key: str) -> None:
    first = of(key, flat(965e6, 30))
    leak = [level + 5e7 * idx for idx, level in enumerate(flat(1250e6, 40))]
    text = said(run_of(first, of(key, [*SETTLING, *leak])))
    assert "memory grew all the time" in text
    assert "of attempt 2 to the last" in text


def test_a_leak_in_the_first_attempt_is_told_after_a_short_second_one() -> None:
    leak = of("rss_bytes", [1e9 + 5e7 * idx for idx in range(40)])
    assert "of attempt 1 to the last" in said(run_of(leak, of("rss_bytes", flat(9e8, 6))))


def test_a_leak_that_begins_halfway_or_comes_with_each_epoch_is_told() -> None:
    halfway = [1e9 + 8e7 * max(0, idx - 30) for idx in range(60)]
    stairs = [1e9 + 3e8 * (idx // 7) for idx in range(60)]
    for levels in (halfway, stairs):
        assert "memory grew all the time" in said(run_of(of("rss_bytes", levels)))


def test_use_of_a_gpu_that_is_even_in_each_attempt_is_not_uneven() -> None:
    slow, busy = of("gpu_percent", [5.0] * 10), of("gpu_percent", [95.0] * 30)
    text = said(run_of(slow, busy))
    assert "uneven" not in text
    assert "in attempt 2, the GPU had a kernel running 95 %" in text


def test_use_of_the_cores_is_of_the_machine_that_the_last_attempt_ran_on() -> None:
    many, few = of("cpu_percent", [3000.0] * 20), of("cpu_percent", [100.0] * 6)
    text = said(run_of(many, few))
    assert "in attempt 2, 100 % of one core was used on average, of 4 cores: 25.0 %" in text


def test_an_attempt_too_short_to_tell_leaves_the_word_to_the_one_before() -> None:
    long, short = of("gpu_percent", [30.0] * 10), of("gpu_percent", [95.0] * 2)
    assert "in attempt 1, the GPU had a kernel running 30 %" in said(run_of(long, short))
    assert "kernel" not in said(run_of(short, short, short))


def test_time_before_the_first_step_is_that_of_all_attempts() -> None:
    phases = {**PHASES, "setup": 60.0}
    assert "passed before the first step" in said(run_of([], phases_s=phases))
    assert "first steps of its 3 attempts" in said(run_of([], [], [], phases_s=phases))


def test_energy_is_that_of_all_attempts() -> None:
    first, second = of("energy_wh", [0.1, 0.5]), of("energy_wh", [0.2, 0.3])
    assert judge_machine(run_of(first, second)).energy_wh == pytest.approx(0.8)
    finished = run_of(first, second, energy_wh=0.4)  # of the last attempt, to its very end
    assert judge_machine(finished).energy_wh == pytest.approx(0.9)
    assert judge_machine(run_of([], [])).energy_wh is None

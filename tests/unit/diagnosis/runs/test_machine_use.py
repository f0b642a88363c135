"""Causes of low or uneven utilization, from samples and the phases of the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.diagnosis.runs.machine_use import judge_machine
from stepladder.diagnosis.runs.run_curves import RunFiles, read_run

WAITING = {"data_wait": 60.0, "forward": 20.0, "backward": 20.0}
BUSY = {"data_wait": 1.0, "forward": 40.0, "backward": 40.0, "optimizer": 10.0, "unexplained": 1.0}


def files(
    samples: list[dict[str, float]], phases: Mapping[str, float] = BUSY, *, wait: float = 0.01
) -> RunFiles:
    events = tuple({"event": "system", "elapsed_s": 2.0 * i, **s} for i, s in enumerate(samples))
    summary: dict[str, Any] = {"phases_s": dict(phases), "data_wait_frac": wait}
    env = {"cpu": {"num_cores": 4}}
    return RunFiles(path=Path("run"), events=events, summary=summary, env=env, job=None)


def gpu(*percents: float) -> list[dict[str, float]]:
    return [{"gpu_percent": percent, "cpu_percent": 100.0} for percent in percents]


def said(run: RunFiles) -> str:
    return " ".join(judge_machine(run).said)


def test_a_busy_gpu_is_left_alone() -> None:
    found = judge_machine(files(gpu(*[95.0] * 10)))
    assert found.held_by is None
    assert "it was busy" in " ".join(found.said)


@pytest.mark.parametrize(
    ("phases", "wait", "cause"),
    [
        (WAITING, 0.6, "data wait"),
        (
            {"forward": 30.0, "backward": 30.0, "logging": 20.0, "unexplained": 20.0},
            0.0,
            "host work",
        ),
        ({"forward": 30.0, "backward": 30.0, "validation": 40.0}, 0.0, "validation"),
        ({"forward": 40.0, "backward": 40.0, "checkpoint": 20.0}, 0.0, "checkpoints"),
    ],
)
def test_low_use_is_traced_to_its_phase(
    phases: Mapping[str, float], wait: float, cause: str
) -> None:
    found = judge_machine(files(gpu(*[30.0] * 10), phases, wait=wait))
    assert found.held_by == cause
    assert f"use is low, because of {cause}" in " ".join(found.said)


def test_low_use_that_no_phase_explains_is_a_small_batch() -> None:
    assert "larger batches" in said(files(gpu(*[30.0] * 10)))


def test_use_that_comes_and_goes_is_uneven() -> None:
    uneven = files(gpu(*[0.0, 100.0] * 8), WAITING, wait=0.6)
    assert "use is uneven, because of data wait" in said(uneven)


def test_few_samples_say_nothing_of_the_gpu() -> None:
    assert "GPU" not in said(files(gpu(10.0, 10.0)))


def test_idle_cores_are_said_with_their_number() -> None:
    idle = files([{"cpu_percent": 100.0}] * 6)
    assert "of 4 cores: 25.0 %" in said(idle)
    assert "the bottleneck was" in said(idle)
    assert "was busy" in said(files([{"cpu_percent": 390.0}] * 6))


def test_memory_that_keeps_growing_is_said() -> None:
    growing = [{"rss_bytes": 2e9 + 1e8 * idx} for idx in range(30)]
    steady = [{"rss_bytes": 2e9 + 1e6 * (idx % 3)} for idx in range(30)]
    assert "memory grew continuously" in said(files(growing))
    assert "grew" not in said(files(steady))


def test_a_built_in_job_that_grows_is_our_bug() -> None:
    growing = files([{"rss_bytes": 2e9 + 1e8 * idx} for idx in range(30)])
    ours = " ".join(judge_machine(growing, is_built_in=True).said)
    assert "report it" in ours
    assert "--loader.prefetch-batches" in ours
    assert "graphs" not in ours
    assert "storing losses with their autograd graphs" in said(growing)


SHORT = {"data_wait": 0.35, "forward": 0.13, "backward": 0.1, "optimizer": 0.2, "validation": 0.3}


def test_steps_that_took_little_are_not_what_held_a_run_up() -> None:
    phases = {**SHORT, "setup": 23.0, "features": 35.0, "test": 37.0}
    run = files([{"cpu_percent": 100.0}] * 6, phases, wait=0.4)
    found, words = judge_machine(run), said(run)
    assert found.held_by == "the final evaluation"
    assert "was spent on the final evaluation (37 s), computing features (35 s) and set-up" in words
    assert "its steps took 0.8 s in all" in words
    assert "larger batches" not in words
    assert "waiting for data" not in words
    on_gpu = said(files(gpu(*[30.0] * 10), phases, wait=0.4))
    assert "use is low, because of the final evaluation" in on_gpu


@pytest.mark.parametrize("validation_s", [0.5, 60.0])
def test_waits_of_short_steps_are_not_said(validation_s: float) -> None:
    found = judge_machine(files([], {**SHORT, "validation": validation_s}, wait=0.4))
    assert found.held_by == (None if validation_s < 1 else "validation")


def test_waits_of_short_steps_are_not_said_before_there_is_a_summary() -> None:
    def going_on(step_s: float) -> RunFiles:
        lines: list[dict[str, Any]] = [{"event": "start", "elapsed_s": 0.0}]
        for idx in range(1, 4):
            at = idx * step_s
            wait = {"time_metrics/data_loading(%)": 40.0}
            lines.append({"event": "system", "elapsed_s": at - step_s / 2})
            lines.append({"event": "train", "elapsed_s": at, **wait})
        return RunFiles(path=Path("run"), events=tuple(lines), summary={}, env={}, job=None)

    assert "waiting for data" not in said(going_on(0.1))
    assert "waiting for data" in said(going_on(10.0))


def test_disk_network_and_energy_are_reported() -> None:
    samples = [
        {"disk_read_bytes_per_s": 1e6 * idx, "network_bytes_per_s": 5.0, "energy_wh": 0.1 * idx}
        for idx in range(6)
    ]
    found = judge_machine(files(samples))
    by_name = {use.name: use for use in found.uses}
    assert by_name["disk, read"].mean == pytest.approx(2.5e6)
    assert by_name["network"].num_samples == 6
    assert found.energy_wh == pytest.approx(0.5)


def test_shares_of_phases_add_up_without_set_up_and_test() -> None:
    found = judge_machine(files([], {**BUSY, "setup": 100.0, "test": 50.0}))
    assert sum(found.phases.values()) == pytest.approx(1)
    assert "setup" not in found.phases


def test_a_run_without_a_summary_says_what_is_not_known() -> None:
    running = RunFiles(path=Path("run"), events=(), summary={}, env={}, job=None)
    assert "the time within a step is unknown" in said(running)
    assert "machine use is unknown" in said(running)


def test_a_real_run_has_samples_of_all_that_linux_counts(underfit_run: Path) -> None:
    found = judge_machine(read_run(underfit_run))
    names = {use.name for use in found.uses}
    assert {"CPU", "memory"} <= names
    assert found.phases["forward"] > 0


# a run that was stopped and resumed: each attempt is judged separately
MEMORY = pytest.mark.parametrize("key", ["rss_bytes", "gpu_memory_bytes"])


def run_of(*attempts: Sequence[Mapping[str, float]], **summary: Any) -> RunFiles:
    events = tuple(
        {"event": "system", "attempt": attempt, **sample}
        for attempt, samples in enumerate(attempts, start=1)
        for sample in samples
    )
    whole = {"phases_s": BUSY, "data_wait_frac": 0.01, "attempts": len(attempts), **summary}
    env = {"cpu": {"num_cores": 4}}
    return RunFiles(path=Path("run"), events=events, summary=whole, env=env, job=None)


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
def test_a_leak_in_the_second_attempt_is_reported_with_its_number(key: str) -> None:
    first = of(key, flat(965e6, 30))
    leak = [level + 5e7 * idx for idx, level in enumerate(flat(1250e6, 40))]
    text = said(run_of(first, of(key, [*SETTLING, *leak])))
    assert "memory grew continuously" in text
    assert "of attempt 2 to the last" in text


def test_a_leak_in_the_first_attempt_is_reported_after_a_short_second_one() -> None:
    leak = of("rss_bytes", [1e9 + 5e7 * idx for idx in range(40)])
    assert "of attempt 1 to the last" in said(run_of(leak, of("rss_bytes", flat(9e8, 6))))


def test_a_leak_that_begins_halfway_or_comes_with_each_epoch_is_reported() -> None:
    halfway = [1e9 + 8e7 * max(0, idx - 30) for idx in range(60)]
    stairs = [1e9 + 3e8 * (idx // 7) for idx in range(60)]
    for levels in (halfway, stairs):
        assert "memory grew continuously" in said(run_of(of("rss_bytes", levels)))


def test_use_of_a_gpu_that_is_even_in_each_attempt_is_not_uneven() -> None:
    slow, busy = of("gpu_percent", [5.0] * 10), of("gpu_percent", [95.0] * 30)
    text = said(run_of(slow, busy))
    assert "uneven" not in text
    assert "in attempt 2, the GPU had a kernel running 95 %" in text


def test_use_of_the_cores_is_of_the_machine_that_the_last_attempt_ran_on() -> None:
    many, few = of("cpu_percent", [3000.0] * 20), of("cpu_percent", [100.0] * 6)
    text = said(run_of(many, few))
    assert "in attempt 2, on average 100 % of one core was used, of 4 cores: 25.0 %" in text


def test_an_attempt_that_is_too_short_is_judged_by_the_one_before() -> None:
    long, short = of("gpu_percent", [30.0] * 10), of("gpu_percent", [95.0] * 2)
    assert "in attempt 1, the GPU had a kernel running 30 %" in said(run_of(long, short))
    assert "kernel" not in said(run_of(short, short, short))


def test_time_before_the_first_step_is_that_of_all_attempts() -> None:
    phases = {**BUSY, "setup": 60.0}
    assert "passed before the first step" in said(run_of([], phases_s=phases))
    assert "first steps of its 3 attempts" in said(run_of([], [], [], phases_s=phases))


def test_energy_is_that_of_all_attempts() -> None:
    first, second = of("energy_wh", [0.1, 0.5]), of("energy_wh", [0.2, 0.3])
    assert judge_machine(run_of(first, second)).energy_wh == pytest.approx(0.8)
    finished = run_of(first, second, energy_wh=0.4)  # of the last attempt, to its very end
    assert judge_machine(finished).energy_wh == pytest.approx(0.9)
    assert judge_machine(run_of([], [])).energy_wh is None


# remedies for waiting on data, by what the reader threads were doing
READ = {"event": "reader", "attempt": 1, "num_read": 100, "read_bytes": 2e8}


@pytest.mark.parametrize(
    ("counted", "advice"),
    [
        ({"fetch_s": 1.0, "decode_s": 9.0}, "decoding is 90.0 % of the reader threads' work"),
        ({"fetch_s": 9.0, "decode_s": 1.0}, "work, at 22 MB/s per thread"),
        ({"fetch_s": 9.0, "cache_hits": 1, "cache_misses": 3}, "--data.max-cache-bytes"),
        ({"fetch_s": 1.0, "decode_s": 9.0, "cache_hits": 95, "cache_misses": 5}, "decode-once"),
        ({"read_bytes": 0, "fetch_s": 9.0}, "more reader threads (--loader.threads)"),
    ],
)
def test_what_helps_is_what_reading_spends_its_time_on(
    counted: dict[str, Any], advice: str
) -> None:
    found = judge_machine(replace(files([], WAITING, wait=0.6), events=(READ | counted,)))
    assert found.held_by == "data wait"
    assert advice in " ".join(found.said)

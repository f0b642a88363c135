"""What low or uneven use comes from, told from samples and the phases of the clock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stepladder.diagnosis.runs.machine_use import judge_machine
from stepladder.diagnosis.runs.run_curves import RunFiles, read_run

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
    assert "kept busy" in " ".join(found.said)


@pytest.mark.parametrize(
    ("phases", "wait", "cause"),
    [
        ({"data_wait": 60.0, "forward": 20.0, "backward": 20.0}, 0.6, "data wait"),
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
    assert f"use is low, by {cause}" in " ".join(found.said)


def test_low_use_that_no_phase_explains_is_a_small_batch() -> None:
    assert "larger batches" in said(files(gpu(*[30.0] * 10)))


def test_use_that_comes_and_goes_is_uneven() -> None:
    phases = {"data_wait": 60.0, "forward": 20.0, "backward": 20.0}
    assert "use is uneven, by data wait" in said(files(gpu(*[0.0, 100.0] * 8), phases, wait=0.6))


def test_few_samples_say_nothing_of_the_gpu() -> None:
    assert "GPU" not in said(files(gpu(10.0, 10.0)))


def test_idle_cores_are_said_with_their_number() -> None:
    idle = files([{"cpu_percent": 100.0}] * 6)
    assert "of 4 cores: 25.0 %" in said(idle)
    assert "held up by" in said(idle)
    assert "was busy" in said(files([{"cpu_percent": 390.0}] * 6))


def test_memory_that_keeps_growing_is_said() -> None:
    growing = [{"rss_bytes": 2e9 + 1e8 * idx} for idx in range(30)]
    steady = [{"rss_bytes": 2e9 + 1e6 * (idx % 3)} for idx in range(30)]
    assert "memory grew all the time" in said(files(growing))
    assert "grew" not in said(files(steady))


def test_a_built_in_job_that_grows_is_ours_to_mend() -> None:
    growing = files([{"rss_bytes": 2e9 + 1e8 * idx} for idx in range(30)])
    ours = " ".join(judge_machine(growing, is_built_in=True).said)
    assert "report it" in ours
    assert "--loader.prefetch-batches" in ours
    assert "graphs" not in ours
    assert "kept with their graphs" in said(growing)


SHORT = {"data_wait": 0.35, "forward": 0.13, "backward": 0.1, "optimizer": 0.2, "validation": 0.3}


def test_steps_that_took_little_are_not_what_held_a_run_up() -> None:
    phases = {**SHORT, "setup": 23.0, "features": 35.0, "test": 37.0}
    run = files([{"cpu_percent": 100.0}] * 6, phases, wait=0.4)
    found, words = judge_machine(run), said(run)
    assert found.held_by == "the final evaluation"
    assert "went to the final evaluation (37 s), computing features (35 s) and set-up" in words
    assert "its steps took 0.8 s in all" in words
    assert "larger batches" not in words
    assert "waiting for data" not in words
    on_gpu = said(files(gpu(*[30.0] * 10), phases, wait=0.4))
    assert "use is low, by the final evaluation" in on_gpu


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


def test_disk_network_and_energy_are_told() -> None:
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
    assert "not known" in said(running)
    assert "not sampled" in said(running)


def test_a_real_run_has_samples_of_all_that_linux_counts(underfit_run: Path) -> None:
    found = judge_machine(read_run(underfit_run))
    names = {use.name for use in found.uses}
    assert {"CPU", "memory"} <= names
    assert found.phases["forward"] > 0

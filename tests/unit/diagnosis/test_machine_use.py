"""What low or uneven use comes from, told from samples and the phases of the clock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stepladder.diagnosis.machine_use import judge_machine
from stepladder.diagnosis.run_curves import RunFiles, read_run

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

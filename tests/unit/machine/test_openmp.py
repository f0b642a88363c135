"""Threads stop spinning early, unless the user has set how they wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import stepladder
from stepladder.machine import openmp
from stepladder.machine.openmp import (
    BUSY_SPINS,
    QUIET_SPINS,
    WAITING_VARIABLES,
    bound_spinning,
    user_waiting_settings,
    warn_of_spinning,
)

SHOW = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if 'OMP' in k}))"


def waiting(code: str, **variables: str) -> dict[str, str]:
    """Return the variables of OpenMP at the end of a program."""
    kept = {name: value for name, value in os.environ.items() if name not in WAITING_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{SHOW}"],
        env={**kept, **variables},
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_command_and_the_python_api_bound_it() -> None:
    command = "from stepladder.cli.main import main; main(['init', '--help'])"
    for code in (
        f"try:\n    {command}\nexcept SystemExit: pass",
        "import stepladder as s; s.train",
    ):
        assert waiting(code)["GOMP_SPINCOUNT"] in (QUIET_SPINS, BUSY_SPINS)


@pytest.mark.parametrize("num_free", [0, 1])
def test_threads_sleep_at_once_beside_busy_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, num_free: int
) -> None:
    load = tmp_path / "loadavg"
    num_others = (os.cpu_count() or 1) - len(os.sched_getaffinity(0)) + 1 - num_free
    load.write_text(f"0.5 0.5 0.5 {1 + num_others}/117 24591\n")
    for name in WAITING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "")  # so that it is restored
    monkeypatch.delenv("GOMP_SPINCOUNT")
    modules = {name: module for name, module in sys.modules.items() if name != "torch"}
    monkeypatch.setattr(sys, "modules", modules)
    assert bound_spinning(load)
    assert os.environ["GOMP_SPINCOUNT"] == (QUIET_SPINS if num_free else BUSY_SPINS)
    assert user_waiting_settings() == {}  # a climb may be resumed under another load


def test_without_the_kernels_file_the_machine_counts_as_quiet(tmp_path: Path) -> None:
    code = (
        "import pathlib, stepladder.machine.openmp as one\n"
        f"one.bound_spinning(pathlib.Path({str(tmp_path / 'none')!r}))"
    )
    assert waiting(code)["GOMP_SPINCOUNT"] == QUIET_SPINS


def test_importing_the_package_changes_nothing() -> None:
    assert "GOMP_SPINCOUNT" not in waiting("import stepladder")


def test_a_watched_script_keeps_its_own_way() -> None:
    assert "GOMP_SPINCOUNT" not in waiting("import stepladder as s; s.watch")


@pytest.mark.parametrize("name", WAITING_VARIABLES)
def test_the_users_own_setting_wins(name: str) -> None:
    found = waiting("import stepladder as s; s.train", **{name: "7"})
    assert found.get("GOMP_SPINCOUNT") == ("7" if name == "GOMP_SPINCOUNT" else None)


def test_it_is_too_late_once_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for name in WAITING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert torch
    assert not bound_spinning()
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is set, torch is loaded, and nothing has been warned of."""
    import torch

    assert torch
    for name in WAITING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(openmp, "_warned", [])


@pytest.mark.usefixtures("unset")
def test_threads_that_spin_beside_busy_processes_are_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openmp, "_has_busy_neighbors", lambda load: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stepladder.Batch  # in a loss, it is looked up at every step
    with pytest.warns(UserWarning, match="`export GOMP_SPINCOUNT=0` before you start") as caught:
        assert stepladder.train.__name__ + stepladder.climb.__name__ == "trainclimb"
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("unset")
def test_nothing_is_warned_of_on_a_quiet_machine_or_with_a_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load = tmp_path / "loadavg"
    load.write_text("0.5 0.5 0.5 1/117 24591\n")
    warn_of_spinning(load)
    load.write_text("9.5 9.5 9.5 999/2117 24591\n")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    warn_of_spinning(load)


@pytest.mark.usefixtures("unset")
def test_threads_of_this_process_are_no_neighbors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All cores run this process: threads of torch spin for a while after its last operation."""
    load, tasks = tmp_path / "loadavg", tmp_path / "task"
    num_cores = os.cpu_count() or 1
    load.write_text(f"0.5 0.5 0.5 {num_cores}/117 24591\n")
    for idx in range(num_cores + 1):
        (tasks / str(idx)).mkdir(parents=True)
        state = "R" if idx < num_cores else "S"
        (tasks / str(idx) / "stat").write_text(f"{idx} (a (b) c) {state} 1 1 0\n")
    monkeypatch.setattr(openmp, "_OWN_THREADS", tasks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_spinning(load)
    load.write_text(f"0.5 0.5 0.5 {num_cores + 1}/117 24591\n")
    with pytest.warns(UserWarning, match="spinning"):
        warn_of_spinning(load)

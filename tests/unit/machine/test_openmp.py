"""Threads stop spinning early, unless the user has set how they wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.machine.openmp import (
    BUSY_SPINS,
    QUIET_SPINS,
    WAITING_VARIABLES,
    bound_spinning,
    user_waiting_settings,
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

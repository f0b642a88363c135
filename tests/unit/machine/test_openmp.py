"""Threads stop spinning early, unless the user has set how they wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from stepladder.machine.openmp import WAITING_VARIABLES, bound_spinning

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
        assert int(waiting(code)["GOMP_SPINCOUNT"]) > 0


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

"""env.json contains what a result depends on, and nothing private."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import stepladder
from stepladder.machine import environment, gpus, instruction_set, versions
from stepladder.machine.environment import git_state


def test_no_secret_of_the_environment_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "WANDB_API_KEY",
        "MLFLOW_TRACKING_PASSWORD",
        "DATABASE_URL",
        "STEPLADDER_ANYTHING",
        "https_proxy",
    ):
        monkeypatch.setenv(name, "canary-4711")
    monkeypatch.setattr(sys, "argv", ["stepladder", "--token", "canary-4711"])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    text = json.dumps(environment())
    assert "canary" not in text
    assert json.loads(text)["variables"]["OMP_NUM_THREADS"] == "3"


def test_facts_are_plain_json_and_present() -> None:
    facts = environment()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["cpu"]["num_cores"] >= 1
    assert facts["memory"]["limit_bytes"] <= facts["memory"]["total_bytes"]
    assert facts["versions"]["stepladder"] == stepladder.__version__


def test_versions_import_nothing() -> None:
    code = (
        "import sys; from stepladder.machine import versions; found = versions();"
        "assert 'torch' in found, found;"
        "bad = {'torch', 'timm', 'torchvision', 'mlflow', 'onnx'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "numpy" in versions()


def test_instructions_are_a_part_of_what_the_cpu_says() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        pytest.skip("the system reports no CPU flags")
    assert set(instruction_set()) <= set(cpuinfo.read_text().split())


def test_the_commit_is_reported_in_a_repository_only(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None

    def git(*words: str) -> str:
        name = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *name, *words], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    assert git_state(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "one")
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "is_changed": False}
    (tmp_path / "a").write_text("2")
    state = git_state(tmp_path)
    assert state is not None
    assert state["is_changed"]


def test_no_gpu_or_a_broken_driver_is_an_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert gpus() == ()

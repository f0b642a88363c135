"""What a climb has kept works where the script is afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

import pytest

from stepladder.scripts.settings import Settings

SCRIPT = textwrap.dedent(
    """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    rows = TensorDataset(torch.arange(6.0))
    loader = DataLoader(rows, batch_size=2)
    for epoch in range(2):
        print([batch.tolist() for batch, in loader], type(loader.dataset).__name__)
    """
).lstrip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "climb-train").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    key = f"{folder / 'train.py'}:5:9"
    settings = Settings(examples_in_memory=True, memory_loaders=(key,), row_loaders=(key,))
    written = settings.seen_from(folder)
    assert written.memory_loaders == ("train.py:5:9",)
    assert written.put_in(folder) == settings
    (folder / "climb-train" / "settings.json").write_text(json.dumps(asdict(written)))
    (folder / "climb-train" / "script.json").write_text("{}")
    return folder


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "stepladder", "run", "--with", "climb", "train.py"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)


@pytest.mark.thorough
def test_a_copied_folder_runs_with_what_was_kept(project: Path, tmp_path: Path) -> None:
    before = run(project)
    shutil.copytree(project, tmp_path / "elsewhere")
    shutil.rmtree(project)
    after = run(tmp_path / "elsewhere")
    assert (
        before.stdout == after.stdout == "[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]] RowsInMemory\n" * 2
    )
    assert "no DataLoader" not in after.stderr


@pytest.mark.thorough
def test_a_changed_script_is_reported(project: Path) -> None:
    (project / "train.py").write_text("\n\n" + SCRIPT)
    done = run(project)
    assert "TensorDataset" in done.stdout
    assert "no DataLoader was made at train.py:5, where" in done.stderr


def test_other_places_stay_as_they_are(tmp_path: Path) -> None:
    settings = Settings(loader="/elsewhere/train.py:5:9", log_places=("/elsewhere/a.py:1:0",))
    assert settings.seen_from(tmp_path).put_in(tmp_path) == settings

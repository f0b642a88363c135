"""Real photographs, and commands as users type them."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.cli.main import main

ROOT = Path(__file__).parents[2]
DEMO_DATA = ROOT / "demo_data"
CLASSES = ("Cantaloupe", "Conference", "Galia-Melon", "Golden-Delicious", "Granny-Smith")
NUM_PICTURES = {"train": 12, "val": 4, "test": 6}  # per class


class Stepladder:
    """Runs `stepladder` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command in its own process, on one core, and leave it running."""
        return subprocess.Popen(
            [sys.executable, "-m", "stepladder", *words],
            cwd=self.folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command in this process, check its exit code, and return its output."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            found = main(list(words))
        assert found == code, f"stepladder {' '.join(words)}\n{out.getvalue()}\n{err.getvalue()}"
        assert "Traceback" not in err.getvalue()
        return out.getvalue()


@pytest.fixture(scope="session")
def stepladder_in() -> type[Stepladder]:
    """Return a command runner for a test's own folder."""
    return Stepladder


@pytest.fixture(scope="session")
def photographs() -> Path:
    """Folder of the demo's photographs, downloaded by the demo's script if missing."""
    folder = DEMO_DATA / "groceries"
    if not folder.is_dir():  # moved into place when complete, so its presence is enough
        script = ROOT / "examples" / "demo" / "get_photos.py"
        done = subprocess.run(
            [sys.executable, str(script), str(DEMO_DATA)],
            capture_output=True,
            text=True,
            check=False,
        )
        if "cannot be downloaded" in done.stderr:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stderr
    return folder


def choose(photographs: Path, out: Path, num: dict[str, int]) -> None:
    """Copy some photographs of each class; a single split is copied without its own folder."""
    for part, count in num.items():
        for name in CLASSES:
            place = out / part / name if len(num) > 1 else out / name
            place.mkdir(parents=True)
            chosen = sorted((photographs / part / name).iterdir())[:count]
            assert len(chosen) == count
            for photo in chosen:
                (place / photo.name).write_bytes(photo.read_bytes())


@pytest.fixture(scope="session")
def stepladder_in_store(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Stepladder:
    """Return a command runner in a folder with `groceries` and a `store` made from it."""
    folder = tmp_path_factory.mktemp("story")
    choose(photographs, folder / "groceries", NUM_PICTURES)
    run = Stepladder(folder)
    out = run("prepare", "groceries", "--out", "store", "--size", "96")
    assert "5 classes; 60 train, 20 val, 30 test" in out
    return run


@pytest.fixture(scope="session")
def train_photographs(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of class folders, as most users have."""
    folder = tmp_path_factory.mktemp("photographs") / "photos"
    choose(photographs, folder, {"train": 5})
    return folder

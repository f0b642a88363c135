"""Commands as users type them, on small pictures and a small model."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from stepladder.cli.main import main

Run = Callable[..., str]
PREPARE = ("--size", "32", "--val-frac", "0.3", "--workers", "1")
TRAIN = (
    *("--model.name", "test_resnet", "--model.weights", "none", "--train", "all"),
    *("--device.threads", "1"),
)


@pytest.fixture(scope="session")
def server() -> ForkServerContext:
    """A server that starts processes instantly, with all of training and preparing imported."""
    context = get_context("forkserver")
    # the test folder is not imported; an optimizer's first step imports the second
    context.set_forkserver_preload(
        ["stepladder.training.run", "torch._dynamo", "stepladder.data.prepare.prepare"]
    )
    warm = context.Process(target=int)  # an empty line: the answer shows that the server is ready
    warm.start()
    warm.join()
    assert warm.exitcode == 0
    return context


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in the test's folder, check its exit code, and return its output."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        found = main(list(words))
        said = capsys.readouterr()
        assert found == code, said.out + said.err
        assert "Traceback" not in said.err
        return said.out + said.err

    return call


@pytest.fixture
def prepare(run: Run) -> Run:
    def call(source: str = "photos", *words: str, code: int = 0, out: str = "store") -> str:
        said = run("prepare", source, "--out", out, *PREPARE, *words, code=code)
        return said.removeprefix(f"reading {source} …\n")

    return call


@pytest.fixture
def train(run: Run) -> Run:
    def call(*words: str, code: int = 0, epochs: int = 1, into: str = "run") -> str:
        named = ("--run.dir", into, "--schedule.max-epochs", str(epochs))
        return run("train", *TRAIN, *named, *words, code=code)

    return call

"""Climb with a real script: it reads slowly, and reads the same in each epoch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from stepladder.cli.main import main
from stepladder.machine import openmp
from stepladder.records.ladder import Decision
from stepladder.records.script import ScriptFacts
from stepladder.scripts import climb
from stepladder.scripts.contract import Edit, Spot
from stepladder.scripts.options import ScriptOptions
from stepladder.scripts.rungs.examples_in_memory import ExamplesInMemory
from stepladder.scripts.seeds import Version, compare_over_seeds
from stepladder.scripts.settings import Settings
from stepladder.scripts.workplace import Workplace

SLOW = textwrap.dedent(
    """
    import argparse
    import time

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset


    class Slow(Dataset):
        def __init__(self):
            draw = torch.Generator().manual_seed(0)
            self.rows = torch.randn(16, 8, generator=draw)

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, idx):
            time.sleep(0.004)
            return self.rows[idx], int(self.rows[idx].sum() > 0)


    def train(epochs):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        loader = DataLoader(Slow(), batch_size=8, shuffle=True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(inputs), targets)
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.6f}")
        with open("weights.txt", "w") as file:
            file.write(str(net[0].weight.sum().item()))
        torch.save(net.state_dict(), "runs/weights.pt")


    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    train(parser.parse_args().epochs)
    """
).lstrip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SLOW)
    (folder / "weights.txt").write_text("mine")
    (folder / "runs").mkdir()
    (folder / "runs" / "weights.pt").write_text("mine")
    monkeypatch.chdir(folder)
    return folder


def test_a_script_waits_for_threads_as_the_user_has_set_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in openmp.WAITING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.setattr(openmp, "_chosen", [])
    assert openmp.user_environment()["GOMP_SPINCOUNT"] == "7"
    monkeypatch.setattr(openmp, "_chosen", ["7"])  # by stepladder, for its own training
    assert "GOMP_SPINCOUNT" not in openmp.user_environment()


def run(script: str, *args: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, script, *args], cwd=cwd, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.thorough
def test_a_script_that_reads_slowly_keeps_its_examples_in_memory(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    assert main(["climb", "train.py", "--only", "examples_in_memory", "--", "--epochs", "40"]) == 0
    said = capsys.readouterr().out
    folder = project / "climb-train"
    found = json.loads((folder / "script.json").read_text())
    assert "examples_in_memory" in found["kept"]
    assert found["speedup"]["low"] > 1
    assert found["patched"]["low"] > 1
    assert found["is_repeatable"]
    assert "patch -p1 < climb-train/train.patch" in said
    page = (folder / "report.html").read_text()
    assert "InMemory" in page
    assert (folder / "watch.html").is_file()
    # the script's own files are as before, and nothing of the climb is left running or lying about
    assert (project / "weights.txt").read_text() == "mine"
    assert sorted(os.listdir(project)) == ["climb-train", "runs", "train.py", "weights.txt"]  # noqa: PTH208
    assert (project / "runs" / "weights.pt").read_text() == "mine"
    assert not (folder / "work").exists()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    # the printed commands work, and what is learnt is the same
    expected = run("train.py", "--epochs", "2", cwd=project)
    outside = subprocess.run(
        [
            sys.executable,
            "-m",
            "stepladder",
            *["run", "--with", "climb", "train.py", "--", "--epochs", "2"],
        ],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    )
    assert outside.stdout == expected
    patch = (folder / "train.patch").read_text()
    subprocess.run(["patch", "-p1"], input=patch, cwd=project, text=True, check=True)
    assert "InMemory(Slow())" in (project / "train.py").read_text()
    assert run("train.py", "--epochs", "2", cwd=project) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "faster"], "is not the name of a speed-up"),
        (["--metric", "accuracy"], "0 groups"),
        (["--metric", "("], "not a regular expression"),
        (["--seeds", "1"], "3 or more"),
        (["--epochs", "2"], "--epochs"),
    ],
)
def test_a_wrong_flag_is_an_error(
    project: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["climb", "train.py", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (project / "climb-train").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('hello')\n", "takes no step of an optimizer"),
        ("input()\n" + SLOW, "reads from the terminal"),
        pytest.param("1 / 0\n" + SLOW, "ZeroDivisionError", marks=pytest.mark.thorough),
        pytest.param(SLOW, "takes 2 steps in all", marks=pytest.mark.thorough),
        pytest.param(
            SLOW.replace('"weights.txt"', '"/opt/weights.txt"'),
            "--allow-writes",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["no steps", "terminal", "crash", "few steps", "writes elsewhere"],
)
def test_a_script_that_cannot_be_climbed_is_an_error(
    project: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text(text)
    assert main(["climb", "train.py"]) == 2
    assert said in capsys.readouterr().err
    assert not (project / "climb-train" / "work").exists()
    assert (project / "weights.txt").read_text() == "mine"


TINY_BATCHES = textwrap.dedent(
    """
    import json

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(3)
    x = torch.randn(2048, 16)
    y = (x.sum(1) > 0).long()
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    loader = DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
    found = (net(x).argmax(1) == y).float().mean().item()
    with open("results.json", "w") as file:
        json.dump({"val": {"accuracy": found}}, file)
    """
).lstrip()


class WithMistake(ExamplesInMemory):
    """Its diff does not do what was tried from outside."""

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:
        place = facts.optimizers[0].place
        rate = Edit(rung=self.name, spot=Spot.SCALE, place=place, name="lr", text="2", position=1)
        edits = super().edits(facts, settings)
        assert not isinstance(edits, str)
        return (*edits, rate)


@pytest.mark.thorough
def test_a_diff_that_learns_otherwise_is_not_written(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(climb, "SCRIPT_RUNGS", (WithMistake(),))
    assert main(["climb", "train.py", "--", "--epochs", "40"]) == 0
    found = json.loads((project / "climb-train" / "script.json").read_text())
    assert found["kept"] == ["examples_in_memory"]
    assert not found["patch"]
    assert not (project / "climb-train" / "train.patch").exists()
    assert "The diff is not written, because with it the loss of step" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_larger_batch_is_judged_by_what_the_script_writes(project: Path) -> None:
    (project / "train.py").write_text(TINY_BATCHES)
    words = ["--only", "larger_batch", "--metric", "results.json:val.accuracy", "--seeds", "3"]
    assert main(["climb", "train.py", *words]) == 0
    found = json.loads((project / "climb-train" / "script.json").read_text())
    trial = json.loads((project / "climb-train" / "trials.jsonl").read_text().splitlines()[-1])
    assert found["kept"] == ["larger_batch"], trial
    assert "metric" in str(trial)
    assert "batch_size=2 * 4" in found["patch"]
    assert not (project / "results.json").exists()


@pytest.mark.thorough
def test_a_metric_that_the_script_does_not_write_is_an_error(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text(TINY_BATCHES)
    words = ["--only", "larger_batch", "--metric", "result.json:accuracy", "--seeds", "3"]
    assert main(["climb", "train.py", *words]) == 2
    assert "does not write result.json" in capsys.readouterr().err


TWICE = textwrap.dedent(
    """
    import logging
    import time

    import torch
    from torch import nn


    class Slow(logging.Handler):
        def emit(self, record):
            time.sleep(0.02)


    logger = logging.getLogger("train")
    logger.addHandler(Slow())
    logger.setLevel(logging.INFO)
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batches = [torch.randn(512, 512) for _ in range(4)]
    for step in range(600):
        inputs = batches[step % 4]
        loss = nn.functional.mse_loss(net(inputs), inputs)
        with torch.no_grad():
            error = (net(inputs) - inputs).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.info("loss %f", loss.item())
    print(error.item())
    """
).lstrip()


@pytest.mark.thorough
def test_logging_and_second_forwards_are_left_out(project: Path) -> None:
    (project / "train.py").write_text(TWICE)
    expected = run("train.py", cwd=project)
    assert main(["climb", "train.py", "--only", "sparse_logging,repeated_forwards"]) == 0
    found = json.loads((project / "climb-train" / "script.json").read_text())
    assert found["kept"] == ["sparse_logging", "repeated_forwards"]
    assert found["patched"]["low"] > 1
    subprocess.run(["patch", "-p1"], input=found["patch"], cwd=project, text=True, check=True)
    assert "OncePerInput(net)" in (project / "train.py").read_text()
    assert float(run("train.py", cwd=project)) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.thorough
def test_losses_of_a_short_script_are_compared_over_the_steps_that_it_has(project: Path) -> None:
    (project / "train.py").write_text(TINY_BATCHES.replace("batch_size=2", "batch_size=64"))
    work = Workplace(
        script="train.py",
        args=(),
        is_module=False,
        folder=(project / "climb-train").resolve(),
        allows_writes=False,
    )
    before, after = Version(settings=Settings()), Version(settings=Settings())
    said: list[str] = []
    options = ScriptOptions(num_seeds=3)
    found = compare_over_seeds(work, before, after, options=options, steps=200, say=said.append)
    assert found.decision is Decision.KEPT
    assert len(said) > options.num_seeds  # it has 64 steps, so that 200 were too many

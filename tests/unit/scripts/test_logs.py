"""Lines that log in each step: they are found, and some of them are left out."""

from __future__ import annotations

import builtins
import importlib
import logging
from pathlib import Path

import pytest
import torch

from stepladder.scripts.inside.logs import Logs
from stepladder.watching.script.own_code import OwnCode

OWN = OwnCode(Path(__file__).parent, __file__)


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test replaces is put back after it."""
    optimizer = importlib.import_module("torch.optim.optimizer")
    hooks = optimizer._global_optimizer_post_hooks.copy()
    monkeypatch.setattr(optimizer, "_global_optimizer_post_hooks", hooks)
    monkeypatch.setattr(builtins, "print", print)
    for name in ("debug", "info"):
        monkeypatch.setattr(logging.Logger, name, getattr(logging.Logger, name))


def train(steps: int) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    logger = logging.getLogger("train")
    for step in range(steps):
        weight.sum().backward()
        optimizer.step()
        print("step", step)
        logger.info("step %d", step)
        for part in range(2):
            print("part", part)
        if step % 10 == 0:
            print("ten", step)
    print("end")


def test_lines_of_each_step_are_found() -> None:
    logs = Logs(OWN)
    logs.install()
    train(40)
    found = {(one.function, one.num_per_step) for one in logs.in_each_step(1.0)}
    assert found == {("print", 1.0), ("Logger.info", 1.0), ("print", 2.0)}
    assert all(one.place.is_direct for one in logs.in_each_step(1.0))
    assert all(0 < one.share < 1 for one in logs.in_each_step(1.0))


def test_only_some_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    logs = Logs(OWN)
    logs.install()
    train(10)
    places = tuple(one.place.key for one in logs.in_each_step(1.0) if one.function == "print")
    capsys.readouterr()
    Logs(OWN, every=5, places=places).install()
    train(12)
    lines = capsys.readouterr().out.splitlines()
    steps = [line for line in lines if line.startswith("step")]
    assert steps == ["step 4", "step 9"]
    assert lines.count("part 0") == lines.count("part 1") == 2
    assert lines[-1] == "end"
    assert "ten 10" in lines

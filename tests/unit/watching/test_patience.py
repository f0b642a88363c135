"""Early stopping whose counter is never reset, and what resembles that."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport
from stepladder.watching.script.patience import counters

Watched = Callable[..., WatchReport]
NAME = "stopping_on_noise"

HEAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
sgd = torch.optim.SGD(model.parameters(), 0.05)
VALUES = [1.0, 0.8, 0.9, 0.7, 0.75, 0.6, 0.65, 0.5, 0.4, 0.45]
def train():
    for rows in torch.randperm(64).split(16):
        sgd.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        sgd.step()
def validate(epoch):
    model.eval()
    with torch.no_grad():
        model(x)
    model.train()
    return VALUES[epoch]
"""
LOOP = """
def fit(patience=20):
    best, wait = float("inf"), 0
    for epoch in range(10):
        train()
        value = validate(epoch)
        if value < best:
            best = value
            RESET
        else:
            wait += 1  # counts
        if wait >= patience:
            break
fit()
"""
CLASS = """
class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.counter, self.best, self.early_stop = patience, 0, None, False
    def __call__(self, value):
        if self.best is None:
            self.best = value
        elif value > self.best - 1e-4:
            self.counter += 1  # counts
            if self.counter >= self.patience:
                self.early_stop = True
        else:
            self.best = value
            RESET
def main():
    stopper = EarlyStopping(20)
    for epoch in range(10):
        train()
        stopper(validate(epoch))
        if stopper.early_stop:
            break
main()
"""
MODULE = """
best, wait, patience = torch.tensor(9.0), 0, 20
for epoch in range(10):
    train()
    value = torch.tensor(validate(epoch))
    if value >= best:
        wait = wait + 1  # counts
        if wait == patience:
            break
    else:
        best = value
        RESET
"""
OFTEN = {"a_loop": (LOOP, "wait"), "a_class": (CLASS, "self.counter"), "a_script": (MODULE, "wait")}
TOTAL = LOOP.replace("patience", "most")  # a budget, by its name


@pytest.mark.parametrize("name", OFTEN)
def test_a_counter_that_is_never_reset_is_found(name: str, watched: Watched) -> None:
    code, counter = OFTEN[name]
    program = HEAD + code.replace("RESET", "pass")
    report = watched(program)
    assert report.watcher_error is None
    assert report.exit_code == 0
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault == NAME, found.evidence
    assert f"{counter} is never reset: it was 1 after" in found.evidence
    line = next(i for i, text in enumerate(program.splitlines(), 1) if "# counts" in text)
    assert found.where == f"snippet.py:{line}"


@pytest.mark.parametrize("name", OFTEN)
def test_a_counter_that_is_reset_is_sound(name: str, watched: Watched) -> None:
    code, counter = OFTEN[name]
    report = watched(HEAD + code.replace("RESET", f"{counter} = 0"))
    assert report.watcher_error is None
    assert report.exit_code == 0
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault is None, found.evidence
    assert "are reset" in found.evidence


def test_values_that_only_become_worse_prove_nothing(watched: Watched) -> None:
    values = HEAD.replace("[1.0, 0.8, 0.9, 0.7", "[0.1, 0.8, 0.9, 0.7")
    report = watched(values + LOOP.replace("RESET", "pass"))
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault is None, found.evidence


SOURCES = {
    "never": (LOOP.replace("RESET", "pass"), [False]),
    "reset": (LOOP.replace("RESET", "wait = 0"), [True]),
    "reset_with_the_best": (LOOP.replace("best = value\n", "best, wait = value, 0\n"), [True]),
    "counted_down": (LOOP.replace("RESET", "wait -= 1"), [True]),
    "in_a_class": (CLASS.replace("RESET", "pass"), [False]),
    "reset_from_outside": (CLASS.replace("RESET", "pass") + "stopper.counter = 0\n", [True]),
    "a_budget": (TOTAL.replace("RESET", "pass"), []),
    "of_each_fold": (
        LOOP.replace("    best, wait", "    for fold in range(3):\n     best, wait")
        .replace("    for epoch", "     for epoch")
        .replace("RESET", "pass"),
        [True],
    ),
    "global": (
        LOOP.replace("    best, wait", "    global wait\n    best, wait").replace("RESET", "pass"),
        [True],
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_counters_are_read(name: str) -> None:
    text, answer = SOURCES[name]
    assert [one.is_reset for one in counters(ast.parse(text))] == answer

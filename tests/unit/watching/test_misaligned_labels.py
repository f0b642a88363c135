"""Labels that do not belong to their inputs, and what only looks like that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport
from stepladder.watching.hooks import patches
from stepladder.watching.hooks.inputs.said import guess_level, is_flat, said_by

Watched = Callable[..., WatchReport]
NAME = "labels_misaligned"


@pytest.fixture(autouse=True)
def _time_for_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watcher sample whenever it wants, so that its coverage is the same on any machine."""
    monkeypatch.setattr(patches, "_FIRST_S", 60.0)


START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
centres = 2 * torch.randn(4, 10)
y = torch.randint(4, (800,))
x = centres[y] + torch.randn(800, 10)
net = nn.Sequential(nn.Flatten(), nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
def learn(a, b):
    sgd.zero_grad()
    F.cross_entropy(net(a), b).backward()
    sgd.step()
def train(x, y, epochs=6):
    loader = DataLoader(TensorDataset(x, y), 32, shuffle=True)
    for epoch in range(epochs):
        for a, b in loader:
            learn(a, b)
"""

MISALIGNED = {
    "shuffled_once": ("train(x, y[torch.randperm(800)])", "better than permuted labels"),
    "off_by_one": (
        "train(x[1:], y[:-1])",
        "better than permuted labels",
    ),
    "shuffled_once_and_remembered": (
        "net[1], net[3] = nn.Linear(10, 512), nn.Linear(512, 4)\n"
        "sgd = torch.optim.Adam(net.parameters(), 3e-3)\ntrain(x, y[torch.randperm(800)], 24)",
        "of the first epoch",
    ),
    "images": ("train(x.reshape(-1, 1, 5, 2), y.flip(0))", "better than permuted labels"),
    "shuffled_in_each_epoch": (
        "for epoch in range(8):\n    x, y = x[torch.randperm(800)], y[torch.randperm(800)]\n"
        "    train(x, y, 1)",
        "examples that were seen again had another label, about as many as by chance",
    ),
    "two_loaders": (
        "inputs, labels = DataLoader(x, 32, shuffle=True), DataLoader(y, 32, shuffle=True)\n"
        "for epoch in range(8):\n    for a, b in zip(inputs, labels):\n        learn(a, b)",
        "examples that were seen again had another label, about as many as by chance",
    ),
}
SOUND = {
    "labels_of_their_inputs": "train(x, y)",
    "nothing_is_learned": "sgd.param_groups[0]['lr'] = 0.0\ntrain(x, y)",
    "random_labels_that_are_remembered": "net[1] = nn.Linear(10, 512); net[3] = nn.Linear(512, 4)\n"
    "sgd = torch.optim.Adam(net.parameters(), 1e-2)\n"
    "train(x[:128], y[:128][torch.randperm(128)], 40)",
    "random_numbers_to_try_a_script": "train(torch.randn(800, 10), torch.randint(4, (800,)))",
    "random_batches_to_try_a_script": "for step in range(100):\n"
    "    learn(torch.rand(32, 10), torch.randint(4, (32,)))",
    "labels_with_errors": "wrong = torch.rand(800) < 0.4\n"
    "train(x, torch.where(wrong, torch.randint(4, (800,)), y))",
    "classes_numbered_in_each_episode": """
sgd = torch.optim.SGD(net.parameters(), 0.1)
for episode in range(60):
    rows, names = torch.randint(800, (32,)), torch.randperm(4)
    for step in range(4):
        learn(x[rows], names[y[rows]])
""",
}


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == NAME]
    return one


@pytest.mark.parametrize("name", MISALIGNED)
def test_labels_of_other_inputs_are_found(name: str, watched: Watched) -> None:
    code, words = MISALIGNED[name]
    one = found(watched(START + code))
    assert one.outcome is Outcome.WARNED, one.evidence
    assert words in one.evidence
    assert "the loss was that of a constant guess" in one.evidence
    assert one.where is not None


@pytest.mark.parametrize("name", SOUND)
def test_labels_that_are_learned_or_meant_so_are_not(name: str, watched: Watched) -> None:
    one = found(watched(START + SOUND[name]))
    assert not one.is_alarm, one.evidence


def test_a_loss_is_flat_only_if_it_never_was_below_a_guess() -> None:
    guess = guess_level(torch.tensor([0, 1]).repeat(50))
    assert guess == pytest.approx(0.6931, abs=1e-4)
    assert is_flat([0.70] * 80, guess)
    assert not is_flat([0.70] * 40 + [0.60] * 40 + [0.70] * 40, guess)
    assert not is_flat([0.70] * 40 + [1.50] * 40, guess)
    assert not is_flat([0.70] * 50, guess)


def test_probes_see_labels_and_leave_the_random_state() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 6, generator=draw)
    state = torch.get_rng_state()
    told = said_by(rows, (rows[:, 0] > 0).long())
    other = said_by(rows, (rows[:, 0].roll(1) > 0).long())
    assert torch.equal(torch.get_rng_state(), state)
    assert told is not None
    assert other is not None
    assert told.linear is not None
    assert other.linear is not None
    assert told.linear > 8
    assert abs(other.linear) < 3
    assert told.is_noise
    assert said_by(rows[:50], torch.arange(50) % 2) is None

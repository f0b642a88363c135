"""Inputs that are preprocessed differently in evaluation, and what only looks like that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
raw = torch.randint(0, 256, (160, 3, 8, 8)).float()
images = (raw / 255 - 0.5) / 0.25
y = (raw[:, 0].mean((1, 2)) > 127).long()
train = DataLoader(TensorDataset(images[:96], y[:96]), 16, shuffle=True)
net = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 2))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
def learn(loader=train, change=lambda a: a):
    net.train()
    for a, b in loader:
        sgd.zero_grad()
        F.cross_entropy(net(change(a)), b).backward()
        sgd.step()
@torch.no_grad()
def score(loader):
    net.eval()
    return sum((net(a).argmax(1) == b).sum().item() for a, b in loader)
def held_out(a):
    return DataLoader(TensorDataset(a[96:], y[96:]), 32)
"""

SHIFTED = {
    "bytes": "val = held_out(raw)\nfor _ in range(2):\n    learn()\n    score(val)",
    "only_divided_by_255": "val = held_out(raw / 255)\nfor _ in range(2):\n    learn()\n"
    "    score(val)",
    "a_table_that_is_not_scaled": """
learn()
x_test = raw[96:]
net.eval()
with torch.no_grad():
    print(net(x_test).argmax(1))
""",
}

SHIFTED["bytes_in_a_function_that_is_called_with_the_training_set"] = """
@torch.no_grad()
def accuracy(a, labels):
    net.eval()
    return (net(a).argmax(1) == labels).float().mean()
def fit(images, labels):
    for epoch in range(2):
        learn()
        print(f"epoch {epoch}: accuracy {accuracy(x_val, y_val):.3f}")
x_train, x_val, y_train, y_val = images[:96], raw[96:], y[:96], y[96:]
fit(x_train, y_train)
"""
SOUND = {
    "an_evaluation_of_other_training_data": """
@torch.no_grad()
def accuracy(x_test, labels):
    net.eval()
    return (net(x_test).argmax(1) == labels).float().mean()
def fit(x_train, y_train):
    learn()
    print(f"accuracy on bytes {accuracy(x_train, y_train):.3f}")
fit(raw[:96], y[:96])
""",
    "the_same": "val = held_out(images)\nlearn()\nscore(val)",
    "noise_that_is_removed": """
learn(DataLoader(TensorDataset(raw / 255, y), 16), lambda a: a + 0.3 * torch.randn_like(a))
score(held_out(raw / 255))
""",
    "another_domain_beside_its_own": """
learn()
score(held_out(images))
score(held_out(6 * torch.randn(160, 3, 8, 8)))
""",
    "noise_of_every_size": """
learn(change=lambda a: a * torch.rand(len(a), 1, 1, 1) ** 4)
score(held_out(images))
""",
    "samples_of_a_policy": """
learn()
net.eval()
for _ in range(8):
    with torch.no_grad():
        state = 30 * torch.randn(8, 3, 8, 8)
        net(state)
""",
}


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == "distribution_shift"]
    return one


@pytest.mark.parametrize("name", SHIFTED)
def test_held_out_examples_of_another_scale_are_reported(name: str, watched: Watched) -> None:
    one = found(watched(START + SHIFTED[name]))
    assert one.outcome is Outcome.WARNED, one.evidence
    assert "Sequential was trained with inputs from -2 to 2" in one.evidence
    assert one.where is not None


@pytest.mark.parametrize("name", SOUND)
def test_inputs_that_differ_on_purpose_are_not_reported(name: str, watched: Watched) -> None:
    one = found(watched(START + SOUND[name]))
    assert one.fault is None, one.evidence

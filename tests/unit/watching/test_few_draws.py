"""Samplers and datasets that return only a few examples, and what only looks like that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport
from stepladder.watching.hooks import patches
from stepladder.watching.hooks.inputs import examples

Watched = Callable[..., WatchReport]


@pytest.fixture(autouse=True)
def _time_for_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watcher sample whenever it wants, so that its coverage is the same on any machine."""
    monkeypatch.setattr(patches, "_FIRST_S", 60.0)
    monkeypatch.setattr(examples, "_FIRST_S", 60.0)


START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import *

torch.manual_seed(0)
x = torch.randn(640, 8)
y = x[:, :3].argmax(1)
data = TensorDataset(x, y)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
def train(loader, epochs=5):
    for epoch in range(epochs):
        for a, b in loader:
            sgd.zero_grad()
            F.cross_entropy(net(a), b).backward()
            sgd.step()
class Table(Dataset):
    def __init__(self):
        self.x, self.y = x, y
    def __len__(self):
        return len(self.x)
"""

# each: the program, its line, what is said, and whether that is certain
FEW = {
    "weights_of_classes": (
        "train(DataLoader(data, 32, sampler=WeightedRandomSampler(1 / y.bincount(), 640)))",
        "WeightedRandomSampler has 3 weights for 640 examples, so it returns only indices below 3: "
        "3 different examples in 3,200 draws",
        Outcome.FAILED,
    ),
    "weights_of_the_first_examples": (
        "train(DataLoader(data, 32, sampler=WeightedRandomSampler(torch.rand(300) + 1, 640)))",
        "WeightedRandomSampler has 300 weights for 640 examples",
        Outcome.WARNED,
    ),
    "weights_that_are_zero": (
        "weights = 1 // y.bincount()\nweights[0] = 1\n"
        "train(DataLoader(data, 32, sampler=WeightedRandomSampler((x[:, 0] > 1.5) * 1.0, 640)))",
        "640 weights of WeightedRandomSampler are 0",
        Outcome.WARNED,
    ),
    "a_short_list": (
        "train(DataLoader(data, 16, sampler=SubsetRandomSampler(range(3, 35))), 10)",
        "SubsetRandomSampler returned only 32 different indices for 640 examples, in 320 draws",
        Outcome.WARNED,
    ),
    "a_batch_instead_of_an_epoch": (
        "train(DataLoader(data, 16, sampler=RandomSampler(data, num_samples=32)), 4)",
        "RandomSampler ends each epoch after 32 of 640 examples",
        Outcome.WARNED,
    ),
}
SAME = {
    "an_index_that_is_ignored": "return self.x[0], self.y[0]",
    "an_index_that_is_cut_off": "return self.x[idx % 24], self.y[idx % 24]",
}
SOUND = {
    "all_in_random_order": "train(DataLoader(data, 32, shuffle=True))",
    "weights_of_examples": "train(DataLoader(data, 32, sampler="
    "WeightedRandomSampler((1 / y.bincount())[y], 640)))",
    "two_parts_of_one_dataset": """
train(DataLoader(data, 16, sampler=SubsetRandomSampler(range(32))), 10)
with torch.no_grad():
    for a, b in DataLoader(data, 64, sampler=SubsetRandomSampler(range(32, 640))):
        net(a)
""",
    "a_part_of_each_example": "y = (x[:, 0] > 0).long()\n"
    "x[:, :2] = (x[:, :2] > 0).float()\ndata = TensorDataset(x, y)\n"
    "net = nn.Sequential(nn.Flatten(), nn.Linear(2, 3))\n"
    "sgd = torch.optim.SGD(net.parameters(), 1e-2)\n"
    "for a, b in DataLoader(data, 32, shuffle=True):\n"
    "    sgd.zero_grad()\n    F.cross_entropy(net(a[:, :2]), b).backward()\n    sgd.step()\n",
    "short_epochs_of_all": "train(DataLoader(data, 16, sampler="
    "RandomSampler(data, num_samples=32)), 40)",
    "a_small_part_on_purpose": "train(DataLoader(Subset(data, range(32)), 16, shuffle=True), 10)",
    "epochs_of_a_repeated_dataset": """
class Repeated(Table):
    def __init__(self):
        self.x, self.y = x[:64], y[:64]
    def __len__(self):
        return 10 * len(self.x)
    def __getitem__(self, idx):
        return self.x[idx % 64], self.y[idx % 64]
train(DataLoader(Repeated(), 32, shuffle=True))
""",
    "joined_copies": "train(DataLoader(ConcatDataset([Subset(data, range(64))] * 10), 32, "
    "shuffle=True))",
}


def found(report: WatchReport, name: str) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == name]
    return one


@pytest.mark.parametrize("name", FEW)
def test_indices_that_are_drawn_are_counted(name: str, watched: Watched) -> None:
    code, words, outcome = FEW[name]
    one = found(watched(START + code), "few_examples_drawn")
    assert one.outcome is outcome, one.evidence
    assert words in one.evidence
    assert one.where is not None


@pytest.mark.parametrize("name", SAME)
def test_examples_of_different_indices_are_compared(name: str, watched: Watched) -> None:
    code = f"    def __getitem__(self, idx):\n        {SAME[name]}\n"
    report = watched(START + code + "train(DataLoader(Table(), 32, shuffle=True))")
    one = found(report, "duplicated_inputs")
    assert one.outcome is Outcome.WARNED, one.evidence
    assert "Table" in one.evidence or "duplicate" in one.evidence


@pytest.mark.parametrize("name", SOUND)
def test_a_dataset_that_is_drawn_differently_is_not_reported(name: str, watched: Watched) -> None:
    report = watched(START + SOUND[name])
    for fault in ("few_examples_drawn", "duplicated_inputs"):
        one = found(report, fault)
        assert one.fault is None, one.evidence


def test_keys_that_are_no_positions_are_left_alone(watched: Watched) -> None:
    code = """
class Named(Table):
    def __getitem__(self, key):
        return self.x[int(key[1:])], self.y[int(key[1:])]
train(DataLoader(Named(), 32, sampler=[f"r{i % 40}" for i in range(640)]))
"""
    one = found(watched(START + code), "few_examples_drawn")
    assert one.outcome is Outcome.NOT_APPLICABLE, one.evidence

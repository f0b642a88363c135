"""Loaders whose indices share examples with those of training, and what only resembles that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport
from stepladder.watching.hooks.inputs import examples

Watched = Callable[..., WatchReport]
NAME = "split_leakage"


@pytest.fixture(autouse=True)
def _by_indices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watcher hash no example."""
    monkeypatch.setattr(examples, "_FIRST_S", -1.0)
    monkeypatch.setattr(examples, "_PER_STEP_S", 0.0)


START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    ConcatDataset, DataLoader, Subset, SubsetRandomSampler, TensorDataset, random_split
)

torch.manual_seed(0)
def rows(num):
    x = torch.randn(num, 8)
    return TensorDataset(x, (x[:, 0] > 0).long())
def new():
    global net, sgd
    net = nn.Linear(8, 2)
    sgd = torch.optim.SGD(net.parameters(), 1e-2)
def learn(loader):
    net.train()
    for x, y in loader:
        sgd.zero_grad()
        F.cross_entropy(net(x), y).backward()
        sgd.step()
@torch.no_grad()
def score(loader):
    net.eval()
    return sum((net(x).argmax(1) == y).sum().item() for x, y in loader)
data, other = rows(300), rows(100)
train_part, val_part = random_split(data, [200, 100])
new()
"""

# each: the program, and what is said of it
LEAKED = {
    "the_whole_set_instead_of_its_part": (
        """
class Module:
    def train_batches(self):
        return DataLoader(data, 50, shuffle=True)
    def val_batches(self):
        return DataLoader(val_part, 50)
m = Module()
for epoch in range(3):
    learn(m.train_batches())
    score(m.val_batches())
score(DataLoader(other, 50))
""",
        "300 examples, and by their indices in TensorDataset, 100 of the 100 ",
    ),
    "the_whole_set_beside_a_named_part": (
        """
train_loader = DataLoader(data, 50, shuffle=True)
val_loader = DataLoader(Subset(data, list(range(200, 300))), 50)
test_loader = DataLoader(other, 50)
for epoch in range(3):
    learn(train_loader)
    score(val_loader)
score(test_loader)
""",
        "100 of the 100 that",
    ),
    "a_half_that_no_loader_reads": (
        """
order = torch.randperm(300).tolist()
halves = Subset(data, order[:200]), Subset(data, order[200:])
def batches(is_training):
    return DataLoader(data if is_training else halves[1], 50, shuffle=is_training)
for epoch in range(3):
    learn(batches(True))
    score(batches(False))
score(DataLoader(other, 50))
""",
        "no loader reads the largest part of the split that they are from",
    ),
    "a_sampler_that_was_forgotten": (
        """
train_loader = DataLoader(data, 50, shuffle=True)
val_loader = DataLoader(data, 50, sampler=SubsetRandomSampler(range(200, 300)))
for epoch in range(3):
    learn(train_loader)
    score(val_loader)
""",
        "100 of the 100 that",
    ),
    "two_draws_of_indices": (
        """
one = DataLoader(Subset(data, torch.randperm(300)[:200]), 50, shuffle=True)
two = DataLoader(Subset(data, torch.randperm(300)[:100]), 50)
for epoch in range(3):
    learn(one)
    score(two)
""",
        "of the 100 that",
    ),
    "parts_of_parts_in_a_concatenation": (
        """
both = ConcatDataset([other, data])
one = DataLoader(Subset(Subset(both, range(50, 400)), range(250)), 50, shuffle=True)
two = DataLoader(Subset(data, range(150, 300)), 50)
for epoch in range(3):
    learn(one)
    score(two)
""",
        "250 examples, and by their indices in TensorDataset, 50 of the 150 ",
    ),
}

SOUND = {
    "a_split": """
for epoch in range(3):
    learn(DataLoader(train_part, 50, shuffle=True))
    score(DataLoader(val_part, 50))
""",
    "folds": """
order = torch.randperm(300)
for fold in range(3):
    new()
    is_held = torch.arange(300) // 100 == fold
    train_loader = DataLoader(Subset(data, order[~is_held]), 50, shuffle=True)
    val_loader = DataLoader(Subset(data, order[is_held]), 50)
    for epoch in range(2):
        learn(train_loader)
        score(val_loader)
""",
    "folds_with_weights_that_are_reset": """
for fold in range(3):
    net.reset_parameters()
    held = list(range(100 * fold, 100 * fold + 100))
    kept = [i for i in range(300) if i not in held]
    train_loader = DataLoader(Subset(data, kept), 50, shuffle=True)
    val_loader = DataLoader(Subset(data, held), 50)
    for epoch in range(2):
        learn(train_loader)
        score(val_loader)
""",
    "accuracy_of_training_examples": """
probe = DataLoader(Subset(data, range(100)), 50)
held = DataLoader(other, 50)
for epoch in range(3):
    learn(DataLoader(data, 50, shuffle=True))
    print(score(probe), score(held))
""",
    "accuracy_of_some_that_were_split_off": """
rest, train_probe = random_split(data, [220, 80])
held = DataLoader(other, 50)
for epoch in range(3):
    learn(DataLoader(data, 50, shuffle=True))
    print(score(DataLoader(train_probe, 50)))
    print(score(held))
""",
    "accuracy_of_both": """
train_loader = DataLoader(train_part, 50, shuffle=True)
for epoch in range(3):
    learn(train_loader)
    print(score(DataLoader(train_part, 100)), score(DataLoader(val_part, 50)))
""",
    "all_examples_at_the_end": """
val_loader = DataLoader(val_part, 50)
for epoch in range(2):
    learn(DataLoader(train_part, 50, shuffle=True))
    score(val_loader)
for epoch in range(2):
    learn(DataLoader(data, 50, shuffle=True))
    score(val_loader)
""",
    "a_few_examples_to_overfit": """
few = Subset(data, range(20))
for epoch in range(6):
    learn(DataLoader(few, 10, shuffle=True))
    score(DataLoader(few, 20))
""",
    "a_sampler_that_leaves_examples_out": """
weights = torch.cat([torch.ones(200), torch.zeros(100)])
sampler = torch.utils.data.WeightedRandomSampler(weights, 200)
train_loader = DataLoader(data, 50, sampler=sampler)
val_loader = DataLoader(Subset(data, range(200, 300)), 50)
for epoch in range(3):
    learn(train_loader)
    score(val_loader)
""",
    "examples_that_a_switch_exchanges": """
class Both(torch.utils.data.Dataset):
    def __init__(self):
        self.now = data
    def __len__(self):
        return len(self.now)
    def __getitem__(self, i):
        return self.now[i]
both = Both()
for epoch in range(3):
    both.now = data
    learn(DataLoader(both, 50, shuffle=True))
    both.now = other
    score(DataLoader(both, 50))
""",
}


@pytest.mark.parametrize("name", LEAKED)
def test_common_indices_are_found(name: str, watched: Watched) -> None:
    program, words = LEAKED[name]
    report = watched(START + program)
    assert report.watcher_error is None
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault == NAME, found.evidence
    assert words in found.evidence
    assert found.where is not None


@pytest.mark.parametrize("name", SOUND)
def test_sound_uses_of_indices_are_not_reported(name: str, watched: Watched) -> None:
    report = watched(START + SOUND[name])
    assert report.watcher_error is None
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault is None, found.evidence

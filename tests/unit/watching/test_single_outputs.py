"""Models with one output: classes that are chosen from it, and targets that became 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

SPAM = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 8)
y = (x[:, 0] > 0).float()
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, WIDTH))
adam = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(3):
    for rows in torch.randperm(320).split(64):
        adam.zero_grad()
        LOSS(net(x[rows])[:, 0], y[rows]).backward()
        adam.step()
    net.eval()
    with torch.no_grad():
        out = net(x)
        pred = PRED
    net.train()
"""
BINARY, SQUARED = "F.binary_cross_entropy_with_logits", "F.mse_loss"

CONSTANT = {
    "argmax": ("out.argmax(dim=1)", BINARY),
    "of_torch": ("torch.argmax(out, -1)", SQUARED),
    "max": ("torch.max(out, 1)[1]", BINARY),
    "after_sigmoid": ("out.sigmoid().max(dim=1).indices", BINARY),
}
CHOSEN = {
    "threshold": ("(out.squeeze(1) > 0).long()", BINARY, 1),
    "two_outputs": ("out.argmax(1)", BINARY, 2),
    "the_best_example": ("out.argmax(0)", BINARY, 1),
    "of_all": ("out.argmax()", SQUARED, 1),
    "its_value": ("out.max(dim=1).values", SQUARED, 1),
    "of_something_else": ("torch.randn(320, 1, 1).argmax(1)", BINARY, 1),
}


def found(report: WatchReport, name: str) -> Finding:
    assert report.watcher_error is None
    return next(one for one in report.findings if one.check == name)


def spam(pred: str, loss: str, width: int = 1) -> str:
    return SPAM.replace("PRED", pred).replace("LOSS", loss).replace("WIDTH", str(width))


@pytest.mark.parametrize("name", CONSTANT)
def test_a_class_chosen_from_one_output(watched: Watched, name: str) -> None:
    finding = found(watched(spam(*CONSTANT[name])), "metric_wrong")

    assert finding.outcome is Outcome.WARNED, finding
    assert "960 examples of 3 calls" in finding.evidence


@pytest.mark.parametrize("name", CHOSEN)
def test_a_choice_that_is_one(watched: Watched, name: str) -> None:
    finding = found(watched(spam(*CHOSEN[name])), "metric_wrong")

    assert finding.outcome is Outcome.PASSED, finding


RATES = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(640, 8)
rate = torch.sigmoid(x[:, 0]) * 0.9
count = (torch.rand(640) > 0.97).long()
class Rates(torch.utils.data.Dataset):
    def __len__(self):
        return 640
    def __getitem__(self, i):
        return x[i], TARGET
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
adam = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(2):
    for given, target in DataLoader(Rates(), batch_size=64, shuffle=True):
        adam.zero_grad()
        F.mse_loss(net(given).squeeze(1), USED).backward()
        adam.step()
"""
TRUNCATED = ("torch.tensor(rate[i].item(), dtype=torch.long)", "int(rate[i])", "rate[i].int()")
WHOLE = {
    "rates": ("rate[i]", "target"),
    "counts_that_are_mostly_0": ("count[i]", "target.float()"),
    "zeros_as_targets": ("rate[i]", "torch.zeros(64)"),
    "numbers_of_the_examples": ("i", "torch.zeros(64)"),
}


@pytest.mark.parametrize("target", TRUNCATED)
def test_rates_that_the_dataset_truncates(watched: Watched, target: str) -> None:
    code = RATES.replace("TARGET", target).replace("USED", "target.float()")

    finding = found(watched(code), "loss_kind_mismatch")

    assert finding.outcome is Outcome.WARNED, finding
    assert "the loader returned as integers" in finding.evidence


@pytest.mark.parametrize("name", WHOLE)
def test_targets_that_are_what_they_are_meant_to_be(watched: Watched, name: str) -> None:
    target, used = WHOLE[name]
    code = RATES.replace("TARGET", target).replace("USED", used)

    finding = found(watched(code), "loss_kind_mismatch")

    assert finding.outcome is Outcome.PASSED, finding

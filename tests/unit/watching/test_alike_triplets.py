"""Triplets whose negatives are of the anchor's own class."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(8, 12)
def draw(labels):
    return centres[labels] + 0.7 * torch.randn(len(labels), 12)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
    def forward(self, x):
        return F.normalize(self.net(x), dim=1)
net = Net()
adam = torch.optim.Adam(net.parameters(), lr=RATE)
for step in range(210):
    labels = torch.randint(0, 8, (128,))
    others = OTHERS
    anchor, positive, negative = net(draw(labels)), net(draw(labels)), net(draw(others))
    adam.zero_grad()
    LOSS.backward()
    adam.step()
"""
OTHER = "(labels + torch.randint(1, 8, (128,))) % 8"
LOSS = "F.triplet_margin_loss(anchor, positive, negative, margin=0.4)"
DISTANCES = "nn.TripletMarginWithDistanceLoss(margin=0.4)(anchor, positive, negative)"

ALIKE = {
    "the_same_class": ("labels", LOSS),
    "any_class_for_both": ("labels[torch.randperm(128)] * 0 + labels", DISTANCES),
}
APART = {
    "another_class": (OTHER, LOSS, "1e-3"),
    "that_hardly_learns": (OTHER, LOSS, "1e-6"),
    "some_of_the_same": ("torch.randint(0, 8, (128,))", DISTANCES, "1e-3"),
}


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    return next(one for one in report.findings if one.check == "contrastive_loss_misused")


def script(others: str, loss: str, rate: str = "1e-4") -> str:
    return SCRIPT.replace("OTHERS", others).replace("LOSS", loss).replace("RATE", rate)


@pytest.mark.parametrize("name", ALIKE)
def test_negatives_of_the_anchors_own_class(watched: Watched, name: str) -> None:
    finding = found(watched(script(*ALIKE[name])))

    assert finding.outcome is Outcome.WARNED, finding
    assert "at a margin of 0.4" in finding.evidence


@pytest.mark.parametrize("name", APART)
def test_negatives_of_other_classes(watched: Watched, name: str) -> None:
    assert found(watched(script(*APART[name]))).outcome is Outcome.PASSED

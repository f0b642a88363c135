"""Sums over a batch beside means over it, and what only resembles that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]
NAME = "loss_reduction_mismatch"

PROGRAM = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 10)
labels = (x[:, 0] > 0).long()
class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
        self.mean, self.log_var = nn.Linear(32, 4), nn.Linear(32, 4)
        self.outer, self.head = nn.Linear(4, 10), nn.Linear(4, 2)
        self.places = nn.Parameter(torch.randn(32, 4))
    def forward(self, x):
        h = self.inner(x)
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.outer(z), mean, log_var, self.head(z)
net = Coder()
adam = torch.optim.Adam(net.parameters(), 1e-3)
for epoch in range(2):
    for rows in torch.randperm(256).split(32):
        a, y = x[rows], labels[rows]
        out, mean, log_var, scores = net(a)
        each = (out - a).pow(2).sum(1)
        kl = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp())
        loss = LOSS
        adam.zero_grad()
        loss.backward()
        adam.step()
"""

MIXED = {
    "a_divergence_added_to_each_example": "(5 * each + kl.sum()).mean()",
    "weighted_examples": "((5 * each + kl.sum()) * torch.rand(32)).mean()",
    "a_divergence_beside_a_loss_of_torch": "F.cross_entropy(scores, y) + kl.sum()",
    "a_divergence_of_torch": (
        "F.cross_entropy(scores, y) + torch.distributions.kl_divergence("
        "torch.distributions.Normal(mean, (0.5 * log_var).exp()), "
        "torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))).sum()"
    ),
    "a_square_that_was_meant_as_a_penalty": "F.cross_entropy(scores, y) + mean.pow(2).sum()",
    "reductions_of_torch": ("F.mse_loss(out, a, reduction='sum') + F.cross_entropy(scores, y)"),
}

SOUND = {
    "sums_of_each_example": "(5 * each + kl.sum(1)).mean()",
    "only_sums_divided_by_the_batch": "(each.sum() + kl.sum()) / len(a)",
    "a_mean_and_a_divided_sum": "F.mse_loss(out, a) + kl.sum() / a.numel()",
    "a_small_factor": "F.mse_loss(out, a) + 1e-3 * kl.sum()",
    "a_penalty_of_weights": (
        "F.cross_entropy(scores, y) + sum(p.pow(2).sum() for p in net.inner.parameters())"
    ),
    "weights_of_the_size_of_a_batch": "F.cross_entropy(scores, y) + net.places.abs().sum()",
    "means_of_as_many_columns": "F.mse_loss(out, a) + net.inner(a).mean(0).pow(2).sum()",
    "a_mask": "F.mse_loss(out, a) + (mean.pow(2) * (torch.rand(32, 1) < 0.1)).sum()",
    "a_balanced_mean": "1000 * F.mse_loss(out, a) + kl.sum()",
    "advantages": (
        "F.mse_loss(out, a) - (scores.log_softmax(1)[torch.arange(32), y] * a[:, 0]).sum()"
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_a_sum_over_the_batch_beside_a_mean_is_found(name: str, watched: Watched) -> None:
    report = watched(PROGRAM.replace("LOSS", MIXED[name]))
    assert report.watcher_error is None
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault == NAME, found.evidence
    assert "sum over all 32 examples" in found.evidence
    assert found.numbers["num_examples"] == 32


@pytest.mark.parametrize("name", SOUND)
def test_sound_sums_are_not_reported(name: str, watched: Watched) -> None:
    report = watched(PROGRAM.replace("LOSS", SOUND[name]))
    assert report.watcher_error is None
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault is None, found.evidence

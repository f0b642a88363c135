"""Terms of a loss without any gradient, and losses without one that are meant so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stepladder.records.findings import Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]
NAME = "loss_term_lost"

CODE = """
import copy
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 6)
y = (x[:, 0] > 0).long()
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
large = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.05)
weight, no_weight, logged = 0.5, 0.0, 0.0
MADE
for step in range(24):
    rows = torch.randperm(128)[:32]
    with torch.no_grad():
        goal = large(x[rows])
    out = net(x[rows])
    ce = F.cross_entropy(out, y[rows])
    LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
OWN_LOSS = """
class Distilled(nn.Module):
    def __init__(self):
        super().__init__()
        self.divergence = nn.KLDivLoss(reduction="batchmean")

    def forward(self, out, goal, ce):
        first, second = F.log_softmax(goal / 2, 1), F.softmax(goal / 2, 1)
        return ce + 0.5 * self.divergence(first, second)
criterion = Distilled()
"""


def code_of(loss: str, made: str = "") -> str:
    return CODE.replace("LOSS", loss.replace("\n", "\n    ")).replace("MADE", made)


SAME, NO_GRAPH = "had the same values", "neither argument has a graph"
FAULTY = {
    "both_of_the_teacher": (
        SAME,
        code_of(
            "a = F.log_softmax(goal, 1)\nb = F.log_softmax(goal, 1)\n"
            "soft = F.kl_div(a, b, reduction='batchmean', log_target=True) * 4\n"
            "loss = weight * soft + ce"
        ),
    ),
    "in_a_module": (SAME, code_of("loss = criterion(out, goal, ce)", OWN_LOSS)),
    "distance_of_itself": (SAME, code_of("loss = ce + F.mse_loss(goal, goal.clone())")),
    "with_a_graph": (SAME, code_of("loss = ce\nloss += F.mse_loss(out, out.detach())")),
    "teacher_is_student": (
        SAME,
        code_of(
            "with torch.no_grad():\n    soft = twin(x[rows])\n"
            "loss = sum([ce, weight * F.mse_loss(out, soft)])",
            "twin = net",
        ),
    ),
    "both_detached": (
        NO_GRAPH,
        code_of(
            "a = F.log_softmax(out.detach(), 1)\n"
            "loss = ce + F.kl_div(a, goal.detach().softmax(1), reduction='batchmean')"
        ),
    ),
    "data": (NO_GRAPH, code_of("part = F.l1_loss(out.data, goal)\nloss = ce + weight * part")),
    "under_no_grad": (
        NO_GRAPH,
        code_of(
            "with torch.no_grad():\n    mirrored = net(-x[rows])\n"
            "loss = ce + 0.1 * F.cross_entropy(mirrored, 1 - y[rows])"
        ),
    ),
}
SOUND = {
    "distilled": code_of("loss = ce + F.mse_loss(out, goal)"),
    "one_side_detached": code_of("loss = ce + F.mse_loss(out, (2 * out).detach())"),
    "halves": code_of(
        "z = net[0](x[rows])\nq = (z * 2).round() / 2\n"
        "loss = ce + F.mse_loss(z.detach(), q + z.mean()) + 0.25 * F.mse_loss(z, q.detach())"
    ),
    "logged_only": code_of("logged = F.mse_loss(out.detach(), goal).item()\nloss = ce"),
    "logged_with_a_sum": code_of(
        "part = F.mse_loss(out.detach(), goal)\nlogged += part.item() + ce.item()\nloss = ce * 2"
    ),
    "switched_off": code_of("loss = ce + no_weight * F.mse_loss(out.detach(), goal)"),
    "zeros": code_of("loss = F.mse_loss(torch.zeros(4), torch.zeros(4)) + ce"),
    "frozen_part": code_of(
        "loss = ce + F.cross_entropy(large(x[rows]), y[rows])", "large.requires_grad_(False)"
    ),
    "teacher_for_reference": code_of("loss = ce + 0.1 * F.cross_entropy(goal, y[rows])"),
    "a_factor_in_a_sum": code_of("loss = ce + out.mean() * F.mse_loss(out.detach(), goal)"),
    "a_named_factor": code_of(
        "size = out.abs().mean()\nloss = ce + size * F.mse_loss(out.detach(), goal)"
    ),
    "a_factor": code_of("loss = ce * F.mse_loss(out.detach(), goal)"),
    "copy_that_begins_equal": code_of(
        "with torch.no_grad():\n    soft = twin(x[rows])\nloss = ce + F.mse_loss(out, soft)",
        "twin = copy.deepcopy(net)",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTY)
def test_a_term_without_any_gradient_is_found(watched: Watched, name: str) -> None:
    words, code = FAULTY[name]
    report = watched(code)
    assert report.watcher_error is None
    found = {finding.fault: finding for finding in report.findings}[NAME]
    assert found.outcome is Outcome.WARNED
    assert words in found.evidence
    assert found.where is not None
    line = code.splitlines()[int(found.where.partition(":")[2]) - 1]
    assert "F." in line or "self.divergence" in line


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_a_loss_without_a_gradient_that_is_meant_is_no_alarm(watched: Watched, name: str) -> None:
    report = watched(SOUND[name])
    assert report.watcher_error is None
    assert NAME not in {finding.fault for finding in report.findings}


@pytest.mark.filterwarnings("ignore")
def test_comparing_arguments_changes_no_result(watched: Watched) -> None:
    code = FAULTY["both_detached"][1] + "torch.save([net.state_dict(), torch.rand(4)], 'e')\n"
    watched(code)
    first = torch.load("e")
    exec(compile(code, "snippet.py", "exec"), {"__name__": "__main__"})
    second = torch.load("e")
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
    assert torch.equal(first[1], second[1])

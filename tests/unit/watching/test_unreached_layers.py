"""Layers that eval() does not reach, as they are in no model, and those in training on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stepladder.records.findings import Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]
NAME = "train_mode_in_validation"

CODE = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 6)
y = (x[:, 0] > 0).long()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.last = nn.Linear(16, 2)
        MADE

    def forward(self, x):
        h = F.relu(self.first(x))
        USED
        return self.last(h)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.05)
for epoch in range(3):
    net.train()
    for step in range(4):
        rows = torch.randperm(128)[:32]
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    net.eval()
    AFTER
    with torch.no_grad():
        for start in (0, 64):
            net(x[start : start + 64])
"""
DROP = "h = self.drop(h)"


def code_of(made: str = "pass", used: str = "pass", after: str = "pass", before: str = "") -> str:
    code = CODE.replace("MADE", made.replace("\n", "\n        "))
    code = code.replace("USED", used.replace("\n", "\n        ")).replace("AFTER", after)
    return code.replace("class Net", f"{before}class Net")


OWN_BLOCK = """class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, h):
        return self.drop(h)

"""
FAULTY = {
    "created_in_forward": ("created", code_of(used="h = nn.Dropout(p=0.5)(h)")),
    "created_by_name": ("created", code_of(used="drop = nn.AlphaDropout(0.2)\nh = drop(h)")),
    "in_a_list": ("list", code_of("self.drops = [nn.Dropout(0.5)]", "h = self.drops[0](h)")),
    "within_another": (
        "list",
        code_of("self.parts = {'a': Block()}", "h = self.parts['a'](h)", before=OWN_BLOCK),
    ),
    "norm": ("created", code_of(used="h = nn.BatchNorm1d(16, affine=False)(h)")),
}
FAULTY["with_gradients"] = (
    "created",
    FAULTY["created_in_forward"][1].replace("torch.no_grad()", "torch.enable_grad()"),
)
SOUND = {
    "registered": code_of("self.drop = nn.Dropout(0.5)", DROP),
    "on_purpose": code_of("self.drop = nn.Dropout(0.5)", DROP, "net.drop.train()"),
    "function_on_purpose": code_of(used="h = F.dropout(h, 0.5, training=True)"),
    "by_mode": code_of(used="h = F.dropout(h, 0.5, self.training)"),
    "created_for_training": code_of(used="if self.training:\n    h = nn.Dropout(0.5)(h)"),
    "mode_passed": code_of(used="h = nn.Dropout(0.5).train(self.training)(h)"),
    "never_drops": code_of(used="h = nn.Dropout(0.0)(h)"),
    "trained_in_evaluation_mode": code_of(used="h = F.dropout(h, 0.5)", after="y[0] = 0")
    .replace("net.train()", "net.eval()")
    .replace("net(x[start", "net.first(x[start"),
    "added_later": code_of("self.drop = nn.Identity()", DROP, "net.drop = nn.Dropout(0.5)"),
    "norm_of_batches": code_of(
        "self.norm = nn.BatchNorm1d(16, track_running_stats=False)", "h = self.norm(h)"
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTY)
def test_a_layer_that_eval_does_not_reach_is_found(watched: Watched, name: str) -> None:
    how, code = FAULTY[name]
    report = watched(code)
    assert report.watcher_error is None
    found = {finding.fault: finding for finding in report.findings}[NAME]
    assert found.outcome is Outcome.WARNED
    assert "not registered in Net" in found.evidence
    assert how in found.evidence
    assert ("statistics" in found.evidence) is (name == "norm")
    assert found.where is not None
    line = code.splitlines()[int(found.where.partition(":")[2]) - 1]
    assert line.strip().startswith(("h = ", "return self.drop(h)"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_a_layer_in_training_on_purpose_is_no_alarm(watched: Watched, name: str) -> None:
    report = watched(SOUND[name])
    assert report.watcher_error is None
    assert NAME not in {finding.fault for finding in report.findings}


@pytest.mark.filterwarnings("ignore")
def test_watching_layers_changes_no_draw(watched: Watched) -> None:
    code = FAULTY["created_in_forward"][1] + "torch.save([net.state_dict(), torch.rand(4)], 'e')\n"
    watched(code)
    first = torch.load("e")
    exec(compile(code, "snippet.py", "exec"), {"__name__": "__main__"})
    second = torch.load("e")
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
    assert torch.equal(first[1], second[1])

"""Metrics that compare every prediction with every label, and all pairs that are meant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stepladder.records.findings import Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]
NAME = "metric_wrong"

CODE = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(96, 6)
y = (x[:, :1] > 0).long() + (x[:, 1:2] > 0).long()  # (n, 1)
SET
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, OUT))
optimizer = torch.optim.SGD(net.parameters(), 0.05)
for epoch in range(3):
    net.train()
    for rows in torch.randperm(96).split(32):
        optimizer.zero_grad()
        out = net(x[rows])
        LOSS.backward()
        optimizer.step()
        STEP
    net.eval()
    correct = 0
    with torch.no_grad():
        for rows in torch.arange(96).split(24):
            out, labels = net(x[rows]), y[rows]
            HITS
"""
CLASSES = "F.cross_entropy(out, y[rows].squeeze(1))"
BINARY = "F.binary_cross_entropy_with_logits(out, t[rows])"
FLAT = "F.binary_cross_entropy_with_logits(out.squeeze(1), t[rows].squeeze(1))"


def code_of(
    hits: str, loss: str = CLASSES, out: int = 3, made: str = "pass", step: str = "pass"
) -> str:
    code = CODE.replace("HITS", hits.replace("\n", "\n            "))
    code = code.replace("LOSS", loss).replace("OUT", str(out)).replace("SET", made)
    return code.replace("STEP", step)


T = "t = (y > 0).float()"
FAULTY = {
    "max": ("(24,)", "(24, 1)", code_of("_, p = out.max(1)\ncorrect += (p == labels).sum()")),
    "argmax": ("(24,)", "(24, 1)", code_of("correct += out.argmax(1).eq(labels).sum().item()")),
    "copied": (
        "(24,)",
        "(24, 1)",
        code_of("p = out.argmax(1).float()\ncorrect += (p != labels).sum()"),
    ),
    "no_name": (
        "(24,)",
        "(24, 1)",
        code_of("correct += torch.eq(net(x[rows]).argmax(1), labels).sum()"),
    ),
    "topk": (
        "(24, 1)",
        "(24,)",
        code_of("p = out.topk(1)[1]\ncorrect += (p == labels[:, 0]).sum()"),
    ),
    "threshold": (
        "(24, 1)",
        "(24,)",
        code_of(
            "p = (out.sigmoid() > 0.5).float()\ncorrect += (p == t[rows, 0]).sum()", BINARY, 1, T
        ),
    ),
    "rounded": (
        "(24,)",
        "(24, 1)",
        code_of("p = out.sigmoid().round().flatten()\ncorrect += (p == t[rows]).sum()", FLAT, 1, T),
    ),
    "in_training": (
        "(32,)",
        "(32, 1)",
        code_of("pass", step="accuracy = (out.argmax(1) == y[rows]).float().mean()"),
    ),
}
SOUND = {
    "squeezed": code_of("correct += (out.argmax(1) == labels.squeeze(1)).sum()"),
    "two_columns": code_of("correct += (out.argmax(1, keepdim=True) == labels).sum()"),
    "labels_in_pairs": code_of("same = labels.squeeze(1) == labels"),
    "copied_labels_in_pairs": code_of("same = labels.squeeze(1).clone() == labels"),
    "predictions_in_pairs": code_of("p = out.argmax(1)\nsame = p == p[:, None]"),
    "other_labels_in_pairs": code_of("same = labels == y[torch.randperm(96)[:24], 0]"),
    "one_hot": code_of("p = out.argmax(1)[:3]\nones = p[:, None] == torch.arange(3)"),
    "one_hot_of_whole_output": code_of(
        "some = net(x[:3]).argmax(1)\nones = some[:, None] == torch.arange(3)"
    ),
    "with_a_number": code_of("correct += (out.argmax(1) == 1).sum()"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTY)
def test_a_comparison_that_broadcasts_to_pairs_is_found(watched: Watched, name: str) -> None:
    predicted, label, code = FAULTY[name]
    report = watched(code)
    assert report.watcher_error is None
    found = {finding.fault: finding for finding in report.findings}[NAME]
    assert found.outcome is Outcome.WARNED
    assert f"predictions of shape {predicted}" in found.evidence
    assert f"labels of shape {label}" in found.evidence
    assert found.where is not None
    line = code.splitlines()[int(found.where.partition(":")[2]) - 1]
    assert line.strip().startswith(("correct += ", "accuracy = "))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_all_pairs_that_are_meant_are_no_alarm(watched: Watched, name: str) -> None:
    report = watched(SOUND[name])
    assert report.watcher_error is None
    assert NAME not in {finding.fault for finding in report.findings}


@pytest.mark.filterwarnings("ignore")
def test_comparisons_are_the_same_and_free_of_wrappers_afterwards(watched: Watched) -> None:
    code = FAULTY["max"][2] + "torch.save([net.state_dict(), torch.as_tensor(correct)], 'end.pt')\n"
    watched(code)
    first = torch.load("end.pt")
    exec(compile(code, "snippet.py", "exec"), {"__name__": "__main__"})
    second = torch.load("end.pt")
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
    assert torch.equal(first[1], second[1])
    assert "__eq__" not in vars(Tensor)

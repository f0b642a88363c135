"""Some weights get a gradient and others do not: the cause is named if it is proven."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.overrides import _len_torch_function_stack

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

START = """
import copy
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.gate = nn.Linear(16, 3)
        self.head = nn.Linear(16, 3)
    def forward(self, x):
        FORWARD
net = Net()
sgd = torch.optim.SGD(net.parameters(), 0.05)
CHANGE
for step in range(20):
    rows = torch.randint(320, (32,))
    sgd.zero_grad()
    F.cross_entropy(net(x[rows]), y[rows]).backward()
    sgd.step()
"""
BOTH = "f = self.encoder(x)\n        return self.head(f) * self.gate(f).sigmoid()"

# each: forward, a change after the optimizer was built, what is named, words of its line and fix
NAMED = {
    "detach": (
        "f = self.encoder(x).detach()\n        return self.head(f) * self.gate(f).sigmoid()",
        "",
        "detach() at LINE cuts them off from the loss",
        ".detach()",
        "Remove detach() at LINE.",
    ),
    "no_grad": (
        "with torch.no_grad():\n            f = self.encoder(x)\n"
        "        return self.head(f) * self.gate(f).sigmoid()",
        "",
        "torch.no_grad() at LINE cuts them off from the loss",
        "torch.no_grad()",
        "without torch.no_grad() (LINE)",
    ),
    "set_grad_enabled": (
        "torch.set_grad_enabled(False)\n        f = self.encoder(x)\n"
        "        torch.set_grad_enabled(True)\n"
        "        return self.head(f) * self.gate(f).sigmoid()",
        "",
        "torch.no_grad() at LINE cuts them off from the loss",
        "set_grad_enabled(False)",
        "LINE",
    ),
    "argmax": (
        "f = self.encoder(x)\n        best = self.gate(f).argmax(1)\n"
        "        return self.head(f) * F.one_hot(best, 3)",
        "",
        "argmax() at LINE cuts them off from the loss",
        "best = self.gate",
        "Replace argmax() at LINE by an operation that has a gradient",
    ),
    "data_of_the_weights": (
        "f = self.encoder(x)\n"
        "        g = F.linear(f, self.gate.weight.data, self.gate.bias.data).sigmoid()\n"
        "        return self.head(f) * g",
        "",
        ".data at LINE cuts them off from the loss",
        "weight.data",
        "Remove .data at LINE.",
    ),
    "a_leaf_in_the_middle": (
        "f = torch.tensor(self.encoder(x).tolist()).requires_grad_()\n"
        "        return self.head(f) * self.gate(f).sigmoid()",
        "",
        "tolist() at LINE cuts them off from the loss",
        "tolist()",
        "Replace tolist() at LINE",
    ),
    "never_called": (
        "return self.head(self.encoder(x))",
        "",
        "their layers are not called",
        "torch.optim.SGD",
        "Call these layers in the forward pass",
    ),
    "replaced": (
        BOTH,
        "net.head = nn.Linear(16, 3)",
        "no model that is called has them, but Net has others of the same shapes",
        "torch.optim.SGD",
        "Create the optimizer from model.parameters() after the model is final",
    ),
    "a_part_that_was_copied": (
        BOTH,
        "net.encoder = copy.deepcopy(net.encoder)",
        "no model that is called has them, but Net has others of the same shapes",
        "torch.optim.SGD",
        "Create the optimizer from model.parameters() after the model is final",
    ),
    "two_causes": (
        "return self.head(self.encoder(x).detach())",
        "",
        "detach() at LINE cuts 4 of them off from the loss; the layers of 2 are not called",
        ".detach()",
        "Remove detach() at LINE.",
    ),
}

# forwards in which nothing is proven to be the cause, or nothing is wrong
UNNAMED = {
    "only_for_a_number_that_is_shown": (
        "f = self.encoder(x)\n        self.shown = self.gate(f).detach().mean().item()\n"
        "        return self.head(f)"
    ),
    "only_for_an_accuracy": (
        "f = self.encoder(x)\n        self.right = (self.gate(f).argmax(1) == 0).sum()\n"
        "        return self.head(f)"
    ),
}
SOUND = {
    "a_target_that_is_detached": (
        "f = self.encoder(x)\n        g = self.gate(f)\n"
        "        return self.head(f.detach()) + g + (g - self.head(f)).detach()"
    ),
    "called_now_and_then": (
        "f = self.encoder(x)\n        self.num = getattr(self, 'num', 0) + 1\n"
        "        return self.head(f) + (self.gate(f) if self.num > 10 else 0)"
    ),
}


def code_of(forward: str, change: str = "") -> str:
    return START.replace("FORWARD", forward).replace("CHANGE", change)


def found(report: WatchReport, name: str = "frozen_by_accident") -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == name]
    return one


@pytest.mark.parametrize("name", NAMED)
def test_the_cause_of_a_missing_gradient_is_named(name: str, watched: Watched) -> None:
    forward, change, evidence, words, fix = NAMED[name]
    code = code_of(forward, change)
    one = found(watched(code))
    line = next(i for i, text in enumerate(code.splitlines(), 1) if words in text)
    where = f"snippet.py:{line}"
    assert one.outcome is Outcome.WARNED
    assert evidence.replace("LINE", where) in one.evidence
    assert fix.replace("LINE", where) in one.fix
    assert one.where == where
    assert _len_torch_function_stack() == 0


@pytest.mark.parametrize("name", UNNAMED)
def test_no_cause_is_named_if_none_is_proven(name: str, watched: Watched) -> None:
    one = found(watched(code_of(UNNAMED[name])))
    assert one.evidence.endswith("not trained: gate.weight, gate.bias")


@pytest.mark.parametrize("name", SOUND)
def test_weights_that_get_a_gradient_in_another_way_are_not_reported(
    name: str, watched: Watched
) -> None:
    one = found(watched(code_of(SOUND[name])))
    assert one.fault is None, one.evidence


def test_the_cause_is_named_if_the_model_is_deleted_at_the_end(watched: Watched) -> None:
    code = code_of(NAMED["detach"][0])
    start = code.index("net = Net()")
    inside = code[start:].replace("\n", "\n    ")
    one = found(watched(f"{code[:start]}def main():\n    {inside}\nmain()\n"))
    assert "detach() at snippet.py:17 cuts them off" in one.evidence


def test_a_copied_model_is_named_as_such(watched: Watched) -> None:
    one = found(watched(code_of(BOTH, "net = copy.deepcopy(net)")), "parameters_never_step")
    assert one.outcome is Outcome.FAILED
    assert "does not use, and Net has others of the same shapes" in one.evidence


def test_following_operations_changes_no_result(watched: Watched) -> None:
    forward = "f = F.dropout(self.encoder(x).detach(), 0.1)\n        return self.head(f)"
    code = code_of(forward) + "torch.save([net.state_dict(), torch.rand(4)], 'end.pt')\n"
    watched(code)
    first = torch.load("end.pt")
    exec(compile(code, "snippet.py", "exec"), {"__name__": "__main__"})
    second = torch.load("end.pt")
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
    assert torch.equal(first[1], second[1])


def test_attention_in_evaluation_mode_is_not_followed(watched: Watched) -> None:
    forward = "return self.head(self.encoder(x).detach())"
    change = "net.teacher = nn.MultiheadAttention(16, 2).eval()"
    one = found(watched(code_of(forward, change)))
    assert one.outcome is Outcome.WARNED
    assert "cuts" not in one.evidence

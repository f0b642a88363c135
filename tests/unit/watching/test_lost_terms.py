"""Terms of a loss that were turned into numbers, and what only looks like that."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable

import pytest
import torch
from torch.overrides import _len_torch_function_stack  # type: ignore[attr-defined]

from stepladder.records.findings import Outcome
from stepladder.records.watch import WatchReport
from stepladder.watching.hooks.losses.lost_terms import value_of
from stepladder.watching.script.sums import suspects

Watched = Callable[..., WatchReport]
NAME = "loss_term_lost"

START = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 6)
y = (x[:, 0] > 0).long()
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.05)
beta, mean = 0.1, 0.0

def size_of(net):
    return net[0].weight.square().sum()
"""
LOOP = """
for step in range(12):
    rows = torch.randperm(128)[:32]
    out = net(x[rows])
    ce = F.cross_entropy(out, y[rows])
    size = net[0].weight.square().sum()
    LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    AFTER
"""
OWN_LOSS = """
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = 0.5

    def forward(self, out, labels):
        ce = F.cross_entropy(out, labels)
        size = net[0].weight.abs().sum()
        return ce + self.beta * size.TURNED
criterion = Loss()
"""
IN_A_FUNCTION = """
def train(factor):
    for step in range(12):
        rows = torch.randperm(128)[:32]
        ce = F.cross_entropy(net(x[rows]), y[rows])
        size = size_of(net)
        total = ce
        total += factor * size.TURNED
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
train(0.1)
"""


def code_of(loss: str, after: str = "pass", before: str = "") -> str:
    loss, after = (lines.replace("\n", "\n    ") for lines in (loss, after))
    return START + before + LOOP.replace("LOSS", loss).replace("AFTER", after)


FAILED, WARNED = Outcome.FAILED, Outcome.WARNED
FAULTY = {
    "item": (FAILED, "size.item()", code_of("loss = ce + 0.1 * size.item()")),
    "float": (FAILED, "float(size)", code_of("loss = ce + beta * float(size)")),
    "tensor": (FAILED, "tensor(size)", code_of("loss = ce + torch.tensor(size) * beta")),
    "detach": (WARNED, "size.detach()", code_of("loss = (ce + size.detach() * beta) / 2")),
    "data": (WARNED, "size.data", code_of("loss = ce - beta * size.data")),
    "numpy": (WARNED, "numpy()", code_of("loss = ce + float(size.detach().cpu().numpy())")),
    "list": (FAILED, "size.item()", code_of("loss = sum([ce, beta * size.item()])")),
    "before": (WARNED, "size.item()", code_of("number = size.item()\nloss = ce + beta * number")),
    "call": (FAILED, "size_of(net).item()", code_of("loss = ce + 0.1 * size_of(net).item()")),
    "module": (
        FAILED,
        "size.item()",
        code_of("loss = criterion(out, y[rows])", before=OWN_LOSS.replace("TURNED", "item()")),
    ),
    "function": (FAILED, "size.item()", START + IN_A_FUNCTION.replace("TURNED", "item()")),
}
SOUND = {
    "kept": code_of("loss = ce + 0.1 * size"),
    "logged": code_of("loss = ce + size", "loss = loss.item()\nmean = mean + 0.1 * loss"),
    "smoothed": code_of("loss = ce + size\nmean = 0.9 * mean + 0.1 * loss.item()"),
    "divided_by_itself": code_of("loss = ce / ce.detach() + size / size.item()"),
    "balanced": code_of("factor = ce.item() / size.item()\nloss = ce + factor * size", "size = 0"),
    "value_only": code_of("loss = ce + (size - ce).detach()"),
    "advantage": code_of("loss = size - out.log_softmax(1).mean() * (ce.item() - beta)"),
    "peak": code_of("m = out.mean().detach()\nloss = ce + m + (out - m).exp().sum().log()"),
    "target": code_of("gap = ce + 0.9 * size.item() - size\nloss = gap.pow(2)"),
    "two_backwards": code_of("size.backward(retain_graph=True)\nloss = ce + size.item()"),
    "without_graph": code_of(
        "with torch.no_grad():\n    fixed = size_of(net)\nloss = ce + 0.1 * fixed.item()"
    ),
    "factor_of_0": code_of("loss = ce + 0 * size.item()"),
    "module_logs": code_of(
        "loss = criterion(out, y[rows])", before=OWN_LOSS.replace(".TURNED", "")
    ),
    "function": START + IN_A_FUNCTION.replace(".TURNED", ""),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTY)
def test_a_term_that_became_a_number_is_found(watched: Watched, name: str) -> None:
    outcome, words, code = FAULTY[name]
    report = watched(code)
    assert report.watcher_error is None
    found = {finding.fault: finding for finding in report.findings}[NAME]
    assert found.outcome is outcome
    assert words in found.evidence
    assert found.where is not None
    line = code.splitlines()[int(found.where.partition(":")[2]) - 1]
    assert "size" in line
    assert _len_torch_function_stack() == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_a_number_for_another_use_is_no_alarm(watched: Watched, name: str) -> None:
    report = watched(SOUND[name])
    assert report.watcher_error is None
    assert NAME not in {finding.fault for finding in report.findings}
    assert _len_torch_function_stack() == 0


@pytest.mark.filterwarnings("ignore")
def test_following_operations_changes_no_result(watched: Watched) -> None:
    code = FAULTY["item"][2] + "torch.save([net.state_dict(), torch.rand(4)], 'end.pt')\n"
    watched(code)
    first = torch.load("end.pt")
    exec(compile(code, "snippet.py", "exec"), {"__name__": "__main__"})
    second = torch.load("end.pt")
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
    assert torch.equal(first[1], second[1])


def test_a_library_that_calls_backward_adds_the_terms_of_its_hook() -> None:
    source = (
        "class Model:\n"
        "    def training_step(self, batch):\n"
        "        loss = self.ce(batch) + self.beta * self.size().item()\n"
        "        return {'loss': loss, 'log': loss.item()}\n"
        "trainer.fit(Model())\n"
    )
    (one,) = suspects(source, 5)
    assert (one.first, one.term) == (3, "self.size().item()")


def test_variables_of_a_script_with_its_own_namespace_stay() -> None:
    values: dict[str, object] = {"note": value_of, "expr": ast.parse("weight", mode="eval").body}
    code = "weight = torch.ones(1, requires_grad=True) * 2; found = note(expr, sys._getframe())"
    exec(code, {"torch": torch, "sys": sys}, values)
    assert values["found"] is values["weight"]


def test_only_what_backward_is_called_on_is_read() -> None:
    source = "total = a + b.item()\nloss = a + b\nloss.backward()\nloss = loss + b.item()\n"
    assert suspects(source, 3) == []
    assert [one.term for one in suspects(source.replace("+ b\n", "+ b.item()\n"), 3)] == [
        "b.item()"
    ]

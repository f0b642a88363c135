"""One layer that is listed as several, and weights that are shared on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from stepladder.records.findings import Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]
NAME = "parameters_twice"

CODE = """
import copy
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))

    def forward(self, x):
        return x + self.body(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 1)
        MADE

    def forward(self, x):
        USED

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for step in range(8):
    rows = torch.randperm(64)[:32]
    optimizer.zero_grad()
    F.mse_loss(net(x[rows]), y[rows]).backward()
    optimizer.step()
"""
IN_TURN = "for layer in self.layers:\n    x = layer(x)\nreturn self.head(x)"


def code_of(made: str, used: str = IN_TURN) -> str:
    indent = "\n        "
    return CODE.replace("MADE", made.replace("\n", indent)).replace(
        "USED", used.replace("\n", indent)
    )


FAULTY = {
    "list": ("Block 3 times", code_of("self.layers = nn.ModuleList([Block()] * 3)")),
    "sequential": (
        "Block 4 times",
        code_of("self.layers = nn.Sequential(*[Block()] * 4)", "return self.head(self.layers(x))"),
    ),
    "appended": (
        "Linear 3 times",
        code_of(
            "self.layers = nn.ModuleList()\nlayer = nn.Linear(8, 8)\n"
            "for _ in range(3):\n    self.layers.append(layer)",
            "for layer in self.layers:\n    x = F.relu(layer(x)) + x\nreturn self.head(x)",
        ),
    ),
    "pairs": (
        "Linear 3 times",
        code_of("self.layers = nn.Sequential(*[nn.Linear(8, 8), nn.ReLU()] * 3)"),
    ),
}
SOUND = {
    "own_layers": code_of("self.layers = nn.ModuleList([Block() for _ in range(3)])"),
    "copies": code_of(
        "block = Block()\nself.layers = nn.ModuleList([copy.deepcopy(block) for _ in range(3)])"
    ),
    "called_in_a_loop": code_of(
        "self.layer = Block()", "for _ in range(3):\n    x = self.layer(x)\nreturn self.head(x)"
    ),
    "listed_once": code_of(
        "self.layers = nn.ModuleList([Block()])",
        "for _ in range(3):\n    x = self.layers[0](x)\nreturn self.head(x)",
    ),
    "head_of_several_levels": code_of(
        "self.levels = nn.ModuleList([Block() for _ in range(3)])\n"
        "self.heads = nn.ModuleList([nn.Linear(8, 1)] * 3)",
        "total = 0\nfor level, head in zip(self.levels, self.heads):\n"
        "    x = level(x)\n    total = total + head(x)\nreturn total",
    ),
    "of_columns": code_of(
        "self.parts = nn.ModuleList([nn.Linear(4, 8)] * 2)",
        "return self.head(self.parts[0](x[:, :4]) + self.parts[1](x[:, 4:]))",
    ),
    "activation": code_of(
        "act = nn.PReLU()\nself.layers = nn.Sequential(nn.Linear(8, 8), act, nn.Linear(8, 8), act)"
    ),
    "said_to_be_shared": code_of(
        "# weights are shared across depth\nself.layers = nn.ModuleList([Block()] * 3)"
    ),
    "named_as_shared": code_of(
        "self.shared_layers = nn.ModuleList([Block()] * 3)", IN_TURN.replace(".la", ".shared_la")
    ),
    "frozen": code_of(
        "block = Block().requires_grad_(False)\nself.layers = nn.ModuleList([block] * 3)"
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTY)
def test_one_layer_that_is_listed_as_several_is_found(watched: Watched, name: str) -> None:
    words, code = FAULTY[name]
    report = watched(code)
    assert report.watcher_error is None
    found = {finding.fault: finding for finding in report.findings}[NAME]
    assert found.outcome is Outcome.WARNED
    assert words in found.evidence
    assert "share one set of" in found.evidence
    assert found.where is not None
    line = code.splitlines()[int(found.where.partition(":")[2]) - 1]
    assert "self.layers" in line


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_weights_that_are_shared_on_purpose_are_no_alarm(watched: Watched, name: str) -> None:
    report = watched(SOUND[name])
    assert report.watcher_error is None
    assert NAME not in {finding.fault for finding in report.findings}


@pytest.mark.filterwarnings("ignore")
def test_following_calls_leaves_no_hook_and_no_other_weights(watched: Watched) -> None:
    code = FAULTY["list"][1] + "torch.save(net.state_dict(), 'end.pt')\n"
    watched(code)
    first = torch.load("end.pt")
    exec(compile(code, "snippet.py", "exec"), {"__name__": "__main__"})
    second = torch.load("end.pt")
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not nn.modules.module._global_forward_hooks
    assert not hasattr(nn.Sequential.__init__, "__wrapped__")

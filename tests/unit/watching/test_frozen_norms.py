"""BatchNorm of frozen layers: in training mode, its statistics move away from the weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

START = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
class Net(nn.Module):
    def __init__(self, **more):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16, **more), nn.ReLU(),
            nn.Linear(16, 16), nn.BatchNorm1d(16, **more), nn.ReLU(),
        )
        self.head = nn.Linear(16, 3)
    def features(self, x):
        return self.trunk(x)
    def forward(self, x):
        return self.head(self.features(x))
def step(net, optimizer, given=None):
    rows = torch.randint(320, (32,))
    optimizer.zero_grad()
    F.cross_entropy(net((x if given is None else given)[rows]), y[rows]).backward()
    optimizer.step()
net = Net()
with torch.no_grad():
    for _ in range(30):
        net(2 * x + 1)
"""
TRAIN = """
for _ in range(20):
    net.train()
    MODE
    step(net, sgd)
"""
FROZEN = "net.trunk.requires_grad_(False)\n"
HEAD = "sgd = torch.optim.SGD(net.head.parameters(), 0.05)"
ALL = "sgd = torch.optim.SGD(net.parameters(), 0.05)"
NO_GRAD = (
    "def features(x):\n    with torch.no_grad():\n        return net.trunk(x)\n"
    "net.features = features\n"
)
PHASES = "sgd = torch.optim.SGD(net.parameters(), 0.05)\nfor _ in range(25):\n    step(net, sgd)\n"
PARTS = """
trunk, head = net.trunk, net.head
trunk.requires_grad_(False)
sgd = torch.optim.SGD(head.parameters(), 0.05)
for _ in range(20):
    step(lambda x: head(trunk(x)), sgd)
"""

# each: the code, the words of its line, and the number of layers
FAULTY = {
    "requires_grad_is_off": (FROZEN + HEAD + TRAIN, "return self.trunk(x)", 2),
    "all_are_in_the_optimizer": (FROZEN + ALL + TRAIN, "return self.trunk(x)", 2),
    "only_the_head_is_in_the_optimizer": (HEAD + TRAIN, "return self.trunk(x)", 2),
    "without_gradients": (NO_GRAD + HEAD + TRAIN, "return net.trunk(x)", 2),
    "frozen_after_a_first_training": (
        PHASES + FROZEN + HEAD + TRAIN.replace("20", "40"),
        "return self.trunk(x)",
        2,
    ),
    "a_part_of_the_trunk": (
        "net.trunk[:3].requires_grad_(False)\n" + ALL + TRAIN,
        "return self.trunk(x)",
        1,
    ),
    "a_trunk_on_its_own": (PARTS, "head(trunk(x))", 2),
}

SOUND = {
    "the_trunk_is_in_evaluation_mode": FROZEN + HEAD + TRAIN.replace("MODE", "net.trunk.eval()"),
    "all_is_trained": ALL + TRAIN,
    "its_own_weights_are_trained": (
        FROZEN
        + "for m in net.modules():\n    if isinstance(m, nn.BatchNorm1d):\n"
        + "        m.requires_grad_(True)\n"
        + ALL
        + TRAIN
    ),
    "a_momentum_of_0": "net = Net(momentum=0.0)\n" + FROZEN + HEAD + TRAIN,
    "no_statistics": "net = Net(track_running_stats=False)\n" + FROZEN + HEAD + TRAIN,
    "only_the_norms_are_frozen": (
        "net.trunk[1].requires_grad_(False)\nnet.trunk[4].requires_grad_(False)\n" + ALL + TRAIN
    ),
    "behind_a_new_first_layer": (FROZEN + "net.trunk[0] = nn.Linear(8, 16)\n" + ALL + TRAIN),
    "a_norm_of_the_features": (
        FROZEN
        + "net.trunk.eval()\nnet.head = nn.Sequential(nn.BatchNorm1d(16, affine=False), net.head)\n"
        + HEAD
        + TRAIN.replace("MODE", "net.trunk.eval()")
    ),
    "an_average_that_follows": (
        "import copy\nteacher = copy.deepcopy(net).requires_grad_(False)\n"
        + ALL
        + TRAIN.replace("MODE", "teacher(x)")
        + "    for old, new in zip(teacher.parameters(), net.parameters()):\n"
        + "        old.data.lerp_(new.data, 0.1)\n"
    ),
    "frozen_for_a_while": (FROZEN + ALL + TRAIN + "net.trunk.requires_grad_(True)\n" + TRAIN),
    "two_players": (
        "other = Net()\n"
        + "one = torch.optim.SGD(net.parameters(), 0.05)\n"
        + "two = torch.optim.SGD(other.parameters(), 0.05)\n"
        + "for _ in range(20):\n    other.requires_grad_(True)\n    step(other, two)\n"
        + "    other.requires_grad_(False)\n"
        + "    step(lambda x: net(x) + other(x), one)\n"
    ),
    "statistics_are_measured_again": (
        ALL + TRAIN + FROZEN + "with torch.no_grad():\n    for _ in range(20):\n        net(x)\n"
    ),
}


def found_in(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    return next(one for one in report.findings if one.check == "frozen_batch_norm_moves")


@pytest.mark.parametrize("name", FAULTY)
def test_statistics_of_frozen_layers_that_move_are_reported(watched: Watched, name: str) -> None:
    code, words, num = FAULTY[name]
    code = START + code.replace("MODE", "pass")
    one = found_in(watched(code))
    assert one.outcome is Outcome.WARNED, one.evidence
    line = next(i for i, text in enumerate(code.splitlines(), 1) if words in text)
    assert one.where == f"snippet.py:{line}"
    assert one.numbers["num_layers"] == num
    assert "Call model.trunk.eval()" in one.fix


@pytest.mark.parametrize("name", SOUND)
def test_statistics_that_should_move_or_stay_are_not(watched: Watched, name: str) -> None:
    one = found_in(watched(START + SOUND[name].replace("MODE", "pass")))
    assert one.fault is None, one.evidence


def test_a_model_of_a_function_is_followed_as_well(watched: Watched) -> None:
    code = (START + FROZEN + HEAD + TRAIN).replace("MODE", "pass")
    start = code.index("net = Net()")
    inside = code[start:].replace("\n", "\n    ")
    assert found_in(watched(f"{code[:start]}def main():\n    {inside}\nmain()\n")).is_alarm


def test_a_trunk_that_never_had_statistics_is_no_fault(watched: Watched) -> None:
    code = START + "net = Net()\n" + FROZEN + HEAD + TRAIN.replace("MODE", "pass")
    report = watched(code)
    assert found_in(report).outcome is Outcome.PASSED
    assert not any(one.check == "frozen_batch_norm_moves" for one in report.alarms)

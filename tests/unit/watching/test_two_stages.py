"""Trainings in two stages: weights that are loaded for, or frozen in, the second one."""

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
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.first, self.second = nn.Linear(16, 3), nn.Linear(16, 3)
    def forward(self, x, head="first"):
        return getattr(self, head)(self.trunk(x))
def train(net, num=25, head="first"):
    sgd = torch.optim.SGD(net.parameters(), 0.05)
    for _ in range(num):
        rows = torch.randint(320, (32,))
        sgd.zero_grad()
        F.cross_entropy(net(x[rows], head), y[rows]).backward()
        sgd.step()
net = Net()
"""

MISNAMED = {
    "of_weights": "for p in net.trunk.parameters():\n    p.require_grad = False\n",
    "of_weights_differently": "for p in net.trunk.parameters():\n    p.requires_gradient = False\n",
    "of_a_module": "net.trunk.requires_grad = False\n",
    "as_in_keras": "for p in net.trunk.parameters():\n    p.trainable = False\n",
}
FROZEN = {
    "weights": "for p in net.trunk.parameters():\n    p.requires_grad = False\n",
    "all_at_once": "net.trunk.requires_grad_(False)\n",
    "both": "net.trunk.requires_grad = False\nnet.trunk.requires_grad_(net.trunk.requires_grad)\n",
    "not_in_use": "spare = Net()\nspare.requires_grad = False\n",
    "a_setting": "net.trainable = False\nnet.trunk.trainable = True\n",
}


def found(report: WatchReport, name: str) -> Finding:
    assert report.watcher_error is None
    return next(one for one in report.findings if one.check == name)


@pytest.mark.parametrize("name", MISNAMED)
def test_attributes_that_freeze_nothing(watched: Watched, name: str) -> None:
    code = START + "train(net)\n" + MISNAMED[name] + 'train(net, head="second")\n'

    finding = found(watched(code), "not_frozen")

    assert finding.outcome is Outcome.WARNED, finding
    assert "still trained" in finding.evidence
    assert "trunk" in finding.evidence


@pytest.mark.parametrize("name", FROZEN)
def test_a_head_of_each_stage(watched: Watched, name: str) -> None:
    code = START + "train(net)\n" + FROZEN[name] + 'train(net, head="second")\n'

    report = watched(code)

    assert found(report, "not_frozen").outcome is Outcome.PASSED
    assert found(report, "frozen_by_accident").outcome is Outcome.PASSED


def test_a_head_of_no_stage(watched: Watched) -> None:
    report = watched(START + "train(net)\ntrain(net)\n")

    assert "second.weight" in found(report, "frozen_by_accident").evidence


ENCODER = """
def main(change):
    module = Net()
    train(module, 70)
    encoder, probe = Net().trunk, nn.Linear(16, 3)
    state = {"model." + k: v for k, v in module.trunk.state_dict().items()}
    torch.save({"state_dict": state}, "encoder.ckpt")
    state = torch.load("encoder.ckpt")["state_dict"]
    if change:
        state = {k.removeprefix("model."): v for k, v in state.items()}
    encoder.load_state_dict(state, strict=False)
    encoder.requires_grad_(False)
    adam = torch.optim.Adam(probe.parameters(), 1e-2)
    for _ in range(20):
        adam.zero_grad()
        F.cross_entropy(probe(encoder(x)), y).backward()
        adam.step()
"""


def test_a_frozen_encoder_that_is_loaded_in_a_second_stage(watched: Watched) -> None:
    faulty = found(watched(START + ENCODER + "main(False)\n"), "pretrained_not_loaded")
    sound = found(watched(START + ENCODER + "main(True)\n"), "pretrained_not_loaded")

    assert faulty.outcome is Outcome.FAILED, faulty
    assert '4 of 4 would fit without the prefix "model."' in faulty.evidence
    assert sound.outcome is Outcome.PASSED, sound


DISTIL = """
teacher, student = net, Net()
TEACH
sgd = torch.optim.SGD(student.parameters(), 0.05)
for step in range(80):
    rows = torch.randint(320, (32,))
    with torch.set_grad_enabled(GRADIENTS):
        goal = teacher(x[rows])
    sgd.zero_grad()
    F.mse_loss(student(x[rows]), goal).backward()
    sgd.step()
"""


def test_gradients_that_are_left_from_the_first_stage_are_no_finding(watched: Watched) -> None:
    whole = """
class Both(nn.Module):
    def __init__(self, teacher, student):
        super().__init__()
        self.teacher, self.student = teacher, student
    def forward(self, x):
        with torch.set_grad_enabled(GRADIENTS):
            goal = self.teacher(x)
        return F.mse_loss(self.student(x), goal)
both = Both(net, Net())
train(net)
sgd = torch.optim.SGD(both.student.parameters(), 0.05)
for step in range(80):
    sgd.zero_grad()
    both(x[torch.randint(320, (32,))]).backward()
    sgd.step()
"""
    sound = watched(START + whole.replace("GRADIENTS", "False"))
    assert found(sound, "parameters_not_in_optimizer").outcome is not Outcome.WARNED
    wasted = watched(START + whole.replace("GRADIENTS", "True"))
    assert found(wasted, "parameters_not_in_optimizer").outcome is Outcome.WARNED


def test_a_part_that_only_an_earlier_stage_trained_is_timed_as_unused(watched: Watched) -> None:
    deep = START.replace("__init__(self)", "__init__(self, depth=1)").replace("Net()", "Net(20)")
    deep = deep.replace(
        "nn.Linear(16, 16), nn.ReLU())", "*[nn.Linear(16, 16) for _ in range(depth)], nn.ReLU())"
    )
    code = deep + DISTIL.replace("TEACH", "train(teacher)")
    wasted = watched(code.replace("GRADIENTS", "True"))
    sound = watched(code.replace("GRADIENTS", "False"))
    texts = [[one.text for one in (r.next, *r.others) if one] for r in (wasted, sound)]
    assert any("no optimizer uses" in text for text in texts[0])
    assert not any("no optimizer uses" in text for text in texts[1])

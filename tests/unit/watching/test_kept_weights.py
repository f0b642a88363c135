"""Weights that are kept for later: with a copy, or as a reference to those of the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
def built():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
net = built()
sgd = torch.optim.SGD(net.parameters(), 0.05)
def train(num=20):
    for _ in range(num):
        rows = torch.randint(320, (32,))
        sgd.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        sgd.step()
train()
"""

# each: the outcome, and the code
FAULTY = {
    "a_reference": (
        Outcome.FAILED,
        "best = net.state_dict()\ntrain()\nnet.load_state_dict(best)\n",
    ),
    "in_a_dict": (
        Outcome.FAILED,
        "kept = {'best': (1, net.state_dict())}\ntrain()\nnet.load_state_dict(kept['best'][1])\n",
    ),
    "a_shallow_copy": (
        Outcome.FAILED,
        "best = copy.copy(net.state_dict())\ntrain()\nnet.load_state_dict(best)\n",
    ),
    "moved_to_where_it_is": (
        Outcome.FAILED,
        "best = {k: v.cpu() for k, v in net.state_dict().items()}\ntrain()\n"
        "net.load_state_dict(best)\n",
    ),
    "a_backup_during_evaluation": (
        Outcome.FAILED,
        "other = built().state_dict()\nbackup = net.state_dict()\nnet.load_state_dict(other)\n"
        "net.load_state_dict(backup)\n",
    ),
    "saved_at_the_end": (
        Outcome.WARNED,
        "best = net.state_dict()\ntrain()\ntorch.save({'model': best}, 'best.pt')\n",
    ),
}

SOUND = {
    "a_copy": "best = copy.deepcopy(net.state_dict())\ntrain()\nnet.load_state_dict(best)\n",
    "clones": (
        "best = {k: v.clone() for k, v in net.state_dict().items()}\ntrain()\n"
        "net.load_state_dict(best)\n"
    ),
    "a_target_that_loads_another": (
        "target = built()\nfor _ in range(3):\n    train(5)\n"
        "    target.load_state_dict(net.state_dict())\n"
    ),
    "no_step_in_between": "train()\nnet.load_state_dict(net.state_dict())\ntrain()\n",
    "the_weights_themselves": (
        "net.state_dict(keep_vars=True)\ntrain()\nstate = net.state_dict(keep_vars=True)\n"
        "net.load_state_dict(state)\ntorch.save(state, 'last.pt')\n"
    ),
    "twice_without_a_step": (
        "state = net.state_dict()\nnet.load_state_dict(state)\nnet.load_state_dict(state)\n"
    ),
    "some_weights_replaced": (
        "state = net.state_dict()\nstate.update({'3.bias': torch.zeros(3)})\ntrain(1)\n"
        "net.load_state_dict(state)\n"
    ),
    "a_model_that_shares_weights": (
        "other = built()\nother[0] = net[0]\nlive = net.state_dict()\n"
        "for _ in range(3):\n    train()\n    other.load_state_dict(live)\n"
    ),
    "saved_at_once": (
        "for epoch in range(3):\n    train()\n    torch.save(net.state_dict(), f'{epoch}.pt')\n"
    ),
}


def found_in(report: WatchReport) -> Finding:
    return next(one for one in report.findings if one.check == "wrong_checkpoint_kept")


@pytest.mark.parametrize("name", FAULTY)
def test_weights_that_changed_since_they_were_taken_are_reported(
    watched: Watched, name: str
) -> None:
    outcome, code = FAULTY[name]
    found = found_in(watched(START + code))
    assert found.outcome is outcome
    assert found.numbers["taken_at_step"] == 20
    assert found.numbers["num_tensors"] == 9
    assert found.where == f"snippet.py:{len((START + code).splitlines())}"


def test_a_target_that_loads_its_own_weights_is_reported(watched: Watched) -> None:
    code = "target = built()\nfor _ in range(3):\n    train(5)\n"
    found = found_in(watched(f"{START}{code}    target.load_state_dict(target.state_dict())\n"))
    assert found.outcome is Outcome.WARNED
    assert found.numbers == {"num_times": 3}
    assert found.where == f"snippet.py:{len((START + code).splitlines()) + 1}"


@pytest.mark.parametrize("name", SOUND)
def test_weights_that_are_kept_soundly_are_not(watched: Watched, name: str) -> None:
    report = watched(START + SOUND[name])
    assert report.watcher_error is None
    assert found_in(report).outcome is Outcome.PASSED

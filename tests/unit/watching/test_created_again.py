"""Optimizers and schedulers that a script creates again in a loop."""

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
from torch.optim import Adam, SGD
from torch.optim.lr_scheduler import *
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
loader = DataLoader(TensorDataset(x, y), 32, shuffle=True)
def learn(optimizer, a, b):
    optimizer.zero_grad()
    F.cross_entropy(net(a), b).backward()
    optimizer.step()
def epoch_of(optimizer, scheduler=None):
    for a, b in loader:
        learn(optimizer, a, b)
        if scheduler is not None:
            scheduler.step()
kept = SGD(net.parameters(), 0.05, momentum=0.9)
"""

# each: the fault, its outcome, two of its numbers, and the code
FAULTY = {
    "optimizer_of_each_step": (
        "optimizer_recreated",
        Outcome.FAILED,
        {"num_created": 120, "steps_between": 1},
        """
for _ in range(12):
    for a, b in loader:
        learn(Adam(net.parameters(), 1e-3), a, b)
""",
    ),
    "momentum_of_each_epoch": (
        "optimizer_recreated",
        Outcome.WARNED,
        {"num_created": 6, "steps_between": 10},
        """
for epoch in range(6):
    epoch_of(SGD(net.parameters(), 0.05 * 0.9**epoch, momentum=0.9))
""",
    ),
    "optimizer_of_each_epoch_without_a_loader": (
        "optimizer_recreated",
        Outcome.WARNED,
        {"num_created": 12, "steps_between": 10},
        """
for _ in range(12):
    optimizer = Adam(net.parameters(), 1e-3)
    for rows in torch.randperm(320).split(32):
        learn(optimizer, x[rows], y[rows])
""",
    ),
    "scheduler_of_each_epoch": (
        "schedule_misused",
        Outcome.WARNED,
        {"num_created": 6, "longest_life": 1},
        """
for _ in range(6):
    scheduler = StepLR(kept, 3)
    epoch_of(kept)
    scheduler.step()
""",
    ),
    "scheduler_of_each_step": (
        "schedule_misused",
        Outcome.WARNED,
        {"num_created": 60, "longest_life": 1},
        """
for _ in range(6):
    for a, b in loader:
        scheduler = CosineAnnealingLR(kept, 60)
        learn(kept, a, b)
        scheduler.step()
""",
    ),
    "plateau_that_is_forgotten": (
        "schedule_misused",
        Outcome.WARNED,
        {"num_created": 6, "longest_life": 1},
        """
for _ in range(6):
    scheduler = ReduceLROnPlateau(kept, patience=2)
    epoch_of(kept)
    scheduler.step(1.0)
""",
    ),
}

# each: the number of steps, and the code
SOUND = {
    "optimizer_without_state": (
        60,
        """
for _ in range(6):
    for a, b in loader:
        learn(SGD(net.parameters(), 0.05), a, b)
""",
    ),
    "state_that_is_loaded": (
        60,
        """
state = kept.state_dict()
for _ in range(6):
    optimizer = SGD(net.parameters(), 0.05, momentum=0.9)
    optimizer.load_state_dict(state)
    epoch_of(optimizer)
    state = optimizer.state_dict()
""",
    ),
    "folds_from_the_same_weights": (
        50,
        """
first = copy.deepcopy(net.state_dict())
for _ in range(5):
    net.load_state_dict(first)
    epoch_of(Adam(net.parameters(), 1e-3))
""",
    ),
    "weights_that_are_unfrozen": (
        60,
        """
net[0].requires_grad_(False)
for _ in range(2):
    optimizer = Adam([p for p in net.parameters() if p.requires_grad], 1e-3)
    for _ in range(3):
        epoch_of(optimizer)
    net.requires_grad_(True)
""",
    ),
    "stages_of_several_epochs": (
        120,
        """
for rate in (1e-2, 1e-3, 1e-4, 1e-5):
    optimizer = Adam(net.parameters(), rate)
    for _ in range(3):
        epoch_of(optimizer)
""",
    ),
    "two_models": (
        60,
        """
judge = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
optimizers = [Adam(model.parameters(), 1e-3) for model in (net, judge)]
ones = torch.ones(32, 1)
for _ in range(6):
    for a, _ in loader:
        told = torch.cat([judge(torch.randn(32, 3)), judge(net(a).detach())])
        optimizers[1].zero_grad()
        F.binary_cross_entropy_with_logits(told, torch.cat([ones, 0 * ones])).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        F.binary_cross_entropy_with_logits(judge(net(a)), ones).backward()
        optimizers[0].step()
""",
    ),
    "optimizers_that_take_turns": (
        None,
        """
optimizers = {}
for _ in range(12):
    for task, (a, b) in enumerate(loader):
        if task not in optimizers:
            optimizers[task] = Adam(net.parameters(), 1e-3)
        learn(optimizers[task], a, b)
""",
    ),
    "rate_that_continues": (
        60,
        """
for _ in range(6):
    scheduler = ExponentialLR(kept, 0.9)
    epoch_of(kept)
    scheduler.step()
""",
    ),
    "cycle_of_each_epoch": (
        60,
        """
for _ in range(6):
    kept.param_groups[0]["lr"] = 0.05
    epoch_of(kept, CosineAnnealingLR(kept, len(loader)))
""",
    ),
}


def alarms_of(report: WatchReport) -> list[Finding]:
    return [one for one in report.findings if one.outcome in (Outcome.FAILED, Outcome.WARNED)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTY)
def test_what_is_created_again_is_one_alarm_with_numbers(watched: Watched, name: str) -> None:
    fault, outcome, numbers, code = FAULTY[name]
    report = watched(START + code)
    (found,) = alarms_of(report)
    assert (found.fault, found.outcome) == (fault, outcome)
    assert numbers.items() <= found.numbers.items()
    assert report.num_steps == (120 if numbers["num_created"] in (12, 120) else 60)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_reason_to_create_it_again_is_no_alarm(watched: Watched, name: str) -> None:
    num_steps, code = SOUND[name]
    report = watched(START + code)
    assert report.watcher_error is None
    assert not alarms_of(report)
    assert num_steps in (None, report.num_steps)


def test_steps_of_optimizers_that_are_created_again_are_those_of_one(watched: Watched) -> None:
    report = watched(START + FAULTY["optimizer_of_each_step"][-1])
    assert report.loss_steps == tuple(range(120))

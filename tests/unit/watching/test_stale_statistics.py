"""Models that follow the weights of a trained one: are their BatchNorm statistics their own?"""

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
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = 2 + 3 * torch.randn(320, 8)
y = x[:, :3].argmax(1)
loader = DataLoader(TensorDataset(x, y), 32, shuffle=True)
def built():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
net = built()
sgd = torch.optim.SGD(net.parameters(), 0.05)
def evaluate(model):
    model.eval()
    with torch.no_grad():
        for rows in torch.arange(320).split(64):
            model(x[rows])
def train(after=lambda: None):
    net.train()
    for a, b in loader:
        sgd.zero_grad()
        F.cross_entropy(net(a), b).backward()
        sgd.step()
        after()
@torch.no_grad()
def follow(ema, buffers=False):
    for e, p in zip(ema.parameters(), net.parameters()):
        e.lerp_(p, 0.1)
    for e, b in zip(ema.buffers(), net.buffers()) if buffers else ():
        e.copy_(b)
"""

# each: the outcome, and the code
FAULTY = {
    "parameters_only": (
        Outcome.FAILED,
        """
ema = copy.deepcopy(net)
for epoch in range(4):
    train(lambda: follow(ema))
    evaluate(net)
    evaluate(ema)
""",
    ),
    "evaluated_once": (
        Outcome.FAILED,
        """
ema = copy.deepcopy(net).eval()
for epoch in range(4):
    train(lambda: follow(ema))
    evaluate(net)
evaluate(ema)
""",
    ),
    "both_put_into_evaluation_mode_first": (
        Outcome.FAILED,
        """
ema = copy.deepcopy(net)
for epoch in range(3):
    train(lambda: follow(ema))
    net.eval(), ema.eval()
    with torch.no_grad():
        net(x), ema(x)
""",
    ),
    "weights_that_are_assigned": (
        Outcome.FAILED,
        """
twin = copy.deepcopy(net)
for epoch in range(3):
    train()
    for a, b in zip(twin.parameters(), net.parameters()):
        a.data.copy_(b.data)
    evaluate(twin)
""",
    ),
    "begun_during_training": (
        Outcome.WARNED,
        """
train()
ema = copy.deepcopy(net)
for epoch in range(3):
    train(lambda: follow(ema))
    evaluate(ema)
""",
    ),
    "an_equal_average_without_update_bn": (
        Outcome.WARNED,
        """
swa = AveragedModel(net)
for epoch in range(4):
    train()
    swa.update_parameters(net)
evaluate(swa)
""",
    ),
}

SOUND = {
    "buffers_that_are_copied": """
ema = copy.deepcopy(net)
for epoch in range(4):
    train(lambda: follow(ema, buffers=True))
    evaluate(net)
    evaluate(ema)
""",
    "an_equal_average_with_update_bn": """
swa = AveragedModel(net)
for epoch in range(4):
    train()
    swa.update_parameters(net)
update_bn(loader, swa)
evaluate(swa)
evaluate(swa)
""",
    "an_average_with_buffers": """
ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
for epoch in range(4):
    train(lambda: ema.update_parameters(net))
    evaluate(ema)
""",
    "evaluated_before_training": """
evaluate(net)
for epoch in range(3):
    train()
    evaluate(net)
""",
    "a_fixed_copy": """
first = copy.deepcopy(net)
for epoch in range(3):
    train()
    evaluate(first)
""",
    "a_random_target": """
target = built()
for epoch in range(3):
    train()
    evaluate(target)
""",
    "a_second_model_that_is_evaluated_first": """
train()
folds = [net]
net = built()
for weight in net.parameters():
    for _ in range(12):
        nn.init.normal_(weight, 0, 0.1)
evaluate(net)
sgd = torch.optim.SGD(net.parameters(), 0.05)
train()
evaluate(net)
""",
    "frozen_statistics": """
net[1].running_mean.add_(2)
ema = copy.deepcopy(net)
for epoch in range(3):
    train_mode = net.train
    net.train = lambda mode=True: (train_mode(mode), net[1].eval())[0]
    train(lambda: follow(ema))
    evaluate(ema)
""",
}


def found_in(report: WatchReport) -> Finding:
    return next(one for one in report.findings if one.check == "batch_norm_stale")


@pytest.mark.parametrize("name", FAULTY)
def test_statistics_of_other_weights_are_reported(watched: Watched, name: str) -> None:
    outcome, code = FAULTY[name]
    report = watched(START + code)
    found = found_in(report)
    assert report.watcher_error is None
    assert found.outcome is outcome, found.evidence
    assert found.where
    assert found.numbers["step"] == report.num_steps


@pytest.mark.parametrize("name", SOUND)
def test_statistics_of_the_same_weights_are_not(watched: Watched, name: str) -> None:
    report = watched(START + SOUND[name])
    assert report.watcher_error is None
    found = found_in(report)
    assert found.fault is None, found.evidence

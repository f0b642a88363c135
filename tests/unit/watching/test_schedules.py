"""Schedules that end too early or too late, whoever sets the learning rate."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]
NAME = "schedule_misused"

START = """
import functools
import math
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import *
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(640, 6)
y = (x[:, 0] + 0.3 * torch.randn(640) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
epochs = 6
steps = epochs * len(loader)
step = 0

def warmup_then_linear(i, *, warmup, total):
    return i / warmup if i < warmup else max(0.0, (total - i) / (total - warmup))

def set_rate(rate):
    for group in optimizer.param_groups:
        group["lr"] = rate

"""
LOOP = """
for epoch in range(epochs):
    train_loss, right = 0.0, 0
    for a, b in loader:
        out = net(a)
        loss = F.cross_entropy(out, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train_loss += loss.item()
        right += (out.argmax(1) == b).sum().item()
        step += 1
        AFTER_BATCH
    AFTER_EPOCH
"""
PARTIAL = (
    "plan = LambdaLR(optimizer, functools.partial(warmup_then_linear, warmup=12, total=TOTAL))"
)
ROWS = (
    "plan = SequentialLR(optimizer, [LinearLR(optimizer, 0.01, 1.0, 20), "
    "CosineAnnealingLR(optimizer, steps - 20)], [20])"
)
PLATEAU = "plan = ReduceLROnPlateau(optimizer, MODE, patience=0)"


def code_of(plan: str, *, batch: str = "pass", epoch: str = "pass") -> str:
    loop = LOOP.replace("AFTER_BATCH", batch).replace("AFTER_EPOCH", epoch)
    return START + plan + "\n" + loop


# each: words of the evidence, and the code
FAULTY = {
    "warmup_by_epoch": (
        "was in its warm-up until the end",
        code_of(
            "plan = LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 50))", epoch="plan.step()"
        ),
    ),
    "linear_by_epoch": (
        "was in its warm-up until the end",
        code_of("plan = LinearLR(optimizer, 0.01, 1.0, steps // 2)", epoch="plan.step()"),
    ),
    "cyclic_by_epoch": (
        "never reached 0.001",
        code_of(
            "plan = CyclicLR(optimizer, 1e-5, 1e-3, step_size_up=60, cycle_momentum=False)",
            epoch="plan.step()",
        ),
    ),
    "one_cycle_too_long": (
        "never reached 0.01",
        code_of("plan = OneCycleLR(optimizer, 1e-2, 10 * steps)", batch="plan.step()"),
    ),
    "rows_by_epoch": ("was in its warm-up", code_of(ROWS, epoch="plan.step()")),
    "cosine_of_steps_by_epoch": (
        "its schedule of 120 steps counts optimizer steps",
        code_of(
            "plan = LambdaLR(optimizer, lambda i: 0.5 + 0.5 * math.cos(math.pi * i / steps))",
            epoch="plan.step()",
        ),
    ),
    "partial_of_steps_by_epoch": (
        "its schedule of 120 steps counts optimizer steps",
        code_of(PARTIAL.replace("TOTAL", "steps"), epoch="plan.step()"),
    ),
    "partial_of_epochs_by_batch": (
        "the last 83 % of 120 steps",
        code_of(PARTIAL.replace("TOTAL", "20"), batch="plan.step()"),
    ),
    "polynomial_by_batch": (
        "the last 95 % of 120 steps",
        code_of("plan = PolynomialLR(optimizer, epochs)", batch="plan.step()"),
    ),
    "own_rate_by_batch": (
        "the last 95 % of 120 steps",
        code_of("", batch="set_rate(1e-3 * max(0.0, 1 - step / epochs))"),
    ),
    "own_decay_by_batch": (
        "less than a thousandth",
        code_of("", batch="set_rate(optimizer.param_groups[0]['lr'] * 0.9)"),
    ),
    "continued_from_0": (
        "the last 83 % of 120 steps",
        code_of(
            "plan = CosineAnnealingLR(optimizer, 20)",
            batch="plan.step()",
            epoch="plan = CosineAnnealingLR(optimizer, 20)",
        ),
    ),
    "accuracy_is_to_fall": (
        "received a score that rises",
        code_of(PLATEAU.replace("MODE", "'min'"), epoch="plan.step(right / 640)"),
    ),
    "loss_is_to_rise": (
        "received a value that falls",
        code_of(PLATEAU.replace("MODE", "'max'"), epoch="plan.step(train_loss)"),
    ),
}
SOUND = {
    "warmup_by_batch": code_of(
        "plan = LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 50))", batch="plan.step()"
    ),
    "partial_by_batch": code_of(PARTIAL.replace("TOTAL", "steps"), batch="plan.step()"),
    "rows_by_batch": code_of(ROWS, batch="plan.step()"),
    "inverse_root": code_of(
        "plan = LambdaLR(optimizer, lambda i: min((i + 1) ** -0.5, (i + 1) * 40 ** -1.5))",
        batch="plan.step()",
    ),
    "decay_by_epoch": code_of(
        "plan = LambdaLR(optimizer, lambda i: 0.95 ** i)", epoch="plan.step()"
    ),
    "restarts": code_of("plan = CosineAnnealingWarmRestarts(optimizer, 20)", batch="plan.step()"),
    "search_for_a_rate": code_of(
        "plan = LambdaLR(optimizer, lambda i: 10 ** (i / 30 - 3))", batch="plan.step()"
    ),
    "own_rate": code_of("", batch="set_rate(1e-3 * max(0.0, 1 - step / steps))"),
    "loss_on_a_plateau": code_of(PLATEAU.replace("MODE", "'min'"), epoch="plan.step(train_loss)"),
    "validation_loss_that_rises": code_of(
        PLATEAU.replace("MODE", "'min'"), epoch="plan.step([0.4, 0.5, 0.6, 0.7, 0.75, 0.78][epoch])"
    ),
    "accuracy_on_a_plateau": code_of(
        PLATEAU.replace("MODE", "'max'"), epoch="plan.step(right / 640)"
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTY)
def test_a_schedule_out_of_step_is_found(watched: Watched, name: str) -> None:
    words, code = FAULTY[name]
    report = watched(code)
    assert report.watcher_error is None
    found = {finding.fault: finding for finding in report.alarms}[NAME]
    assert words in found.evidence


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_a_schedule_in_step_is_no_alarm(watched: Watched, name: str) -> None:
    report = watched(SOUND[name])
    assert report.watcher_error is None
    assert NAME not in {finding.fault for finding in report.alarms}

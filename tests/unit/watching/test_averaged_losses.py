"""Sums of the losses of a pass, and what a script divides them by."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

START = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 6)
y = x[:, :2] + 0.1 * torch.randn(240, 2)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
adam = torch.optim.Adam(net.parameters(), 1e-2)
data = TensorDataset(x[:160], y[:160])
loader = DataLoader(data, 32, shuffle=True)
val_loader = DataLoader(TensorDataset(x[160:], y[160:]), 16)
mse = nn.MSELoss()
"""
EPOCHS = """
for epoch in range(3):
    for a, b in loader:
        adam.zero_grad()
        mse(net(a), b).backward()
        adam.step()
    net.eval()
    with torch.no_grad():
        val = evaluate(val_loader)
    net.train()
"""
SUM = """
def evaluate(loader):
    total, n = 0.0, 0
    for a, b in loader:
        total += VALUE
        n += len(b)
    return RESULT
"""
OWN = "mse(net(a), b).item()"
OF_TRAINING = """
for epoch in range(2):
    running = 0.0
    for a, b in loader:
        adam.zero_grad()
        loss = mse(net(a), b)
        loss.backward()
        adam.step()
        running += loss.item()
    print(epoch, RESULT)
"""
PHASES = """
loaders = {"train": loader, "val": val_loader}
sets = {phase: one.dataset for phase, one in loaders.items()}
sizes = {phase: len(one) for phase, one in sets.items()}
for epoch in range(3):
    for phase in ("val", "train"):
        net.train(phase == "train")
        running = 0.0
        for a, b in loaders[phase]:
            with torch.set_grad_enabled(phase == "train"):
                loss = mse(net(a), b)
                if phase == "train":
                    adam.zero_grad()
                    loss.backward()
                    adam.step()
            running += VALUE
        if phase == "train":
            print("trained")
        epoch_loss = running / SIZE
"""


def phases(value: str, size: str) -> str:
    return START + PHASES.replace("VALUE", value).replace("SIZE", size)


def evaluated(value: str, result: str) -> str:
    return START + SUM.replace("VALUE", value).replace("RESULT", result) + EPOCHS


def edited(old: str, new: str, result: str = "total / len(loader.dataset)") -> str:
    code = evaluated(OWN, result)
    assert old in code
    return code.replace(old, new)


TOO_SMALL = {
    "the_dataset": evaluated(OWN, "total / len(loader.dataset)"),
    "counted": evaluated(OWN, "total / n"),
    "tensors": evaluated("F.mse_loss(net(a), b)", "(total / len(loader.dataset)).item()"),
    "in_place": edited("return total", "total /= len(loader.dataset)\n    return total", "total"),
    "size_after_the_loop": edited(
        "return total", "size = len(loader.dataset)\n    return total", "total / size"
    ),
    "within_a_context": edited(
        "    for a, b in loader:\n        total += mse(net(a), b).item()\n        n += len(b)\n",
        "    with torch.inference_mode():\n        for a, b in loader:\n"
        "            total += mse(net(a), b).item()\n",
    ),
    "a_list": edited(
        "total += mse(net(a), b).item()",
        "values.append(mse(net(a), b).item())",
        "float(np.sum(values)) / len(loader.dataset)",
    ).replace("total, n = 0.0, 0", "values, n = [], 0"),
    "two_terms": evaluated(
        "(mse(net(a), b) + F.l1_loss(net(a), b)).item()", "total / len(loader.dataset)"
    ),
    "of_training": START + OF_TRAINING.replace("RESULT", "running / len(data)"),
    "of_each_phase": phases("loss.item()", "sizes[phase]"),
    "of_each_dataset": phases("loss.item()", "len(loaders[phase].dataset)"),
    "of_each_dataset_in_a_dict": phases("loss.item()", "len(sets[phase])"),
}
SOUND = {
    "batches": evaluated(OWN, "total / len(loader)"),
    "weighted": evaluated(OWN + " * len(b)", "total / len(loader.dataset)"),
    "weighted_afterwards": evaluated(OWN, "total / len(loader.dataset) * loader.batch_size"),
    "weighted_before": edited(
        "return total", "total *= loader.batch_size\n    return total", "total / n"
    ),
    "weighted_later": evaluated(OWN, "share * 16").replace(
        "    return share", "    share = total / n\n    return share"
    ),
    "sums": evaluated(
        "F.mse_loss(net(a), b, reduction='sum').item()", "total / len(loader.dataset)"
    ),
    "one_by_one": edited(
        "(TensorDataset(x[160:], y[160:]), 16)", "(TensorDataset(x[160:], y[160:]), 1)"
    ),
    "examples_of_a_batch": edited(
        "total += mse(net(a), b).item()",
        "total += sum(F.mse_loss(p, t).item() for p, t in zip(net(a), b))",
    ).replace("y[160:]), 16)", "y[160:]), 4)"),
    "a_rate_of_something_else": evaluated(OWN, "(total / len(loader), n / len(loader.dataset))"),
    "of_training": START + OF_TRAINING.replace("RESULT", "running / len(loader)"),
    "of_each_phase": phases("loss.item()", "len(loaders[phase])"),
    "weighted_in_each_phase": phases("loss.item() * len(b)", "sizes[phase]"),
}


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    return next(one for one in report.findings if one.check == "metric_wrong")


@pytest.mark.parametrize("name", TOO_SMALL)
def test_batch_means_divided_by_the_examples_are_found(watched: Watched, name: str) -> None:
    finding = found(watched(TOO_SMALL[name]))

    assert finding.outcome is Outcome.WARNED
    assert finding.numbers["divisor"] == (160 if name == "of_training" else 80)
    factor = 32 if name == "of_training" else 16
    assert f"too small by a factor of {factor}" in finding.evidence


@pytest.mark.parametrize("name", SOUND)
def test_other_averages_are_not(watched: Watched, name: str) -> None:
    assert found(watched(SOUND[name])).outcome is not Outcome.WARNED


def uneven(num: int, size: int) -> str:
    """Return a program whose held-out examples are so many, in batches of a size."""
    code = evaluated(OWN, "total / len(loader)")
    return code.replace(
        "(x[160:], y[160:]), 16)", f"(x[160:{160 + num}], y[160:{160 + num}]), {size})"
    )


@pytest.mark.parametrize(("num", "size", "is_found"), [(66, 32, True), (60, 16, False)])
def test_a_last_batch_that_weighs_too_much(
    watched: Watched, num: int, size: int, is_found: bool
) -> None:
    finding = found(watched(uneven(num, size)))
    assert (finding.outcome is Outcome.WARNED) is is_found
    if is_found:
        assert "the last one has only 2 of 66 examples" in finding.evidence
        assert "33 % of the average instead of 3 %" in finding.evidence

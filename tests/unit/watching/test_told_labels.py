"""Columns of the inputs that are the label, and what only looks like that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport
from stepladder.watching.hooks import patches
from stepladder.watching.hooks.inputs.pairs import compared
from stepladder.watching.seen.labels import Told

Watched = Callable[..., WatchReport]
NAME = "label_in_inputs"


@pytest.fixture(autouse=True)
def _time_for_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watcher sample whenever it wants, so that its coverage is the same on any machine."""
    monkeypatch.setattr(patches, "_FIRST_S", 60.0)


START = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(800, 9)
y = x[:, :3].argmax(1)
price = 100 + 20 * (x[:, :4].sum(1) + 0.3 * torch.randn(800))
rich = (price > 100).float()
"""
TRAIN = """
net = nn.Sequential(nn.Linear(x.shape[1], 16), nn.ReLU(), nn.Linear(16, {}))
adam = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(80):
    some = torch.randperm(800)[:32]
    adam.zero_grad()
    F.{}(net(x[some]){}, {}[some]).backward()
    adam.step()
"""
CLASSES = TRAIN.format(3, "cross_entropy", "", "y")
VALUES = TRAIN.format(1, "mse_loss", ".squeeze(1)", "price")
BINARY = TRAIN.format(1, "binary_cross_entropy_with_logits", ".squeeze(1)", "rich")

TOLD = {
    "a_class": (
        "x = torch.cat([x, y.unsqueeze(1).float()], 1)" + CLASSES,
        "column 9 of the model's 10 inputs (counted from 0) has a value of its own for each of the "
        "3 classes",
    ),
    "a_scaled_class": (
        "x[:, 2] = (y - y.float().mean()) / y.float().std()" + CLASSES,
        "column 2 of the model's 9 inputs (counted from 0) has a value of its own",
    ),
    "one_column_per_class": (
        "x = torch.cat([F.one_hot(y).float(), x], 1)" + CLASSES,
        "columns 0, 1, 2 of the model's 12 inputs (counted from 0) together have another value for "
        "each of the 3 classes",
    ),
    "the_target": ("x[:, 5] = price" + VALUES, "column 5 of the model's 9 inputs (counted from 0) "
        "is the target itself"),
    "a_normalised_target": (
        "x[:, 5] = (price - price.mean()) / price.std()" + VALUES,
        "is the target times a constant, plus a constant",
    ),
    "a_logarithm_of_the_target": (
        "x[:, 5] = price.clamp(min=1).log()\nprice = price.clamp(min=1)" + VALUES,
        "has exactly the order of the targets",
    ),
    "a_yes_or_no": ("x[:, 5] = rich" + BINARY, "for each of the 2 classes"),
}  # fmt: skip

SOUND = {
    "nothing": CLASSES,
    "a_noisy_copy": "x[:, 5] = price + 0.01 * price.std() * torch.randn(800)" + VALUES,
    "a_class_with_errors": "x[:, 5] = torch.where(torch.rand(800) < 0.02, 1 - rich, rich)" + BINARY,
    "one_class_alone": "x[:, 5] = (y == 1).float()" + CLASSES,
    "two_columns_add_up": "x[:, 5] = price - 7 * x[:, 4]" + VALUES,
    "a_line": "x = torch.randn(800, 1)\nprice = 3 * x[:, 0] + 2" + VALUES,
    "an_autoencoder": TRAIN.format(9, "mse_loss", "", "x"),
    "a_second_loss_reconstructs_a_part": CLASSES.replace(
        "    F.cross",
        "    out = net(x[some])\n    F.mse_loss(out[:, 0], x[some, 4]).backward()\n    F.cross",
    ),
    "a_part_of_the_input_is_the_target": VALUES.replace(
        "    F.mse_loss(net(x[some]).squeeze(1), price[some])",
        "    a = x[some]\n    F.mse_loss(net(a).squeeze(1), a[:, 2])",
    ),
    "the_mode": """
y = (x[:, 0] > 0).long()
x = x[:20].repeat(40, 1)
y = y[:20].repeat(40)
x[:, 5] = y.float()
"""
    + CLASSES,
}


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == NAME]
    return one


@pytest.mark.parametrize("name", TOLD)
def test_a_column_that_is_the_label_is_named(name: str, watched: Watched) -> None:
    code, words = TOLD[name]
    one = found(watched(START + code))
    assert one.outcome is Outcome.WARNED, one.evidence
    assert words in one.evidence
    assert one.where is not None


@pytest.mark.parametrize("name", SOUND)
def test_a_column_that_only_predicts_the_label_is_not(name: str, watched: Watched) -> None:
    one = found(watched(START + SOUND[name]))
    assert one.fault is None, one.evidence


def test_rounding_does_not_hide_a_column() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 5, generator=draw)
    target = 1e4 + 50 * torch.randn(300, generator=draw).double()
    rows[:, 3] = ((target - target.mean()) / target.std()).float()
    seen = compared(rows, target.float().double())
    assert (seen.told, seen.columns) == (Told.AFFINE, (3,))


def test_rows_that_are_not_finite_are_left_out() -> None:
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    rows[3, 1] = torch.nan
    seen = compared(rows, torch.arange(50) % 3)
    assert (seen.num_rows, seen.num_distinct, seen.num_values) == (49, 49, 3)
    assert seen.told is None

"""Variational autoencoders whose two terms are reduced in different ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

CODE = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = (torch.rand(256, 40) < torch.rand(256, 1)).float()
encoder, decoder = nn.Linear(40, 8), nn.Linear(4, 40)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for step in range(20):
    rows = torch.randint(256, (32,))
    mean, log_var = encoder(x[rows]).chunk(2, 1)
    out = decoder(mean + torch.exp(0.5 * log_var) * torch.randn_like(mean))
    {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MEAN = "F.binary_cross_entropy_with_logits(out, x[rows])"
SUM = 'F.binary_cross_entropy_with_logits(out, x[rows], reduction="sum")'
SEPARATE = CODE.replace(
    "encoder(x[rows]).chunk(2, 1)", "encoder(x[rows]), to_log_var(x[rows])"
).replace(
    "encoder, decoder = nn.Linear(40, 8)",
    "encoder, to_log_var, decoder = nn.Linear(40, 4), nn.Linear(40, 4)",
)
DIVERGENCE = "-0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())"
MIXED = {
    "as usual": f"loss = {MEAN} + {DIVERGENCE}",
    "squared error": f"loss = F.mse_loss(out, x[rows]) + {DIVERGENCE}",
    "by hand": f"loss = ((out - x[rows]) ** 2).mean() + {DIVERGENCE}",
    "the other way around": "loss = (mean * mean + log_var.exp() - log_var - 1).sum() / 2"
    f" + {MEAN}",
    "half within": f"loss = {MEAN} + (0.5 * (mean.square() + log_var.exp() - log_var - 1)).sum(1)"
    ".sum()",
}
FITTING = {
    "both are sums": f"loss = {SUM} + {DIVERGENCE}",
    "both by example": f"loss = ({SUM} + {DIVERGENCE}) / 32",
    "a mean by pixel, weighed": f"loss = 1280 * {MEAN} + {DIVERGENCE}",
    "a small factor": f"loss = {MEAN} + 1e-3 * {DIVERGENCE}",
    "a penalty of weights": f"loss = {MEAN} + 0.5 * encoder.weight.square().sum()",
    "both are means": f"loss = {MEAN} - 0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).mean()",
    "an entropy": f"loss = {MEAN} - 1e-2 * log_var.exp().sum()",
}


def alarms(report: WatchReport) -> list[str | None]:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    return [alarm.fault for alarm in report.alarms if alarm.fault == "loss_reduction_mismatch"]


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.filterwarnings("ignore")
def test_a_sum_beside_a_mean_is_found(name: str, watched: Watched) -> None:
    report = watched(SEPARATE.format(loss=MIXED[name]))
    assert alarms(report) == ["loss_reduction_mismatch"]
    (one,) = [alarm for alarm in report.alarms if alarm.fault == "loss_reduction_mismatch"]
    assert "1,280 times its weight" in one.evidence


@pytest.mark.parametrize("name", FITTING)
@pytest.mark.filterwarnings("ignore")
def test_terms_that_fit_are_sound(name: str, watched: Watched) -> None:
    assert alarms(watched(SEPARATE.format(loss=FITTING[name]))) == []


KL = "-0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(1).mean()"
WRONG = {
    "a deviation where a variance is meant": (
        f"loss = {MEAN} - 0.5 * (1 + 2 * log_var - mean**2 - log_var.exp()).sum(1).mean()",
        "u = 0.69 instead of 0",
    ),
    "a variance where a deviation is meant": (
        f"loss = {MEAN} - 0.5 * (1 + log_var - mean**2 - log_var.exp() ** 2).mean()",
        "u = -0.35 instead of 0",
    ),
    "subtracted": (f"loss = {MEAN} - 1e-3 * ({KL})", "it is subtracted"),
    "no minimum": (
        f"loss = {MEAN} - 0.5 * torch.mean(1 + log_var - mean**2 + log_var.exp())",
        "no minimum",
    ),
    "the mean's sign": (
        f"loss = {MEAN} - 0.5 * torch.mean(1 + log_var + mean**2 - log_var.exp())",
        "the square is subtracted",
    ),
    "only the mean is right": (
        f"loss = {MEAN} - 0.5 * torch.mean(1 - log_var - mean**2 + log_var.exp())",
        "away from 1",
    ),
}
RIGHT = {
    "as usual": f"loss = {MEAN} + {KL}",
    "deviations": f"loss = {MEAN}"
    " + (-log_var + 0.5 * (mean**2 + (2 * log_var).exp()) - 0.5).mean()",
    "deviations, squared": f"loss = {MEAN} + (0.5 * (mean * mean + log_var.exp().pow(2))"
    " - log_var).sum(-1).mean()",
    "another prior": f"loss = {MEAN} + 0.5 * ((mean**2 + log_var.exp()) / 9 - log_var).mean()",
    "a likelihood": f"loss = {MEAN} + (log_var + (mean - 1) ** 2 / log_var.exp()).mean()",
    "counts": f"loss = {MEAN} + (log_var.exp() - torch.arange(4) * log_var).mean()"
    " + mean.pow(2).mean()",
}
NAME = "divergence_wrong"


@pytest.mark.parametrize("start", [CODE, SEPARATE], ids=["chunks", "layers"])
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_formula_is_found(name: str, start: str, watched: Watched) -> None:
    code, words = WRONG[name]
    report = watched(start.format(loss=code))
    assert report.watcher_error is None
    (one,) = [alarm for alarm in report.alarms if alarm.fault == NAME]
    assert words in one.evidence
    assert "log_std" in one.fix


@pytest.mark.parametrize("start", [CODE, SEPARATE], ids=["chunks", "layers"])
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.filterwarnings("ignore")
def test_a_right_formula_is_not(name: str, start: str, watched: Watched) -> None:
    report = watched(start.format(loss=RIGHT[name]))
    assert report.watcher_error is None
    assert NAME not in [alarm.fault for alarm in report.alarms]

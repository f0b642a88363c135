"""Focal factors of a mean, and gradient penalties with a norm of each pixel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

FOCAL = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x[:, 0] > 1).long()
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, OUT))
sgd = torch.optim.SGD(net.parameters(), 0.1)
for step in range(60):
    rows = torch.randint(256, (32,))
    LOSS
    sgd.zero_grad()
    loss.backward()
    sgd.step()
"""
CE = "ce = F.cross_entropy(net(x[rows]), y[rows]REDUCTION)"
BCE = "ce = F.binary_cross_entropy_with_logits(net(x[rows])[:, 0], y[rows].float()REDUCTION)"
TAIL = "loss = (0.25 * (1 - torch.exp(-ce)) ** 2 * ce).mean()"
LOGPT = "logpt = -F.cross_entropy(net(x[rows]), y[rows]REDUCTION)"
LOGPT_TAIL = "pt = logpt.exp(); loss = -(((1 - pt) ** 2) * logpt).mean()"
FOCALS = {
    "of_classes": (f"{CE}; {TAIL}", "2"),
    "of_one_logit": (f"{BCE}; {TAIL}", "1"),
    "by_log_probability": (f"{LOGPT}; {LOGPT_TAIL}", "2"),
    "weighted": (f"{CE.replace('y[rows]', 'y[rows], weight=torch.tensor([1., 3.])')}; {TAIL}", "2"),
}
OTHERS = {
    "uncertainty": "ce = F.cross_entropy(net(x[rows]), y[rows]); "
    "loss = torch.exp(-net[0].bias[0]) * ce + net[0].bias[0]",
    "entropy_of_outputs": "p = net(x[rows]).softmax(1); "
    "loss = F.cross_entropy(net(x[rows]), y[rows]) - 0.1 * torch.exp(-p).mean()",
}

PENALTY = """
import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.LeakyReLU(), nn.Flatten(),
                       nn.Linear(512, 1))
adam = torch.optim.Adam(critic.parameters(), 1e-3)
for step in range(40):
    real, fake = torch.randn(8, 3, 8, 8) + 1, torch.randn(8, 3, 8, 8)
    mix = (0.5 * real + 0.5 * fake).requires_grad_(True)
    score = critic(mix)
    grads = torch.autograd.grad(score.sum(), mix, create_graph=True)[0]
    penalty = NORM
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    adam.zero_grad()
    loss.backward()
    adam.step()
"""
BY_PIXEL = {
    "norm": "((grads.norm(2, dim=1) - 1) ** 2).mean()",
    "vector_norm": "((torch.linalg.vector_norm(grads, dim=1) - 1) ** 2).mean()",
    "negative_dimension": "((grads.norm(2, dim=-3) - 1) ** 2).mean()",
}
BY_EXAMPLE = {
    "flattened": "((grads.flatten(1).norm(2, dim=1) - 1) ** 2).mean()",
    "three_dimensions": "((torch.linalg.vector_norm(grads, dim=(1, 2, 3)) - 1) ** 2).mean()",
}


def found(report: WatchReport) -> list[Finding]:
    assert report.watcher_error is None
    return [one for one in report.findings if one.fault == "loss_reduction_mismatch"]


@pytest.mark.parametrize("name", FOCALS)
def test_a_focal_factor_of_a_mean_is_named(name: str, watched: Watched) -> None:
    loss, num = FOCALS[name]
    code = FOCAL.replace("LOSS", loss).replace("OUT", num)
    (one,) = found(watched(code.replace("REDUCTION", "")))
    assert "already the mean" in one.evidence
    assert 'reduction="none"' in one.fix
    assert found(watched(code.replace("REDUCTION", ", reduction='none'"))) == []


@pytest.mark.parametrize("name", OTHERS)
def test_other_exponentials_are_sound(name: str, watched: Watched) -> None:
    assert found(watched(FOCAL.replace("LOSS", OTHERS[name]).replace("OUT", "2"))) == []


@pytest.mark.parametrize("name", BY_PIXEL)
def test_a_norm_of_each_pixel_is_named(name: str, watched: Watched) -> None:
    (one,) = found(watched(PENALTY.replace("NORM", BY_PIXEL[name])))
    assert "64 pixels" in one.evidence


@pytest.mark.parametrize("name", BY_EXAMPLE)
def test_a_norm_of_each_example_is_sound(name: str, watched: Watched) -> None:
    assert found(watched(PENALTY.replace("NORM", BY_EXAMPLE[name]))) == []

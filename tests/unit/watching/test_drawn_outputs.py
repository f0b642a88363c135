"""Dropout that is on to draw several outputs for one input."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

CODE = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
adam = torch.optim.Adam(net.parameters(), 0.01)
val = torch.randn(64, 4)
for step in range(200):
    x = torch.randn(32, 4)
    adam.zero_grad()
    (net(x)[:, 0] - x[:, 0]).square().mean().backward()
    adam.step()
    if step % 50 == 49:
        with torch.no_grad():
            outputs = [net(GIVEN) for _ in range(NUM)]
"""


@pytest.mark.parametrize(("given", "num"), [("val", 1), ("torch.randn(64, 4)", 8)])
def test_an_evaluation_in_training_mode_is_named(given: str, num: int, watched: Watched) -> None:
    report = watched(CODE.replace("GIVEN", given).replace("NUM", str(num)))
    assert report.watcher_error is None
    assert "train_mode_in_validation" in [one.fault for one in report.findings]


def test_several_outputs_for_one_input_are_drawn_on_purpose(watched: Watched) -> None:
    report = watched(CODE.replace("GIVEN", "val").replace("NUM", "8"))
    assert report.watcher_error is None
    assert "train_mode_in_validation" not in [one.fault for one in report.findings]

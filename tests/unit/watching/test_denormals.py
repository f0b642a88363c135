"""Denormal floats, with which products are slow; times are given, never measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stepladder.records.watch import PhaseTime, WatchReport
from stepladder.watching.advice import next_step
from stepladder.watching.hooks.costs import denormals
from stepladder.watching.seen.costs import DenormalsSeen
from stepladder.watching.seen.seen import Seen

Watched = Callable[..., WatchReport]

CODE = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)

class Scaled(nn.Module):
    def forward(self, x):
        return x * 1.0

x = torch.randn(512, 64)
y = x[:, :1].clone()
model = nn.Sequential(Scaled(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(60):
    rows = torch.randint(512, (64,))
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
"""
SLOW = {
    "inputs": (("y = x", "x[:, ::3] = 1e-40\ny = x"), "layers receive"),
    "within the model": (("x * 1.0", "torch.where(x < -1, x * 1e-41, x)"), "layers receive"),
    "gradients": (
        ("    optimizer.step()", "    model[1].weight.grad[::2] = 1e-41\n    optimizer.step()"),
        "of gradients",
    ),
}
SOUND = {
    "zeros": ("y = x", "x[:, ::3] = 0\ny = x"),
    "small but normal": ("y = x", "x[:, ::3] = 1e-30\ny = x"),
    "only without gradients": (
        "    optimizer.zero_grad()",
        "    with torch.no_grad():\n        model(x * 1e-41)\n    optimizer.zero_grad()",
    ),
}


def test_denormal_numbers_are_counted_by_their_bits() -> None:
    values = torch.tensor([0.0, -0.0, 1e-40, -1e-45, 1.2e-38, 1.0, float("inf"), float("nan")])
    assert denormals.share_of_denormals(values) == 2 / 8


def test_a_product_is_timed_with_the_values_and_without_the_denormal_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[list[float]] = []
    monkeypatch.setattr(
        denormals, "_time", lambda values, _out: given.append(values.tolist()) or len(given)
    )
    values = torch.tensor([1e-40, 2.0])
    kept = values.tolist()
    assert denormals.times_of(values) == (1, 2)
    assert given[:2] == [kept, [0.0, 2.0]]
    assert values.tolist() == kept


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products with denormal numbers take ten times as long."""
    monkeypatch.setattr(denormals, "times_of", lambda _values: (1e-4, 1e-5))


@pytest.mark.usefixtures("slow")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SLOW)
def test_denormal_values_are_named(name: str, watched: Watched) -> None:
    (old, new), words = SLOW[name]
    assert old in CODE
    report = watched(CODE.replace(old, new))
    assert report.watcher_error is None
    steps = [one for one in (report.next, *report.others) if one is not None]
    (one,) = [step for step in steps if step.rung == "flush_denormals"]
    assert words in one.text
    assert "10.0 times as long" in one.text


@pytest.mark.usefixtures("slow")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_other_small_values_are_not(name: str, watched: Watched) -> None:
    old, new = SOUND[name]
    assert old in CODE
    report = watched(CODE.replace(old, new))
    steps = [one for one in (report.next, *report.others) if one is not None]
    assert "flush_denormals" not in [step.rung for step in steps]


@pytest.mark.parametrize(("slow_s", "is_named"), [(1.0, True), (0.11, False)])
def test_a_processor_that_is_as_fast_with_them_is_no_cause(slow_s: float, is_named: bool) -> None:
    shares = {"forward": 0.4, "backward": 0.4, "optimizer": 0.2}
    times = [PhaseTime(name=name, total_s=share, share=share) for name, share in shares.items()]
    seen = Seen()
    seen.costs.computed = DenormalsSeen(
        num=2000, num_denormal=100, num_tensors=1, num_timed=1000, slow_s=slow_s, fast_s=0.1
    )
    found = next_step(times, 100, {"device": "cpu"}, seen=seen)
    steps = [one for one in (found.next, *found.others) if one is not None]
    named = [one for one in steps if one.rung == "flush_denormals"]
    assert bool(named) is is_named
    if named:  # 1.1 s instead of 0.2 s: the other half of the values is as fast as the first
        assert named[0].gain == pytest.approx(1 / (1 - 0.8 * (1 - 0.2 / 1.1)))


def test_denormal_moments_come_before_a_fused_optimizer() -> None:
    shares = {"forward": 0.2, "backward": 0.1, "optimizer": 0.7}
    times = [PhaseTime(name=name, total_s=share, share=share) for name, share in shares.items()]
    seen = Seen()
    facts = {"device": "cpu", "fused": False}
    assert (before := next_step(times, 100, facts, seen=seen).next) is not None
    seen.costs.updated = DenormalsSeen(
        num=2000, num_denormal=600, num_tensors=1, num_timed=2000, slow_s=2.0, fast_s=0.1
    )
    assert (now := next_step(times, 100, facts, seen=seen).next) is not None
    assert (before.rung, now.rung) == ("fused_optimizer", "flush_denormals")

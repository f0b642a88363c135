"""Gradients that are clipped when no step can use it, and limits that nearly all exceed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x[:, :2].sum(1, keepdim=True)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
for step in range(40):
    rows = torch.randint(256, (32,))
"""

SOUND_STEP = """
optimizer.zero_grad()
F.mse_loss(net(x[rows]), y[rows]).backward()
clip_grad_norm_(net.parameters(), 0.5)
optimizer.step()
"""
LATE = {
    "after_the_step": """
optimizer.zero_grad()
F.mse_loss(net(x[rows]), y[rows]).backward()
optimizer.step()
clip_grad_norm_(net.parameters(), 0.05)
""",
    "by_value": """
optimizer.zero_grad()
F.mse_loss(net(x[rows]), y[rows]).backward()
optimizer.step()
clip_grad_value_(net.parameters(), clip_value=1e-3)
""",
    "cleared_in_place": """
loss = F.mse_loss(net(x[rows]), y[rows])
optimizer.zero_grad(set_to_none=False)
loss.backward()
optimizer.step()
nn.utils.clip_grad_norm_(list(net.parameters()), max_norm=0.05)
""",
    "training_diverges_without_it": """
optimizer.zero_grad()
(1e30 * F.mse_loss(net(x[rows]), y[rows])).backward()
optimizer.step()
clip_grad_norm_(net.parameters(), 1e35)
""",
    "before_the_next_backward": """
loss = F.mse_loss(net(x[rows]), y[rows])
if step:
    clip_grad_norm_(net.parameters(), 0.05)
optimizer.zero_grad()
loss.backward()
optimizer.step()
""",
}
EARLY = {
    "after_clearing": """
loss = F.mse_loss(net(x[rows]), y[rows])
optimizer.zero_grad()
clip_grad_norm_(net.parameters(), 0.5)
loss.backward()
optimizer.step()
""",
    "by_value": """
optimizer.zero_grad(set_to_none=False)
if step:
    clip_grad_value_(net.parameters(), 0.1)
F.mse_loss(net(x[rows]), y[rows]).backward()
optimizer.step()
""",
}
SOUND = {
    "in_time": SOUND_STEP,
    "only_measured": """
optimizer.zero_grad()
F.mse_loss(net(x[rows]), y[rows]).backward()
optimizer.step()
norm = clip_grad_norm_(net.parameters(), float("inf"))
""",
    "gradients_carried_over": """
for p in net.parameters():
    if p.grad is not None:
        p.grad.mul_(0.5)
F.mse_loss(net(x[rows]), y[rows]).backward()
optimizer.step()
clip_grad_norm_(net.parameters(), 0.05)
""",
    "gradients_by_hand": """
grads = torch.autograd.grad(F.mse_loss(net(x[rows]), y[rows]), list(net.parameters()))
for p, g in zip(net.parameters(), grads):
    p.grad = g
clip_grad_norm_(net.parameters(), 0.5)
optimizer.step()
""",
    "two_optimizers_one_backward": """
if step == 0:
    head = torch.optim.SGD(net[2].parameters(), lr=0.02)
    body = torch.optim.SGD(net[0].parameters(), lr=0.02)
head.zero_grad(), body.zero_grad()
F.mse_loss(net(x[rows]), y[rows]).backward()
head.step()
clip_grad_norm_(net.parameters(), 0.05)
body.step()
""",
    "a_closure": """
def closure():
    lbfgs.zero_grad()
    loss = F.mse_loss(net(x[rows]), y[rows])
    loss.backward()
    clip_grad_norm_(net.parameters(), 0.5)
    return loss
if step == 0:
    lbfgs = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2)
lbfgs.step(closure)
""",
    "a_second_call_for_the_log": """
optimizer.zero_grad()
F.mse_loss(net(x[rows]), y[rows]).backward()
clip_grad_norm_(net.parameters(), 0.5)
optimizer.step()
norm = clip_grad_norm_(net.parameters(), 0.05)
""",
}


def script(step: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in step.strip().splitlines())


@pytest.mark.parametrize("name", LATE)
@pytest.mark.filterwarnings("ignore")
def test_clipping_after_the_step_is_an_error(name: str, watched: Watched) -> None:
    report = watched(script(LATE[name]))
    assert report.watcher_error is None
    (one,) = [a for a in report.alarms if (a.fault or "").startswith("clipping")]
    assert (one.fault, one.outcome) == ("clipping_without_effect", Outcome.FAILED)
    assert "only after optimizer.step()" in one.evidence


@pytest.mark.filterwarnings("ignore")
def test_late_clipping_of_a_rare_large_gradient_is_a_warning(watched: Watched) -> None:
    step = LATE["after_the_step"].replace("0.05", "50")
    step = step.replace("y[rows])", "y[rows] + 100.0 * (step == 30))")
    report = watched(script(step))
    (one,) = [a for a in report.alarms if a.fault == "clipping_without_effect"]
    assert one.outcome is Outcome.WARNED
    assert "% of the norms exceed" in one.evidence


@pytest.mark.parametrize("name", EARLY)
@pytest.mark.filterwarnings("ignore")
def test_clipping_before_backward_is_a_warning(name: str, watched: Watched) -> None:
    report = watched(script(EARLY[name]))
    (one,) = [a for a in report.alarms if (a.fault or "").startswith("clipping")]
    assert (one.fault, one.outcome) == ("clipping_without_effect", Outcome.WARNED)
    assert "nothing to clip" in one.evidence


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.filterwarnings("ignore")
def test_clipping_that_steps_use_is_sound(name: str, watched: Watched) -> None:
    report = watched(script(SOUND[name]))
    assert report.watcher_error is None
    assert "clipping_without_effect" not in [alarm.fault for alarm in report.alarms]


@pytest.mark.parametrize("outliers", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_a_limit_below_most_norms_is_a_note_if_some_are_far_larger(
    outliers: bool, watched: Watched
) -> None:
    step = SOUND_STEP.replace("0.5", "1e-3")
    if outliers:
        step = step.replace("y[rows])", "y[rows] + 100.0 * (step % 8 == 7))")
    report = watched(script(step))
    (one,) = [f for f in report.findings if f.fault == "clipping_always_active"]
    assert one.outcome is (Outcome.PASSED if outliers else Outcome.WARNED)
    assert "40 steps" in one.evidence


@pytest.mark.filterwarnings("ignore")
def test_a_limit_not_far_below_most_norms_is_a_note(watched: Watched) -> None:
    """Many recipes give all steps the same length in this way."""
    report = watched(script(SOUND_STEP))  # the norms are about five times the limit
    (one,) = [f for f in report.findings if f.check == "clipping_always_active"]
    assert one.outcome is Outcome.PASSED

"""Terms of a loss that reach only weights of an optimizer that does not use their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

CODE = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
judge = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
of_maker = torch.optim.Adam(maker.parameters(), 1e-3)
of_judge = torch.optim.Adam(judge.parameters(), 1e-3)

def judged(x, is_real):
    return F.binary_cross_entropy_with_logits(judge(x), torch.full((len(x), 1), float(is_real)))

for step in range(120):
    z, real = torch.randn(32, 4), torch.randn(32, 6)
    fake = maker(z)
    loss = judged(real, 1) + judged(fake.detach(), 0)
    of_judge.zero_grad()
    loss.backward()
    of_judge.step()
    SECOND
    of_maker.zero_grad()
    total.backward()
    of_maker.step()
"""
LOST = {
    "detached": "total = judged(fake.detach(), 1) + 0.3 * F.l1_loss(fake, real)",
    "as_data": "total = F.l1_loss(fake, real) + judged(fake.data, 1)",
    "no_graph": "with torch.no_grad(): made = maker(z)\n"
    "    total = 0.5 * judged(made, 1) + F.mse_loss(fake, real)",
}
SOUND = {
    "joined": "total = judged(fake, 1) + 0.3 * F.l1_loss(fake, real)",
    "one_term": "total = judged(fake, 1)",
    "with_a_penalty": "total = judged(fake, 1) + 1e-4 * maker[0].weight.pow(2).sum()",
}
BOTH = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
one, two = nn.Linear(4, 3), nn.Linear(4, 2)
first = torch.optim.Adam(one.parameters(), 1e-2)
second = torch.optim.SGD(two.parameters(), 1e-2)
for step in range(120):
    x = torch.randn(32, 4)
    loss = F.cross_entropy(one(x), x[:, :3].argmax(1)) + F.mse_loss(two(x), x[:, :2])
    first.zero_grad()
    SECOND
    loss.backward()
    first.step()
    STEP
"""


def found(report: WatchReport) -> list[Finding]:
    assert report.watcher_error is None
    return [one for one in report.findings if one.fault == "loss_term_lost"]


@pytest.mark.parametrize("name", LOST)
def test_a_term_that_trains_only_the_other_network_is_named(name: str, watched: Watched) -> None:
    (one,) = found(watched(CODE.replace("SECOND", LOST[name])))
    assert "judged" in one.evidence or "binary_cross_entropy" in one.evidence.lower()


@pytest.mark.parametrize("name", SOUND)
def test_terms_that_reach_the_stepped_network_are_sound(name: str, watched: Watched) -> None:
    assert found(watched(CODE.replace("SECOND", SOUND[name]))) == []


def test_a_sum_of_which_each_optimizer_trains_a_term_is_sound(watched: Watched) -> None:
    code = BOTH.replace("SECOND", "second.zero_grad()").replace("STEP", "second.step()")
    assert found(watched(code)) == []


def test_gradients_that_a_later_step_uses_are_not_lost(watched: Watched) -> None:
    code = BOTH.replace("SECOND", "").replace(
        "STEP", "if step % 4 == 3:\n        second.step()\n        second.zero_grad()"
    )
    assert found(watched(code)) == []

"""Log-likelihoods that a script picks itself, from a softmax over the classes or over the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

POLICY = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
adam = torch.optim.Adam(net.parameters(), 1e-2)
for episode in range(12):
    n = 10
    states, actions = torch.randn(n, 6), torch.randint(4, (n,))
    gains = torch.randn(n)
    probs = net(states).softmax(DIM)
    loss = -(PICKED * gains).sum()
    adam.zero_grad()
    loss.backward()
    adam.step()
"""
PICKED = {
    "gathered": "torch.log(probs.gather(1, actions[:, None]).squeeze(1) + 1e-8)",
    "by_index": "probs[torch.arange(n), actions].log()",
    "from_logarithms": "probs.clamp(min=1e-8).log()[torch.arange(n), actions]",
    "one_hot": "(probs * F.one_hot(actions, 4)).sum(1).log()",
    "one_hot_of_logarithms": "(F.one_hot(actions, 4) * probs.log()).sum(dim=-1)",
    "a_distribution": "Categorical(probs).log_prob(actions)",
}
SOUND = {
    "classes_come_first": POLICY.replace(
        "PICKED", "probs.gather(0, actions[None])[0].log()"
    ).replace("net(states).softmax(DIM)", "net(states).t().softmax(0)"),
    "the_best_example_of_each_class": POLICY.replace(
        "PICKED * gains", "probs[actions[:4], torch.arange(4)].log() * gains[:4]"
    ).replace("DIM", "0"),
    "shares_of_attention": POLICY.replace(
        "PICKED", "probs.gather(1, actions[:, None])[:, 0]"
    ).replace("DIM", "0"),
    "texts_without_pictures": POLICY.replace(
        "PICKED * gains", "probs[torch.arange(n), actions + 2].log()"
    )
    .replace("net(states).softmax(DIM)", "(5 * net(states) @ other(texts).t()).softmax(0)")
    .replace("    n = 10", "    texts = torch.randn(20, 6)\n    n = 10")
    .replace("adam =", "other = nn.Linear(6, 4)\nadam ="),
    "a_table_of_parameters": POLICY.replace("PICKED", "probs[torch.arange(9), actions[:9]].log()")
    .replace("* gains", "* gains[:9]")
    .replace("net(states).softmax(DIM)", "table.softmax(0)")
    .replace("net.parameters()", "[table]")
    .replace("adam =", "table = nn.Parameter(torch.randn(9, 4))\nadam ="),
}


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    return next(one for one in report.findings if one.check == "softmax_wrong_dim")


@pytest.mark.parametrize("name", PICKED)
def test_a_softmax_over_the_batch_is_found(watched: Watched, name: str) -> None:
    code = POLICY.replace("PICKED", PICKED[name])

    finding = found(watched(code.replace("DIM", "0")))
    assert finding.outcome is Outcome.WARNED
    assert "over dimension 0 of (10, 4)" in finding.evidence
    assert found(watched(code.replace("DIM", "1"))).outcome is not Outcome.WARNED


@pytest.mark.parametrize("name", SOUND)
def test_another_one_over_the_first_dimension_is_not(watched: Watched, name: str) -> None:
    assert found(watched(SOUND[name])).outcome is not Outcome.WARNED

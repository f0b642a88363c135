"""Weights of examples that broadcasting multiplies with all examples, and what resembles that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]
NAME = "target_broadcast"

PROGRAM = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal

torch.manual_seed(0)
body, policy, critic = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 1)
weights = [*body.parameters(), *policy.parameters(), *critic.parameters()]
adam = torch.optim.Adam(weights, 1e-2)
for step in range(12):
    states = torch.randn(32, 6)
    returns = states[:, 0] + 0.3 * torch.randn(32)
    hidden = body(states).tanh()
    logits, values = policy(hidden), critic(hidden)
    chosen = Categorical(logits=logits)
    actions = chosen.sample()
    log_probs = chosen.log_prob(actions)
    value_loss = F.mse_loss(values.squeeze(1), returns)
    LINES
    adam.zero_grad()
    (loss + 0.5 * value_loss - 0.01 * chosen.entropy().mean()).backward()
    adam.step()
"""

PAIRED = {
    "beside_a_sum_of_many_terms": """
    bonus = sum(chosen.entropy()[i] for i in range(32))
    loss = -(log_probs * (returns[:, None] - values.detach())).mean() - 1e-3 * bonus
""",
    "an_advantage": """
    advantages = returns - values.detach()
    picked = F.log_softmax(logits, 1)[range(32), actions]
    loss = -(advantages * picked).mean()
""",
    "a_normalised_advantage": """
    advantages = returns - values.detach()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    loss = -(log_probs * advantages).sum() / 32
""",
    "a_column_of_log_probabilities": """
    picked = logits.log_softmax(1).gather(1, actions[:, None])
    loss = (-picked * (returns - values.squeeze(1).detach())).mean()
""",
    "a_column_of_advantages": """
    advantages = returns[:, None] - values.detach()
    loss = -(log_probs * advantages).mean()
""",
    "a_clipped_ratio": """
    ratio = (log_probs - log_probs.detach() + 0.1 * torch.randn(32)).exp()
    advantages = returns[:, None] - values.detach()
    loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
""",
    "weights_of_examples": """
    importance = torch.rand(32, 1)
    loss = (F.cross_entropy(logits, actions, reduction="none") * importance).mean()
""",
    "both_learned": """
    picked = logits.log_softmax(1).gather(1, actions[:, None])
    loss = -(picked * (returns - values.squeeze(1))).mean()
""",
}
SOUND = {
    "equal_shapes": """
    loss = -(log_probs * (returns - values.squeeze(1).detach())).mean()
""",
    "columns": """
    picked = logits.log_softmax(1).gather(1, actions[:, None])
    loss = -(picked * (returns[:, None] - values.detach())).mean()
""",
    "one_baseline": """
    loss = -(log_probs * (returns - values.detach().mean())).mean()
""",
    "pairs_of_returns": """
    loss = -(log_probs * (returns - returns[:, None])).mean()
""",
    "discounts": """
    steps = torch.arange(32)
    ahead = (steps[None] - steps[:, None]).clamp(min=0)
    after = torch.triu(0.9 ** ahead.float()) * returns
    loss = -(log_probs[:, None] * after).sum(1).mean()
""",
    "pairs_on_purpose": """
    closeness = 1 / (1 + torch.cdist(states, states))
    loss = (values * closeness * values.squeeze(1)).mean() - log_probs.mean()
""",
    "a_ranking": """
    margins = (values - values.squeeze(1)) * (returns[:, None] - returns).sign()
    loss = F.relu(0.1 - margins).mean() - log_probs.mean()
""",
    "several_actions": """
    many = Normal(values, 1.0)
    drawn = many.sample((5,)).squeeze(2)
    loss = -(many.log_prob(drawn.T).sum(1) * returns).mean()
""",
}


def code(lines: str) -> str:
    return PROGRAM.replace("    LINES\n", lines.lstrip("\n"))


@pytest.mark.parametrize("name", PAIRED)
def test_weights_of_all_pairs_are_found(name: str, watched: Watched) -> None:
    program = code(PAIRED[name])
    report = watched(program)
    assert report.watcher_error is None
    assert report.exit_code == 0
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault == NAME, found.evidence
    assert "each example is weighted by all others" in found.evidence
    assert "broadcast" in found.evidence
    line = next(i for i, text in enumerate(program.splitlines(), 1) if ".backward()" in text)
    assert found.where == f"snippet.py:{line}"


@pytest.mark.parametrize("name", SOUND)
def test_weights_of_each_example_are_sound(name: str, watched: Watched) -> None:
    report = watched(code(SOUND[name]))
    assert report.watcher_error is None
    assert report.exit_code == 0
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault is None, found.evidence

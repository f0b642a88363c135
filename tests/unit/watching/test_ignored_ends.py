"""Targets of Q-learning that ignore where episodes end, and what only resembles that."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport
from stepladder.watching.script.bootstraps import ignored_ends

Watched = Callable[..., WatchReport]
NAME = "terminal_states_ignored"

PROGRAM = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
gamma = 0.9
q, target = nn.Linear(4, 2), nn.Linear(4, 2)
adam = torch.optim.Adam(q.parameters(), 1e-3)
def sample():
    return (
        torch.randn(32, 4), torch.randint(2, (32,)), torch.randn(32), torch.randn(32, 4),
        torch.rand(32) < SHARE,
    )
def learn():
    state, action, reward, next_state, done = sample()
    BEFORE
    taken = q(state).gather(1, action.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        value = target(next_state).max(1).values
        goal = GOAL
    loss = F.smooth_l1_loss(taken, goal)
    adam.zero_grad()
    loss.backward()
    adam.step()
for step in range(6):
    learn()
"""
GOAL = "reward + gamma * value"

IGNORED = {
    "a_target": ("", GOAL),
    "converted_ends": ("reward, done = reward.float(), done.float()", GOAL),
    "ends_that_are_turned_round": ("goes = 1 - done.float()", "reward + value * gamma"),
    "a_number": ("", "reward + 0.99 * value"),
}
USED = {
    "a_factor": ("", "reward + gamma * value * (1 - done.float())"),
    "another_name": ("goes = 1 - done.float()", "reward + gamma * value * goes"),
    "values_that_are_set": ("", "reward + gamma * value.masked_fill(done, 0.0)"),
    "a_discount_of_each": ("discount = gamma * ~done", "reward + discount * value"),
    "no_next_value": ("", "reward + gamma * taken"),
}


def code(before: str, goal: str, share: float = 0.2) -> str:
    return PROGRAM.replace("BEFORE", before).replace("GOAL", goal).replace("SHARE", str(share))


@pytest.mark.parametrize("name", IGNORED)
def test_a_target_that_ignores_the_end_is_found(name: str, watched: Watched) -> None:
    program = code(*IGNORED[name])
    report = watched(program)
    assert report.watcher_error is None
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault == NAME, found.evidence
    assert "done is received with each transition and never used" in found.evidence
    line = next(i for i, text in enumerate(program.splitlines(), 1) if "goal = " in text)
    assert found.where == f"snippet.py:{line}"


@pytest.mark.parametrize("name", USED)
def test_targets_that_use_the_end_are_sound(name: str, watched: Watched) -> None:
    report = watched(code(*USED[name]))
    assert report.watcher_error is None
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault is None, found.evidence


def test_a_task_without_an_end_is_sound(watched: Watched) -> None:
    report = watched(code("", GOAL, share=-1.0))
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault is None, found.evidence


TUTORIAL = """
def optimize(batch, policy, target, optimizer):
    states, actions, rewards, next_states, dones = zip(*batch)
    kept = torch.tensor([s is not None for s in next_states])
    values = torch.zeros(len(batch))
    values[kept] = target(torch.cat([s for s in next_states if s is not None])).max(1).values
    goal = torch.tensor(rewards) + GAMMA * values
    F.mse_loss(policy(states), goal).backward()
"""
RETURNS = """
def finish(episode, policy):
    value, returns = 0.0, []
    for state, reward, next_state, done in reversed(episode):
        value = reward + gamma * value
        returns.append(value)
    (-policy(returns)).backward()
"""
STEPS = """
for step in range(100):
    next_state, reward, done, info = env.step(action)
    loss = (reward + gamma * q(next_state).max() - q(state)).square()
    loss.backward()
    if done:
        state = env.reset()
"""
LOSS = """
class Agent:
    def loss(self, states, actions, rewards, next_states, dones):
        with torch.no_grad():
            best = self.target(next_states).max(1)[0]
        return F.mse_loss(self.net(states), rewards.unsqueeze(1) + self.gamma * best)
    def learn(self):
        loss = self.loss(*self.memory.sample())
        loss.backward()
"""


@pytest.mark.parametrize("text", [TUTORIAL, RETURNS, STEPS], ids=["tutorial", "returns", "steps"])
def test_other_ways_to_end_an_episode_are_sound(text: str) -> None:
    line = next(i for i, one in enumerate(text.splitlines(), 1) if "backward" in one)
    assert ignored_ends(ast.parse(text), [line]) == []


def test_the_function_of_the_loss_is_read_as_well() -> None:
    (found,) = ignored_ends(ast.parse(LOSS), [9])
    assert (found.function, found.name, found.line) == ("loss", "dones", 6)


def test_names_of_one_letter(watched: Watched) -> None:
    program = code("", "r + gamma * value")
    for word, letter in (("next_state", "s2"), ("state", "s"), ("reward", "r"), ("done", "d")):
        program = program.replace(word, letter)
    found = {one.check: one for one in watched(program).findings}[NAME]
    assert found.fault == NAME, found.evidence
    assert "d is received with each transition and never used" in found.evidence

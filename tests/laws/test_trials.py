"""Verdicts are stable: a rung that changes nothing is not kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from stepladder.config.options import LadderConfig
from stepladder.ladder.lab import Lab
from stepladder.ladder.timing.interleaved_blocks import Race, Side
from stepladder.ladder.timing.speedup import Length, bound_gain
from stepladder.ladder.verdict import Evidence, judge
from stepladder.measuring.blocks.workload import BlockTimes, Workload
from stepladder.records.ladder import Aim, Decision, Exactness
from stepladder.records.profile import TrainingTime

OPTIONS = LadderConfig()
TRIALS = 500
LENGTH = Length(epochs=1, num_validations=0)


@dataclass
class Machine:
    """A machine with drift, autocorrelated over about ten blocks, and noise."""

    random: np.random.Generator
    drift: float
    noise: float
    load: float = 0.0

    def seconds(self) -> float:
        self.load = 0.9 * self.load + self.random.normal(0, self.drift)
        return math.exp(self.load + self.random.normal(0, self.noise))


@dataclass(eq=False)
class Simulated:
    """A recipe whose blocks take the simulated time."""

    machine: Machine
    gain: float
    planned_s: float = 0.0

    def block(self, min_s: float, *, like: BlockTimes | None = None) -> BlockTimes:
        step_s = self.machine.seconds() / self.gain
        return BlockTimes(step_s=step_s, num_steps=1, validation_s=0.0, wall_s=step_s)


class Raced(Race):
    """A real race of simulated recipes."""

    def __init__(self, machine: Machine, gain: float) -> None:
        self.block_s, self.is_cut, self._pair = 0.1, False, 0
        self._has_same_features, self._patience = False, None
        self._time_left = lambda: math.inf
        self._watchdog = SimpleNamespace(expect=lambda _: None)
        self.before = cast("Workload", Simulated(machine, 1.0))
        self.after = cast("Workload", Simulated(machine, gain))


def total(block: BlockTimes) -> TrainingTime:
    return TrainingTime(epochs=1, steps_per_epoch=1, step_s=block.step_s)


def decide(random: np.random.Generator, *, gain: float, drift: float, noise: float) -> Decision:
    """Decide a trial with the real race, bounds and verdict."""
    race = Raced(Machine(random, drift, noise), gain)
    lab = SimpleNamespace(job=SimpleNamespace(ladder=OPTIONS), allowed_s=lambda _: math.inf)
    sides = Side(race.before, total), Side(race.after, total)
    speed = bound_gain(cast("Lab", lab), race, sides, (LENGTH, LENGTH))
    evidence = Evidence(aim=Aim.TIME, exactness=Exactness.ROUNDING, speed=speed)
    return judge(evidence, OPTIONS).decision


@pytest.mark.parametrize("noise", [0.003, 0.02, 0.1])
@pytest.mark.parametrize("drift", [0.0, 0.02, 0.1])
def test_a_change_of_nothing_is_kept_in_five_of_a_hundred_trials_whatever_the_noise(
    noise: float, drift: float
) -> None:
    random = np.random.default_rng(11)
    decisions = [decide(random, gain=1.0, drift=drift, noise=noise) for _ in range(TRIALS)]
    by_chance = 2 * math.sqrt(0.05 * 0.95 * TRIALS)  # two standard errors of a count at 5 %
    assert decisions.count(Decision.KEPT) <= 0.05 * TRIALS + by_chance


def test_at_the_noise_of_a_shared_machine_a_change_of_nothing_is_hardly_ever_kept() -> None:
    random = np.random.default_rng(12)
    decisions = [decide(random, gain=1.0, drift=0.03, noise=0.03) for _ in range(TRIALS)]
    assert decisions.count(Decision.KEPT) <= 0.05 * TRIALS


def test_testing_twice_costs_confidence_in_both_tests() -> None:
    random = np.random.default_rng(14)
    race = Raced(Machine(random, 0.0, 0.02), 1.0)
    ladder = SimpleNamespace(ladder=OPTIONS)
    for most_s, confidence in ((math.inf, 0.975), (0.0, 0.95)):
        lab = cast("Lab", SimpleNamespace(job=ladder, allowed_s=lambda _, s=most_s: s))
        sides = Side(race.before, total), Side(race.after, total)
        assert bound_gain(lab, race, sides, (LENGTH, LENGTH)).confidence == confidence


def test_a_true_gain_of_a_tenth_is_hardly_ever_dropped() -> None:
    random = np.random.default_rng(13)
    decisions = [decide(random, gain=1.1, drift=0.02, noise=0.02) for _ in range(TRIALS // 2)]
    assert decisions.count(Decision.DROPPED) <= 0.01 * len(decisions)
    assert decisions.count(Decision.KEPT) >= 0.9 * len(decisions)

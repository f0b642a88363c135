"""Verdicts hold still: a rung that changes nothing is not kept."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepladder.config.options import LadderConfig
from stepladder.ladder.race import PILOT_PAIRS, wanted_blocks
from stepladder.ladder.verdict import Evidence, judge
from stepladder.records.ladder import Aim, Decision, Exactness
from stepladder.stats import combined_speedup

OPTIONS = LadderConfig()
TRIALS = 1000


def noisy_blocks(
    random: np.random.Generator, *, gain: float, drift: float, noise: float, num: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw pairs of block times in ABBA order: a machine that drifts, and noise of its own."""
    steps = random.normal(0, drift, size=2 * num)
    load = np.zeros(2 * num)
    for idx in range(1, 2 * num):
        load[idx] = 0.9 * load[idx - 1] + steps[idx]  # autocorrelated over some ten blocks
    load += random.normal(0, noise, size=2 * num)
    pairs = load.reshape(num, 2)
    is_swapped = np.arange(num) % 2 == 1
    before = np.where(is_swapped, pairs[:, 1], pairs[:, 0])
    after = np.where(is_swapped, pairs[:, 0], pairs[:, 1])
    return np.exp(before), np.exp(after) / gain


def decide(random: np.random.Generator, **kind: float) -> Decision:
    """Decide a trial as `measure_speed` does: a pilot, its number of blocks, one extension."""
    before, after = noisy_blocks(random, num=2 * 16, **kind)
    num = wanted_blocks(
        tuple(before[:PILOT_PAIRS]),
        tuple(after[:PILOT_PAIRS]),
        at_least=OPTIONS.num_blocks,
        confidence=0.975,
    )
    decision = Decision.UNDECIDED
    for blocks in (num, 2 * num):
        speed = combined_speedup((before[:blocks], after[:blocks]), None, confidence=0.975)
        evidence = Evidence(aim=Aim.TIME, exactness=Exactness.ROUNDING, speed=speed)
        decision = judge(evidence, OPTIONS).decision
        if decision is not Decision.UNDECIDED:
            break
    return decision


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


def test_a_true_gain_of_a_tenth_is_hardly_ever_dropped() -> None:
    random = np.random.default_rng(13)
    decisions = [decide(random, gain=1.1, drift=0.02, noise=0.02) for _ in range(TRIALS // 2)]
    assert decisions.count(Decision.DROPPED) <= 0.01 * len(decisions)
    assert decisions.count(Decision.KEPT) >= 0.9 * len(decisions)

"""Speed intervals compared with closed forms, and their coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepladder.stats import (
    autocorrelation_length,
    choose_num_blocks,
    combined_speedup,
    speedup_interval,
    t_quantile,
)


def test_interval_is_students_on_log_ratios() -> None:
    ratios = np.array([0.1, 0.2] * 4)
    interval = speedup_interval(np.exp(ratios), np.ones(8))
    half = 1.894578605 * ratios.std(ddof=1) / math.sqrt(8)
    assert interval.estimate == pytest.approx(math.exp(0.15))
    assert interval.low == pytest.approx(math.exp(0.15 - half))
    assert interval.high == pytest.approx(math.exp(0.15 + half))


def test_faster_and_slower_are_equally_far_from_one() -> None:
    before, after = np.linspace(1, 1.3, 8), np.linspace(0.5, 0.8, 8)
    faster, slower = speedup_interval(before, after), speedup_interval(after, before)
    assert slower.low == pytest.approx(1 / faster.high)
    assert slower.estimate == pytest.approx(1 / faster.estimate)


def test_what_all_blocks_of_a_pair_share_cancels() -> None:
    drift = np.exp(np.linspace(0, 1, 8))
    interval = speedup_interval(2 * drift, drift)
    assert interval.low == pytest.approx(2)
    assert interval.high == pytest.approx(2)


def test_fewer_blocks_are_bounded_where_that_is_asked_for() -> None:
    before, after = [2.0, 2.2], [1.0, 1.0]
    with pytest.raises(ValueError, match="2 blocks are too few: at least 8"):
        combined_speedup((before, after), None)
    found = combined_speedup((before, after), None, min_blocks=2)
    ratios = np.log(before)
    half = t_quantile(0.95, 1) * ratios.std(ddof=1) / math.sqrt(2)
    assert math.log(found.low) == pytest.approx(ratios.mean() - half)
    with pytest.raises(ValueError, match="1 blocks are too few: at least 2"):
        combined_speedup(([2.0], [1.0]), None, min_blocks=2)


def test_too_few_or_unpaired_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="7 blocks"):
        speedup_interval(np.ones(7), np.ones(7))
    with pytest.raises(ValueError, match="shape"):
        speedup_interval(np.ones(8), np.ones(9))
    with pytest.raises(ValueError, match="above 0"):
        speedup_interval(np.ones(8), np.zeros(8))


def test_bounds_cover_as_often_as_they_say() -> None:
    random = np.random.default_rng(3)
    noise = random.normal(0, 0.05, size=(2, 1000, 8))
    truth = 1.4
    pairs = zip(truth * np.exp(noise[0]), np.exp(noise[1]), strict=True)
    low = [speedup_interval(before, after).low for before, after in pairs]
    assert np.mean(np.array(low) <= truth) == pytest.approx(0.95, abs=0.02)


def test_known_epochs_leave_the_blocks_alone() -> None:
    blocks = (np.linspace(2, 2.2, 8), np.linspace(1, 1.3, 8))
    alone = speedup_interval(*blocks)
    assert combined_speedup(blocks, None) == alone
    same = combined_speedup(blocks, (np.full(5, 2.0), np.full(5, 1.0)))
    assert same.low == pytest.approx(alone.low)


def test_seeds_alone_give_students_interval_over_seeds() -> None:
    before, after = np.full(5, 60.0), np.array([10.0, 12.0, 11.0, 14.0, 9.0])
    ratios = np.log(before / after)
    half = 2.131846786 * ratios.std(ddof=1) / math.sqrt(5)
    interval = combined_speedup(None, (before, after))
    assert interval.low == pytest.approx(math.exp(ratios.mean() - half))


def test_a_total_covers_as_often_as_it_says_when_blocks_and_epochs_are_both_uncertain() -> None:
    random = np.random.default_rng(8)
    truth, low = 3.0, []
    for _ in range(600):
        by_seed = truth * np.exp(random.normal(0, 0.15, 5))
        at_mean_epochs = np.exp(np.log(by_seed).mean())
        by_block = at_mean_epochs * np.exp(random.normal(0, 0.1, 8))
        low.append(combined_speedup((by_block, np.ones(8)), (by_seed, np.ones(5))).low)
    assert np.mean(np.array(low) <= truth) == pytest.approx(0.95, abs=0.025)


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="neither"):
        combined_speedup(None, None)
    with pytest.raises(ValueError, match="1 seeds"):
        combined_speedup(None, ([1.0], [1.0]))


def test_blocks_are_as_many_as_the_spread_needs() -> None:
    limits = {"confidence": 0.95, "at_least": 8, "at_most": 16}
    assert choose_num_blocks([0.1, 0.1, 0.1], half_width=0.01, **limits) == 8
    assert choose_num_blocks([-1.0, 1.0, 0.5], half_width=0.01, **limits) == 16
    n = choose_num_blocks([-0.03, 0.03, 0.0], half_width=0.015, **limits)
    assert 8 < n < 16
    assert choose_num_blocks([0.97, 1.03, 1.0], half_width=0.015, **limits) == n, (
        "means are not used"
    )


def test_autocorrelation_length_is_that_of_the_process() -> None:
    random = np.random.default_rng(0)
    white = random.normal(size=5000)
    assert autocorrelation_length(white) == pytest.approx(1, abs=0.15)
    smooth = np.zeros(20000)
    for idx, value in enumerate(random.normal(size=20000)):
        smooth[idx] = 0.8 * smooth[idx - 1] + value
    assert autocorrelation_length(smooth) == pytest.approx(1.8 / 0.2, rel=0.2)
    assert autocorrelation_length([1.0] * 50) == 1
    assert autocorrelation_length([1.0, 2.0]) == 1

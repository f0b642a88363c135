"""Paired changes: coverage by simulation, and the limits of few examples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepladder.stats import Pairs, paired_change, resolvable_margin
from stepladder.stats import change as change_module


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_module, "NUM_DRAWS", 400)


def pairs_of(before: np.ndarray, after: np.ndarray, rows: np.ndarray | None = None) -> Pairs:
    rows = np.arange(len(before)) if rows is None else rows
    return Pairs(rows=rows, before=before, after=after)


def test_change_is_the_mean_difference() -> None:
    before = np.random.default_rng(0).normal(size=400)
    interval = paired_change([pairs_of(before, before + 0.5)])
    assert interval.estimate == pytest.approx(0.5)
    assert interval.low == pytest.approx(0.5)
    noise = np.random.default_rng(1).normal(0, 0.2, 400)
    interval = paired_change([pairs_of(before, before + noise)])
    half = 1.645 * noise.std(ddof=1) / math.sqrt(400)
    assert interval.high - interval.estimate == pytest.approx(half, rel=0.15)
    assert interval.estimate - interval.low == pytest.approx(half, rel=0.15)


def test_same_draws_give_the_same_interval() -> None:
    before, after = np.random.default_rng(2).normal(size=(2, 60))
    first = paired_change([pairs_of(before, after)], draw_seed=4)
    assert first == paired_change([pairs_of(before, after)], draw_seed=4)
    assert first != paired_change([pairs_of(before, after)], draw_seed=5)


def test_few_examples_that_all_agree_prove_little() -> None:
    hits = np.ones(57)
    interval = paired_change([pairs_of(hits, hits)], is_share=True)
    assert interval.estimate == 0
    assert interval.low == pytest.approx(-1.645 / 57, rel=0.1)
    many = paired_change([pairs_of(np.ones(5000), np.ones(5000))], is_share=True)
    assert many.low > -0.001


def test_examples_of_a_group_count_as_one() -> None:
    random = np.random.default_rng(3)
    groups = np.repeat(np.arange(40), 10)
    change = np.repeat(random.normal(size=40), 10)
    pairs = [pairs_of(np.zeros(400), change)]
    alone, together = paired_change(pairs), paired_change(pairs, groups=groups)
    assert together.high - together.low > 2.5 * (alone.high - alone.low)


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("seed_noise", [0.0, 0.3])
@pytest.mark.parametrize("is_nested", [True, False], ids=["own folds", "same examples"])
def test_bounds_cover_as_often_as_they_say(seed_noise: float, is_nested: bool) -> None:
    random = np.random.default_rng(5)
    covered = []
    for draw in range(300):
        examples = random.normal(size=60)
        pairs = []
        for seed in range(5):
            rows = np.arange(seed * 12, seed * 12 + 12) if is_nested else np.arange(60)
            after = examples[rows] + random.normal(0, seed_noise) + random.normal(0, 0.3, len(rows))
            pairs.append(pairs_of(np.zeros(len(rows)), after, rows))
        interval = paired_change(pairs, draw_seed=draw)
        covered += [interval.low <= 0, interval.high >= 0]
    assert 0.91 <= np.mean(covered) <= 0.985


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="no example"):
        paired_change([pairs_of(np.empty(0), np.empty(0))])
    with pytest.raises(ValueError, match="shape"):
        paired_change([pairs_of(np.zeros(3), np.zeros(4))])


def test_more_examples_resolve_a_smaller_change() -> None:
    assert resolvable_margin(57, disagreement=0.3) == pytest.approx(0.12, abs=0.005)
    assert resolvable_margin(10_000, disagreement=0.05) < 0.005
    assert resolvable_margin(0, disagreement=0.1) == 1


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)])
def test_a_difference_of_shares_is_never_outside_what_is_possible(
    before: float, after: float
) -> None:
    found = paired_change([pairs_of(np.array([before]), np.array([after]))], is_share=True)
    assert -1 <= found.low <= found.estimate <= found.high <= 1
    assert found.estimate == after - before
    assert found.high - found.low > 0.5, "one example shows almost nothing"

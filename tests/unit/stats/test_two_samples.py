"""Two samples: known areas, known corrections, and classifiers that find real differences."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from stepladder.stats.two_samples import (
    effective_size,
    held_out_scores,
    holm,
    logistic_regression,
    principal_parts,
    separation,
)


def test_area_counts_pairs_in_order_and_ties_half() -> None:
    # pairs in order: 2>1, 3>1, 3>2 of (2,1) (2,2) (2,4) (3,1) (3,2) (3,4); one tie
    assert separation([1, 2, 4], [2, 3]).auc.estimate == pytest.approx(3.5 / 6)


def test_variance_is_that_of_delong_worked_by_hand() -> None:
    # shares of the first below each of the second: 2/4, 1, 1; of the second above: 1, 1, 2/3, 2/3
    found = separation([1, 2, 4, 5], [3, 6, 7], confidence=0.95)
    variance = np.var([0.5, 1, 1], ddof=1) / 3 + np.var([1, 1, 2 / 3, 2 / 3], ddof=1) / 4
    area = 10 / 12
    half = 1.6448536269514722 * np.sqrt(variance) / (area * (1 - area))
    logit = np.log(area / (1 - area))
    assert found.auc.estimate == pytest.approx(area)
    assert found.auc.low == pytest.approx(1 / (1 + np.exp(-(logit - half))))


def test_with_perfect_separation_the_bound_is_that_of_disjoint_pairs() -> None:
    found = separation(range(20), range(30, 70))
    assert found.auc.estimate == 1
    assert found.auc.low == pytest.approx(0.05 ** (1 / 20))
    assert found.p < 1e-8


def test_equal_scores_say_nothing() -> None:
    found = separation(np.ones(5), np.ones(7))
    assert found.auc.estimate == 0.5
    assert (found.auc.low, found.auc.high) == (0, 1)
    assert found.p == 1


def test_p_of_mann_and_whitney_without_ties() -> None:
    # 3 of 3 pairs each in order: U = 9 of 9, mean 4.5, variance 9 * 7 / 12 = 5.25
    found = separation([1, 2, 3], [4, 5, 6])
    assert found.p == pytest.approx(1 - NormalDist().cdf(4.5 / 5.25**0.5))


def test_lower_bound_holds_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    true_area = NormalDist().cdf(1 / 2**0.5)
    held = [
        separation(random.normal(size=40), random.normal(1, 1, size=40)).auc.low <= true_area
        for _ in range(600)
    ]
    assert 0.92 <= np.mean(held) <= 0.98


def test_a_weight_of_two_is_an_example_that_occurs_twice() -> None:
    twice = separation([1, 2, 2, 4], [2, 3, 3, 3])
    weighted = separation([1, 2, 4], [2, 3], weights=([1, 2, 1], [1, 3]))
    assert weighted.auc.estimate == pytest.approx(twice.auc.estimate)
    assert weighted.auc.low < twice.auc.low  # fewer examples say less
    assert effective_size([1, 2, 1]) == pytest.approx(16 / 6)


def test_weighted_scores_ignore_a_difference_that_weights_remove() -> None:
    random = np.random.default_rng(3)
    kinds = random.random(600) < np.where(np.arange(600) < 300, 0.2, 0.8)
    x = random.normal(size=(600, 4)) + 3.0 * kinds[:, None]
    second = np.arange(600) >= 300
    share = [kinds[~second].mean(), kinds[second].mean()]
    weights = np.where(kinds, share[1] / share[0], (1 - share[1]) / (1 - share[0]))
    weights[second] = 1
    plain = held_out_scores(x, second, seed=0)
    equal = held_out_scores(x, second, weights=weights, seed=0)
    assert separation(plain[~second], plain[second]).auc.low > 0.7
    both = (weights[~second], weights[second])
    assert separation(equal[~second], equal[second], weights=both).auc.estimate < 0.56


def test_fewer_than_two_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        separation([1.0], [2.0, 3.0])


def test_holm_multiplies_by_the_tests_that_are_left() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_logistic_regression_is_at_the_minimum_of_its_loss() -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(60, 3))
    second = x[:, 0] + random.normal(size=60) > 0.3
    weights, offset = logistic_regression(x, second, ridge=2.0)
    share = np.where(second, 30 / second.sum(), 30 / (~second).sum())
    chance = 1 / (1 + np.exp(-(x @ weights + offset)))
    assert x.T @ (share * (chance - second)) + 2.0 * weights == pytest.approx(np.zeros(3), abs=1e-6)
    assert (share * (chance - second)).sum() == pytest.approx(0, abs=1e-4)


def test_shifted_samples_are_distinguished_and_equal_ones_are_not() -> None:
    random = np.random.default_rng(2)
    second = np.arange(240) >= 120
    same = random.normal(size=(240, 20))
    shifted = same + second[:, None] * 0.8
    for features, low, high in ((same, 0.35, 0.65), (shifted, 0.9, 1.0)):
        scores = held_out_scores(features, second, seed=0)
        assert low <= separation(scores[~second], scores[second]).auc.estimate <= high


def test_false_alarms_are_rarer_than_their_level() -> None:
    random = np.random.default_rng(3)
    second = np.arange(120) >= 60
    alarms = 0
    for draw in range(40):
        scores = held_out_scores(random.normal(size=(120, 16)), second, seed=draw)
        found = separation(scores[~second], scores[second])
        alarms += found.auc.low > 0.65 and found.p < 0.001
    assert alarms == 0


def test_principal_parts_keep_distances_and_drop_what_does_not_vary() -> None:
    x = np.random.default_rng(4).normal(size=(30, 5))
    x = np.concatenate([x, np.ones((30, 2)), x[:, :1]], axis=1)
    parts = principal_parts(x, 32)
    assert parts.shape == (30, 5)
    assert np.linalg.norm(parts[3] - parts[9]) == pytest.approx(np.linalg.norm(x[3] - x[9]))

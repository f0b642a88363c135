"""Shares of classes: estimated without labels, and made equal by weights."""

from __future__ import annotations

import numpy as np
import pytest

from stepladder.stats.class_shares import (
    class_log_densities,
    equal_shares,
    memberships,
    share_p,
)


def clouds(counts: list[int], *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    centres = np.array([[0, 0, 0], [3, 0, 0], [0, 3, 0]])
    labels = np.repeat(np.arange(3), counts)
    return centres[labels] + random.normal(size=(len(labels), 3)), labels


def test_density_is_normal_about_the_mean_of_each_class() -> None:
    # means 0 and 2, pooled variance (4 * 1) / 2 = 2, shrunk by 1 / 3 towards itself: 2
    density = class_log_densities([[-1.0], [1.0], [1.0], [3.0]], [0, 0, 1, 1], [[0.0], [2.0]])
    assert density[0, 0] - density[0, 1] == pytest.approx(0.5 * 2**2 / 2)
    assert density[1, 1] - density[1, 0] == pytest.approx(0.5 * 2**2 / 2)


def test_shares_of_a_sample_without_labels_are_estimated() -> None:
    known, labels = clouds([100, 100, 100], seed=0)
    unknown, _ = clouds([60, 210, 30], seed=1)
    found = memberships(class_log_densities(known, labels, unknown), np.ones(3), is_known=False)
    assert found.sum(axis=1) == pytest.approx(1)
    assert found.mean(axis=0) == pytest.approx([0.2, 0.7, 0.1], abs=0.03)


def test_a_class_that_is_known_to_be_absent_has_no_members() -> None:
    known, labels = clouds([50, 50, 50], seed=0)
    found = memberships(class_log_densities(known, labels, known), [1, 1, 0], is_known=True)
    assert found[:, 2].max() < 1e-12


def test_weights_make_shares_equal() -> None:
    first = np.eye(2)[[0, 0, 0, 1]]
    second = np.eye(2)[[0, 1, 1, 1]]
    found = equal_shares(first, second)
    assert found.first == pytest.approx([1 / 3, 1 / 3, 1 / 3, 3])
    assert found.second == pytest.approx([1, 1, 1, 1])
    weighted = (found.first[:, None] * first).sum(axis=0) / found.first.sum()
    assert weighted == pytest.approx(second.mean(axis=0))


def test_a_class_that_the_first_lacks_does_not_count_in_the_second() -> None:
    found = equal_shares(np.eye(2)[[0, 0]], np.eye(2)[[0, 1]])
    assert found.second == pytest.approx([1, 0])


def test_p_of_the_largest_difference() -> None:
    # 8 of 100 and 20 of 100: pooled 14 %, z = 0.12 / sqrt(0.14 * 0.86 * 0.02) = 2.445; 2 classes
    assert share_p([8, 92], [20, 80]) == pytest.approx(2 * 0.01448, rel=0.01)
    assert share_p([10, 20], [10, 20]) == 1
    assert share_p([80, 920], [200, 800]) < 1e-12

"""Clusters: existing ones are found; a single cloud has none."""

from __future__ import annotations

import numpy as np

from stepladder.stats.clusters import dependence_p, find_clusters


def test_groups_that_are_there_are_found() -> None:
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 30)
    found = find_clusters(8 * np.eye(4)[groups] + random.normal(size=(120, 4)), 4, seed=0)
    assert found.clearness > found.clearness_by_chance + 0.2
    for group in range(4):
        assert len(np.unique(found.marks[groups == group])) == 1
    assert sorted(np.bincount(found.marks)) == [30, 30, 30, 30]


def test_one_cloud_is_no_clearer_than_other_clouds() -> None:
    random = np.random.default_rng(1)
    stretched = random.normal(size=(150, 5)) * [5, 3, 1, 1, 1]
    found = find_clusters(stretched, 4, seed=0)
    assert found.clearness < found.clearness_by_chance + 0.1


def test_dependence_is_distinguished_from_chance() -> None:
    random = np.random.default_rng(2)
    one = random.integers(3, size=150)
    other = np.where(random.random(150) < 0.5, one, random.integers(3, size=150))
    assert dependence_p(one, other, num_draws=99, seed=0) == 0.01
    assert dependence_p(one, random.integers(3, size=150), num_draws=99, seed=0) > 0.05

"""Folds: every example is judged once, near-duplicates in one fold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from stepladder.data.features.feature_files import Features
from stepladder.data.features.feature_source import HeldFeatures
from stepladder.data.reading.datasets import as_source
from stepladder.ladder.accuracy.folds import deal_groups, make_folds, near_groups, plain_parts
from stepladder.training.setup.build import Sources


def sources(num_train: int = 80, num_val: int = 20) -> Sources:
    def split(start: int, n: int) -> HeldFeatures:
        ids = torch.arange(start, start + n)
        base = as_source(TensorDataset(ids, ids))
        held = Features(features=ids.float().unsqueeze(1), targets=ids, seconds=0.0)
        return HeldFeatures(base, held)

    val = split(num_train, num_val) if num_val else None
    return Sources(train=split(0, num_train), val=val, test=None)


def ids(source) -> list[int]:  # type: ignore[no-untyped-def]
    return source.read(np.arange(len(source))).targets.tolist()


def test_each_example_is_judged_once_and_learnt_from_in_no_fold_that_judges_it() -> None:
    folds = make_folds(sources(), np.arange(100), num_folds=5, seed=1)
    judged: list[int] = []
    for number, fold in enumerate(folds):
        train, stop = ids(fold.sources.train), ids(fold.sources.val)
        judge = ids(fold.sources.test)
        assert fold.fold == number
        assert fold.rows.tolist() == judge, "rows are counted in the pool"
        assert sorted(train + stop + judge) == list(range(100))
        assert len(judge) == 20
        assert min(stop) >= 80, "validation examples stop the training, as in the job"
        assert max(train) < 80, "and it is trained on training examples only"
        judged += judge
    assert sorted(judged) == list(range(100))


def test_groups_stay_whole() -> None:
    groups = np.arange(100) // 4
    for fold in make_folds(sources(), groups, num_folds=5, seed=1):
        parts = (fold.sources.train, fold.sources.val, fold.sources.test)
        sides = [{row // 4 for row in ids(part)} for part in parts]
        assert not sides[0] & sides[2]
        assert not sides[1] & sides[2]


def test_folds_depend_on_nothing_but_the_seed() -> None:
    one, same, other = (
        make_folds(sources(), np.arange(100), num_folds=5, seed=seed) for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a.rows, b.rows) for a, b in zip(one, other, strict=True))


def test_a_job_without_validation_has_folds_that_nothing_stops() -> None:
    folds = make_folds(sources(num_val=0), np.arange(80), num_folds=4, seed=1)
    assert all(fold.sources.val is None for fold in folds)
    assert sum(len(fold.rows) for fold in folds) == 80


def test_validation_is_never_held_out_as_a_whole() -> None:
    groups = np.concatenate([np.arange(80), np.full(20, 80)])
    folds = make_folds(sources(), groups, num_folds=5, seed=1)
    assert all(len(fold.sources.val or []) == 20 for fold in folds)
    assert sum(len(fold.rows) for fold in folds) == 80


@pytest.mark.parametrize("batch", [2, 3, 7, 21])
def test_no_fold_learns_from_a_last_batch_of_one_example(batch: int) -> None:
    groups = np.arange(100)
    was_needed = False
    for seed in range(5):
        plain = make_folds(sources(), groups, num_folds=5, seed=seed)
        found = make_folds(sources(), groups, num_folds=5, seed=seed, batch=batch)
        for before, after in zip(plain, found, strict=True):
            learnt, left = ids(before.sources.train), ids(after.sources.train)
            is_one_over = len(learnt) % batch == 1
            was_needed |= is_one_over
            assert left == (learnt[:-1] if is_one_over else learnt)
            assert len(left) % (2 * batch) != 1
            assert np.array_equal(before.rows, after.rows), "the same examples are used to judge"
            assert ids(before.sources.val) == ids(after.sources.val)
    assert was_needed


def test_large_groups_are_distributed_evenly() -> None:
    groups = np.repeat(np.arange(8), [30, 10, 10, 10, 10, 10, 10, 10])
    folds = deal_groups(groups, 4, np.random.default_rng(0))
    assert np.bincount(folds).max() <= 40


def test_the_jobs_own_split_both_stops_and_judges() -> None:
    parts = plain_parts(sources())
    assert parts.fold is None
    assert parts.sources.test is parts.sources.val
    assert parts.rows.tolist() == list(range(80, 100))


def held(features: torch.Tensor) -> HeldFeatures:
    rows = torch.arange(len(features))
    return HeldFeatures(
        as_source(TensorDataset(rows, rows)), Features(features=features, targets=rows, seconds=0)
    )


def test_near_examples_share_a_group_across_splits_and_chains() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 64, generator=generator)
    features[40] = features[3] + 0.02 * torch.randn(64, generator=generator)
    features[50] = features[40] + 0.02 * torch.randn(64, generator=generator)
    groups = near_groups([held(features[:30]), held(features[30:])])
    assert groups[3] == groups[40] == groups[50]
    assert len(set(groups.tolist())) == 58


def test_features_that_only_show_kinds_make_no_groups() -> None:
    kinds = torch.eye(3).repeat(20, 1)
    assert len(set(near_groups([held(kinds)]).tolist())) == 60


@pytest.mark.parametrize("num", [1, 2])
def test_few_examples_have_groups_too(num: int) -> None:
    assert len(near_groups([held(torch.ones(num, 4))])) == num

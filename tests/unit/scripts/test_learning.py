"""What two versions of a script learn, compared by their losses."""

from __future__ import annotations

import random

from stepladder.records.ladder import Decision, Exactness
from stepladder.scripts.learning import compare_one, compare_seeds, same
from stepladder.scripts.seeds import judge_metric

LOSSES = [2.0 / (1 + 0.1 * step) for step in range(40)]


def test_equal_losses_are_equal() -> None:
    assert same(LOSSES, list(LOSSES))
    assert compare_one(LOSSES, list(LOSSES), Exactness.BITWISE).found == "equal"


def test_unknown_losses_are_not_equal() -> None:
    assert not same([1.0, None], [1.0, None])
    assert not same([], [])


def test_an_exact_change_must_not_round() -> None:
    changed = [*LOSSES[:5], LOSSES[5] + 1e-7, *LOSSES[6:]]
    found = compare_one(LOSSES, changed, Exactness.BITWISE)
    assert found.decision is Decision.DROPPED
    assert "step 7" in found.reason  # the first step is over before the first loss


def test_a_rounding_change_may_grow_apart_later() -> None:
    changed = [loss * (1 + 1e-7 * 1.5**step) for step, loss in enumerate(LOSSES)]
    found = compare_one(LOSSES, changed, Exactness.ROUNDING)
    assert found.decision is Decision.KEPT
    assert found.found == "same to 1e-6"


def test_a_change_of_the_first_losses_is_more_than_rounding() -> None:
    changed = [loss * 1.01 for loss in LOSSES]
    assert compare_one(LOSSES, changed, Exactness.ROUNDING).decision is Decision.DROPPED


def test_losses_that_are_not_known_decide_nothing() -> None:
    found = compare_one([None, None], [None, None], Exactness.ROUNDING)
    assert found.decision is Decision.UNDECIDED


def runs(shift: float, seed: int) -> list[list[float]]:
    draw = random.Random(seed)
    return [[loss + shift + draw.gauss(0, 0.02) for loss in LOSSES] for _ in range(5)]


def test_seeds_tell_a_worse_version_from_an_equal_one() -> None:
    assert compare_seeds(runs(0, 0), runs(0, 1)).decision is Decision.KEPT
    assert compare_seeds(runs(0, 0), runs(0.3, 1)).decision is Decision.DROPPED


def test_a_version_that_diverges_is_not_kept() -> None:
    after = runs(0, 1)
    after[2][-1] = float("nan")
    assert compare_seeds(runs(0, 0), after).decision is not Decision.KEPT


def test_a_metric_is_compared_in_its_direction() -> None:
    before = [90.0, 90.4, 89.8, 90.1, 89.9]
    worse = [85.0, 85.2, 84.9, 85.5, 84.8]
    assert judge_metric(before, worse, is_higher_better=True).decision is Decision.DROPPED
    assert judge_metric(before, worse, is_higher_better=False).decision is Decision.KEPT
    assert judge_metric(before, before[::-1], is_higher_better=True).decision is Decision.KEPT

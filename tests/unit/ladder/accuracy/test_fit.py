"""Which part of the error dominates, and which rungs do not address it."""

from __future__ import annotations

from typing import Any

import pytest

from stepladder.ladder.accuracy.fit import (
    fit_errors,
    fit_words,
    larger_part,
    learns_more,
    why_not_by_fit,
)
from stepladder.ladder.limits.guard import TrialFailed
from stepladder.records.climb import FitErrors
from stepladder.records.ladder import Outcome
from stepladder.records.profile import Provenance
from stepladder.rungs import REMEDIES, Against, Rung


def outcome(
    *, hit: int, of: int, train: float | None, seed: int = 0, fold: int = 0, **fields: Any
) -> Outcome:
    known: dict[str, Any] = {
        "seed": seed,
        "fold": fold,
        "epochs": 1.0,
        "num_validations": 1.0,
        "rows": tuple(range(fold * of, (fold + 1) * of)),
        "losses": (1.0,) * of,
        "hits": tuple(idx < hit for idx in range(of)),
        "train_accuracy": train,
        "provenance": Provenance.MEASURED,
    }
    return Outcome(**known | fields)


def fit(training: float, held_out: float, *, sem: float = 0.01, **fields: Any) -> FitErrors:
    return FitErrors(training=training, held_out=held_out, training_sem=sem, gap_sem=sem, **fields)


def test_both_errors_are_means_over_trainings() -> None:
    found = fit_errors(
        [
            outcome(hit=60, of=100, train=0.9),
            outcome(hit=80, of=100, train=0.7, seed=1, fold=1),
        ]
    )
    assert found.training == pytest.approx(0.2)
    assert found.held_out == pytest.approx(0.3)
    assert found.num_held_out == 200
    assert found.training_sem == pytest.approx(0.1), "trainings differ more than examples explain"
    assert fit_words(found) == "20.0 % on training examples, 30.0 % held out"


def test_the_error_of_one_training_is_that_of_its_examples() -> None:
    found = fit_errors([outcome(hit=50, of=100, train=0.8)])
    assert found.training_sem == pytest.approx(0.04)
    assert found.gap_sem == pytest.approx((0.04**2 + 0.05**2) ** 0.5)


def test_without_classes_errors_are_losses() -> None:
    found = fit_errors(
        [outcome(hit=0, of=4, train=None, hits=None, train_loss=0.5, losses=(1.0, 3.0, 1.0, 3.0))]
    )
    assert found.is_loss
    assert (found.training, found.held_out) == (0.5, 2.0)
    assert found.training_sem == pytest.approx(0.5), "standard deviation 1 over the root of 4"


@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        ([], "no held-out examples"),
        ([outcome(hit=1, of=2, train=None)], "error on training examples was not measured"),
        ([outcome(hit=1, of=2, train=0.5, why_not="diverged")], "diverged"),
    ],
)
def test_what_is_not_known_is_said(outcomes: list[Outcome], why: str) -> None:
    with pytest.raises(TrialFailed, match=why):
        fit_errors(outcomes)


@pytest.mark.parametrize(
    ("found", "part"),
    [
        (fit(0.40, 0.42), Against.TRAINING),
        (fit(0.02, 0.30), Against.GAP),
        (fit(0.20, 0.40), Against.TRAINING),  # as large: no relevant gap before it is lowered
        (fit(0.00, 0.01), None),
        (fit(0.20, 0.30, target=0.19), Against.GAP),  # nobody gets these right
        (fit(0.20, 0.21, target=0.19), None),
    ],
)
def test_the_larger_part_is_above_what_can_be_reached(
    found: FitErrors, part: Against | None
) -> None:
    assert larger_part(found) is part


@pytest.mark.parametrize("rung", REMEDIES, ids=lambda rung: rung.name)
def test_a_high_training_error_never_calls_for_more_data_or_for_fitting_less(rung: Rung) -> None:
    refusal = why_not_by_fit(rung, fit(0.40, 0.42))
    assert (refusal is not None) == (rung.against is Against.GAP)
    if refusal is not None:
        assert "training error is the larger part" in refusal
        assert "40.0 % on training examples" in refusal


@pytest.mark.parametrize("rung", REMEDIES, ids=lambda rung: rung.name)
def test_a_low_training_error_never_calls_for_fitting_more(rung: Rung) -> None:
    refusal = why_not_by_fit(rung, fit(0.0, 0.2))
    assert (refusal is not None) == (rung.against is Against.TRAINING)


@pytest.mark.parametrize("rung", REMEDIES, ids=lambda rung: rung.name)
def test_without_an_error_above_its_noise_nothing_is_a_remedy(rung: Rung) -> None:
    assert "no error above the noise" in (why_not_by_fit(rung, fit(0.0, 0.01)) or "")


def test_a_training_error_that_falls_in_each_training_falls() -> None:
    before = [outcome(hit=5, of=9, train=0.50 + 0.01 * seed, seed=seed) for seed in range(4)]
    after = [outcome(hit=5, of=9, train=0.70 + 0.02 * seed, seed=seed) for seed in range(4)]
    assert learns_more(before, after)
    assert not learns_more(after, before)
    assert not learns_more(before, before)


def test_a_training_error_that_falls_in_some_trainings_alone_is_noise() -> None:
    before = [outcome(hit=5, of=9, train=0.5, seed=seed) for seed in range(4)]
    after = [outcome(hit=5, of=9, train=t, seed=i) for i, t in enumerate((0.6, 0.4, 0.7, 0.4))]
    assert not learns_more(before, after)
    assert not learns_more(before, after[:1]), "one training says nothing about the others"


def test_trainings_are_paired_by_seed_and_fold() -> None:
    before = [outcome(hit=5, of=9, train=0.1 * seed, seed=seed) for seed in range(4)]
    after = [outcome(hit=5, of=9, train=0.1 * seed + 0.05, seed=seed) for seed in (3, 1, 2)]
    assert learns_more(before, after), "in the order of seeds the second list is no better"

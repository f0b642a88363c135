"""Advice follows from which error is high; more data is never advised for a high training error."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.config.choices import Monitor, TrainMode
from stepladder.config.recipe import Recipe
from stepladder.diagnosis.fit.levels import Levels
from stepladder.diagnosis.fit.remedies import (
    BY_HAND,
    FOR_TRAINING,
    FOR_VALIDATION,
    TRAINING,
    VALIDATION,
    Known,
    remedies_for,
)
from stepladder.records.diagnosis import (
    Confidence,
    Fit,
    FitKind,
    LearningCurve,
    LrVerdict,
    RangeTest,
)
from stepladder.rungs.order import REMEDIES

FIT = Fit(kind=FitKind.UNDERFIT, confidence=Confidence.SURE)
POOR = Levels(train_error=0.3, val_error=0.32, floor=0.01, is_equal=True)
GAP = Levels(train_error=0.0, val_error=0.2, floor=0.01, is_equal=True)
GOOD = Levels(train_error=0.01, val_error=0.02, floor=0.01, is_equal=True)
UNKNOWN = Levels()
CURVE = LearningCurve(
    sizes=(100, 200, 400), errors=(0.3, 0.25, 0.2), is_share=True, a=1.0, b=0.3, c=0.0,
    error_now=0.2, error_at_double=0.16, low_at_double=0.12, high_at_double=0.19,
    gain=0.04, low_gain=0.01, high_gain=0.08, num_seeds=2, took_s=1.0,
)  # fmt: skip


def range_test(verdict: LrVerdict, lr: float = 1.0) -> RangeTest:
    return RangeTest(
        lrs=(1e-3, 1e-2),
        losses=(1.0, 0.5),
        low=1e-3,
        high=0.1,
        suggested=0.03,
        lr=lr,
        verdict=verdict,
        took_s=1.0,
    )


def known(fit: Fit = FIT, levels: Levels = POOR, **changes: object) -> Known:
    plain = Known(fit=fit, levels=levels, recipe=Recipe(), run=Path("runs/first"), is_built_in=True)
    return replace(plain, **changes)  # type: ignore[arg-type]


def every_known() -> list[Known]:
    """Return all combinations of evidence, for runs of the built-in Task and of user Tasks."""
    flags = list(itertools.product((False, True), repeat=3))
    fits = [
        replace(
            FIT,
            kind=kind,
            is_overconfident=sure,
            is_learning_rate_too_high=high,
            is_still_improving=improving,
            best_epoch=3.0,
        )
        for kind in FitKind
        for sure, high, improving in flags
    ]
    tests = [None, *(range_test(verdict) for verdict in LrVerdict)]
    recipes = [None, Recipe(), replace(Recipe(), train=TrainMode.ALL)]
    return [
        known(
            fit,
            levels,
            recipe=recipe,
            range_test=test,
            learning_curve=curve,
            is_built_in=is_built_in,
            num_norms=0,
            num_dropouts=0,
            augments=False,
            stop_reason="max_epochs",
        )
        for fit in fits
        for levels in (POOR, GAP, GOOD, UNKNOWN)
        for recipe in recipes
        for test in tests
        for curve in (None, CURVE)
        for is_built_in in (False, True)
    ]


def test_a_high_training_error_is_never_met_with_more_data_or_regularisation() -> None:
    met = {TRAINING: 0, VALIDATION: 0}
    for each in every_known():
        remedies = remedies_for(each)
        sides = {remedy.against for remedy in remedies}
        assert len(sides) <= 1
        names = {remedy.name for remedy in remedies}
        if each.fit.kind is FitKind.UNDERFIT and not each.fit.is_overconfident:
            assert names
            assert not names & set(FOR_VALIDATION)
        if sides:
            side = sides.pop()
            met[side] += 1
            assert names <= set(FOR_TRAINING if side == TRAINING else FOR_VALIDATION)
    assert min(met.values()) > 100  # both cases occurred


def test_a_verdict_and_its_remedies_do_not_contradict_each_other() -> None:
    against_overfitting = {
        "all_data", "more_data", "augmentation", "dropout", "weight_decay", "earlier_stop",
    }  # fmt: skip
    met = dict.fromkeys(FitKind, 0)
    for each in every_known():
        names = {remedy.name for remedy in remedies_for(each)}
        met[each.fit.kind] += bool(names)
        if each.fit.kind is not FitKind.OVERFIT:
            assert not names & against_overfitting
        if each.fit.kind is FitKind.OVERFIT:
            assert names & against_overfitting
        if each.fit.kind is FitKind.GOOD_FIT and not each.fit.is_learning_rate_too_high:
            allowed = {"train_longer"} if each.fit.is_still_improving else set()
            sure = {"stop_by_accuracy", "label_smoothing"} if each.fit.is_overconfident else set()
            assert names <= allowed | sure
    assert min(met[kind] for kind in (FitKind.OVERFIT, FitKind.UNDERFIT, FitKind.GOOD_FIT)) > 100


def test_every_remedy_that_a_climb_tries_is_a_rung() -> None:
    rungs = {rung.name for rung in REMEDIES}
    assert {*FOR_TRAINING, *FOR_VALIDATION} - rungs == BY_HAND


def test_the_range_test_gives_the_learning_rate() -> None:
    found = remedies_for(known(range_test=range_test(LrVerdict.TOO_HIGH)))
    assert found[0].name == "learning_rate_lower"
    assert found[0].options == {"batch.lr": pytest.approx(1e-3 * 0.03)}
    found = remedies_for(known(range_test=range_test(LrVerdict.TOO_LOW, lr=1e-6)))
    assert found[0].name == "learning_rate_higher"
    assert found[0].options == {"batch.lr": pytest.approx(1e-3 * 0.03 / 1e-6)}


def test_a_learning_rate_within_its_range_is_left_alone() -> None:
    flagged = replace(FIT, is_learning_rate_too_high=True)
    names = [
        r.name for r in remedies_for(known(flagged, range_test=range_test(LrVerdict.IN_RANGE)))
    ]
    assert not [name for name in names if name.startswith("learning_rate")]
    assert names[0] == "hidden_layer"


def test_the_second_stage_has_a_learning_rate_of_its_own() -> None:
    recipe = replace(Recipe(), train=TrainMode.HEAD_THEN_ALL)
    found = remedies_for(known(recipe=recipe, range_test=range_test(LrVerdict.TOO_HIGH)))
    assert list(found[0].options) == ["batch.lr_all"]
    assert "--batch.lr-all" in found[0].command


def test_what_still_improved_is_trained_longer() -> None:
    improving = replace(FIT, is_still_improving=True)
    found = remedies_for(known(improving, stop_reason="max_epochs"))
    assert found[0].name == "train_longer"
    assert found[0].options["schedule.max_epochs"] == 120
    assert "train_longer" not in [r.name for r in remedies_for(known(stop_reason="max_epochs"))]


def test_normalisation_is_for_models_without_any() -> None:
    names = {r.name for r in remedies_for(known(num_norms=0))}
    assert "add_normalisation" in names
    assert "add_normalisation" not in {r.name for r in remedies_for(known(num_norms=3))}


def test_overconfidence_stops_by_accuracy() -> None:
    fit = replace(FIT, kind=FitKind.GOOD_FIT, is_overconfident=True)
    found = remedies_for(known(fit, GAP))
    assert found[0].name == "stop_by_accuracy"
    assert found[0].options == {"stopping.monitor": Monitor.VAL_ACCURACY.value}


def test_more_data_comes_with_what_it_would_give() -> None:
    fit = replace(FIT, kind=FitKind.OVERFIT, best_epoch=3.0)
    assert "--learning-curve" in remedies_for(known(fit, GAP))[0].command
    assert "`all_data`" in remedies_for(known(fit, GAP))[0].why  # its name in a climb
    assert "`all_data`" in remedies_for(known(fit, GAP, recipe=None))[0].why
    found = remedies_for(known(fit, GAP, learning_curve=CURVE))
    assert found[0].name == "more_data"
    assert "20.0 % to 16.0 %" in found[0].why
    assert "must be collected" in found[0].why
    useless = replace(CURVE, low_gain=0.0)
    names = [r.name for r in remedies_for(known(fit, GAP, learning_curve=useless))]
    assert "more_data" not in names


def test_available_data_comes_before_data_to_collect() -> None:
    fit = replace(FIT, kind=FitKind.OVERFIT)
    recipe = Recipe()
    half = replace(recipe, data=replace(recipe.data, fraction=0.5))
    assert remedies_for(known(fit, GAP, recipe=half))[0].name == "all_data"


def test_what_is_on_already_is_not_advised() -> None:
    recipe = Recipe()
    regular = replace(
        recipe,
        head=replace(recipe.head, dropout=0.3),
        augment=replace(recipe.augment, flip=True),
        optimizer=replace(recipe.optimizer, weight_decay=0.01),
        loss=replace(recipe.loss, label_smoothing=0.1),
    )
    fit = replace(FIT, kind=FitKind.OVERFIT)
    names = [r.name for r in remedies_for(known(fit, GAP, recipe=regular))]
    assert names == ["more_data"]


def test_a_run_that_keeps_its_best_weights_is_not_told_to() -> None:
    fit = replace(FIT, kind=FitKind.OVERFIT, best_epoch=3.0)
    recipe = Recipe()
    last = replace(recipe, stopping=replace(recipe.stopping, restore_best=False))
    assert "earlier_stop" in {r.name for r in remedies_for(known(fit, GAP, recipe=last))}
    assert "earlier_stop" not in {r.name for r in remedies_for(known(fit, GAP, recipe=recipe))}


def test_a_good_fit_needs_nothing() -> None:
    assert remedies_for(known(replace(FIT, kind=FitKind.GOOD_FIT), GAP)) == ()
    assert remedies_for(known(replace(FIT, kind=FitKind.GOOD_FIT), GOOD)) == ()
    assert remedies_for(known(replace(FIT, kind=FitKind.NOT_YET_KNOWN), POOR)) == ()


def test_a_good_fit_that_was_cut_short_is_trained_longer() -> None:
    fit = replace(FIT, kind=FitKind.GOOD_FIT, is_still_improving=True)
    (only,) = remedies_for(known(fit, GOOD, stop_reason="max_epochs"))
    assert only.name == "train_longer"
    assert remedies_for(known(fit, GOOD)) == ()


def test_commands_name_the_task() -> None:
    found = remedies_for(known(task_name="own task.py:Rings"))
    assert all("--task 'own task.py:Rings'" in remedy.command for remedy in found)

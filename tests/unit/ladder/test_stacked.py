"""Many heads in one step: each learns what it learns by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepladder.config.choices import OptimizerName, Precision, ScheduleKind
from stepladder.config.recipe import OptimizerConfig, Recipe, StoppingConfig
from stepladder.ladder.stacked import why_not_stacked


def assert_alike(lab, recipe: Recipe) -> None:
    trainings = lab._trainings
    parts = trainings.folds(recipe, job=lab.job.recipe)
    pairs = [(part, 50 + idx) for idx, part in enumerate(parts)]
    stacked = trainings.train_all(recipe, pairs)
    assert trainings.is_stacked(recipe), "it was done for all at once"
    alone = [trainings.train_anew(recipe, *pair) for pair in pairs]
    assert len({outcome.epochs for outcome in alone}) >= 1
    for one, other in zip(stacked, alone, strict=True):
        assert (one.seed, one.fold, one.epochs) == (other.seed, other.fold, other.epochs)
        assert one.num_validations == other.num_validations
        assert one.rows == other.rows
        np.testing.assert_allclose(one.losses, other.losses, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(OptimizerName))
def test_each_optimiser_takes_the_same_steps(make_lab, recipe, name: OptimizerName) -> None:
    recipe = replace(recipe, optimizer=replace(recipe.optimizer, name=name))
    assert_alike(make_lab(recipe, num_seeds=2), recipe)


def test_each_training_stops_by_itself(make_lab, recipe) -> None:
    early = replace(recipe, stopping=StoppingConfig(patience=1, min_improvement_frac=0.2))
    early = replace(early, schedule=replace(recipe.schedule, max_epochs=30))
    lab = make_lab(early, num_seeds=2)
    assert_alike(lab, early)
    epochs = [outcome.epochs for outcome in lab.outcomes(early).found]
    assert len(set(epochs)) > 1, "they end at different times"
    assert max(epochs) < 30


def test_a_limit_of_steps_ends_within_an_epoch(make_lab, recipe) -> None:
    short = replace(recipe, schedule=replace(recipe.schedule, max_steps=7, warmup_steps=3))
    assert_alike(make_lab(short, num_seeds=2), short)


def test_a_training_that_diverges_harms_no_other(make_lab, recipe) -> None:
    wild = replace(recipe, batch=replace(recipe.batch, lr=1e38))
    wild = replace(wild, optimizer=OptimizerConfig(name=OptimizerName.SGD))
    found = make_lab(wild, num_seeds=2).outcomes(wild).found
    assert found
    assert all(outcome.why_not == "diverged" for outcome in found)


@pytest.mark.parametrize(
    "changed",
    [
        replace(Recipe(), optimizer=OptimizerConfig(clip_norm=1.0)),
        replace(Recipe(), optimizer=OptimizerConfig(weight_decay=0.1)),
        replace(Recipe(), schedule=replace(Recipe().schedule, kind=ScheduleKind.COSINE)),
        replace(Recipe(), stopping=StoppingConfig(validate_every_steps=5)),
        replace(Recipe(), device=replace(Recipe().device, precision=Precision.FP16)),
        replace(Recipe(), data=replace(Recipe().data, fraction=0.5)),
    ],
)
def test_what_differs_from_head_to_head_is_refused_in_words(changed: Recipe) -> None:
    assert why_not_stacked(Recipe()) is None
    assert isinstance(why_not_stacked(changed), str)

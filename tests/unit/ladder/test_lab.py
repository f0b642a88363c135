"""What trials share: outcomes that are trained once, epochs, curves, and a budget."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stepladder
from stepladder.config.choices import Split
from stepladder.config.recipe import FeaturesConfig, StoppingConfig
from stepladder.ladder import lab as lab_module
from stepladder.ladder.lab import LENGTH_ROUNDS
from stepladder.ladder.trainings.training_cache import STACKED_ROUNDS, Trainings
from stepladder.records.profile import Provenance


def test_what_was_learnt_once_is_not_learnt_again(make_lab, recipe) -> None:
    lab = make_lab(recipe)
    first = lab.outcomes(recipe)
    cached = replace(recipe, features=FeaturesConfig(cached=True))
    assert all(
        one is other for one, other in zip(first.found, lab.outcomes(cached).found, strict=True)
    )
    longer = replace(recipe, schedule=replace(recipe.schedule, max_epochs=7))
    assert lab.outcomes(longer).found[0] is not first.found[0]


def test_folds_judge_where_the_validation_split_resolves_too_little(make_lab, recipe) -> None:
    lab = make_lab(recipe, max_accuracy_loss=0.01)
    found = lab.outcomes(recipe).found[:3]
    assert [outcome.fold for outcome in found] == [0, 1, 2]
    assert sorted(row for outcome in found for row in outcome.rows) == list(range(120))
    assert len({outcome.seed for outcome in found}) == 3
    assert all(outcome.provenance is Provenance.REPLAYED for outcome in found)


def test_more_seeds_than_folds_judge_by_reshuffled_folds(make_lab, recipe) -> None:
    found = make_lab(recipe, num_seeds=7).outcomes(recipe).found[:7]
    assert [outcome.fold for outcome in found] == [0, 1, 2, 3, 4, 0, 1]
    assert found[0].rows != found[5].rows
    assert len({outcome.seed for outcome in found}) == 7


def test_the_validation_split_judges_where_it_resolves_enough(make_lab, recipe) -> None:
    found = make_lab(recipe, max_accuracy_loss=0.2).outcomes(recipe).found
    assert [outcome.fold for outcome in found] == [None] * 3
    assert found[0].rows == tuple(range(90, 120))


def test_a_sample_is_judged_by_the_validation_split(make_lab, recipe) -> None:
    sample = replace(recipe, data=replace(recipe.data, fraction=0.5))
    lab = make_lab(sample)
    everything = replace(sample, data=replace(sample.data, fraction=1.0))
    before, after = lab.outcomes(sample).found, lab.outcomes(everything).found
    assert before[0].rows == after[0].rows == tuple(range(90, 120))


def test_without_validation_a_job_is_judged_by_folds(make_lab, blobs, recipe) -> None:
    lab = make_lab(recipe, blobs(num_val=0))
    found = lab.outcomes(recipe).found[:3]
    assert sorted(row for outcome in found for row in outcome.rows) == list(range(90))
    assert lab.curve(recipe) is None
    assert lab.expected_epochs(replace(recipe, stopping=StoppingConfig())) == (
        6,
        0,
        Provenance.READ,
    )


def test_a_fixed_length_is_read_and_another_is_found_out(make_lab, recipe) -> None:
    lab = make_lab(recipe)
    assert lab.expected_epochs(recipe) == (6, 6, Provenance.READ)
    steps = replace(recipe, schedule=replace(recipe.schedule, max_steps=30))
    assert lab.expected_epochs(steps) == (30 / 12, 2, Provenance.READ)
    rare = replace(recipe, stopping=replace(recipe.stopping, validate_every_epochs=4))
    assert lab.expected_epochs(rare) == (6, 1, Provenance.READ)
    early = replace(recipe, stopping=StoppingConfig(min_improvement_frac=0.3))
    epochs, num_validations, provenance = lab.expected_epochs(early)
    assert provenance is Provenance.REPLAYED
    assert epochs == num_validations < 6
    assert epochs == np.mean([outcome.epochs for outcome in lab.plain(early).found])


def test_the_curve_shows_where_the_defaults_would_have_stopped(make_lab, recipe) -> None:
    long = replace(
        recipe,
        schedule=replace(recipe.schedule, max_epochs=40),
        batch=replace(recipe.batch, lr=0.3),
    )
    lab = make_lab(long)
    curve = lab.curve(long)
    assert curve is not None
    assert curve.epochs == len(curve.val_losses) < 40, "it ends there"
    early = replace(long, stopping=StoppingConfig())
    parts = lab.judge(early, Split.VAL)
    assert parts is not None
    assert curve.epochs == parts.epochs, "the same seed, really stopped"
    stops = lab.epoch_range(early)
    assert stops is not None
    assert curve.stops == stops
    assert curve.epochs_to_stop == stops.mean
    assert stops.low <= stops.mean <= stops.high
    assert curve.provenance is Provenance.REPLAYED
    assert lab.curve(long) is curve


def test_the_epochs_of_a_job_that_stops_early_are_a_range_over_seeds(make_lab, recipe) -> None:
    lab = make_lab(recipe)
    assert lab.epoch_range(recipe) is None, "its length is fixed"
    early = replace(
        recipe, schedule=replace(recipe.schedule, max_epochs=40), stopping=StoppingConfig()
    )
    found, replays = lab.epoch_range(early), lab.plain(early).found
    assert found is not None
    assert found.num_seeds == len(replays) == LENGTH_ROUNDS * 3
    assert found.provenance is Provenance.REPLAYED
    epochs = sorted(outcome.epochs for outcome in replays)
    assert (found.low, found.high) == (epochs[0], epochs[-1])
    assert found.mean == lab.expected_epochs(early)[0]
    real = lab.judge(early, Split.VAL)
    assert real is not None
    assert found.low <= real.epochs <= found.high


def test_what_cannot_be_replayed_may_take_any_length(make_lab, recipe) -> None:
    early = replace(
        recipe, schedule=replace(recipe.schedule, max_epochs=10_000), stopping=StoppingConfig()
    )
    found = make_lab(early, budget_s=1e-6).epoch_range(early)
    assert found is not None
    assert (found.low, found.high, found.num_seeds) == (4, 10_000, 0)
    assert found.provenance is Provenance.ASSUMED


def test_one_training_gives_the_curve_and_every_split(make_lab, recipe, monkeypatch) -> None:
    lab = make_lab(recipe)
    seeds: list[int] = []
    train_anew = Trainings.train_anew

    def count(self, recipe, parts, seed, **how):
        seeds.append(seed)
        return train_anew(self, recipe, parts, seed, **how)

    monkeypatch.setattr(Trainings, "train_anew", count)
    curve = lab.curve(recipe)
    val, test = lab.judge(recipe, Split.VAL), lab.judge(recipe, Split.TEST)
    assert seeds == [recipe.seed]
    assert curve is not None
    assert val is not None
    assert test is not None
    assert (val.epochs, len(val.losses), len(test.losses)) == (6, 30, 24)
    again = make_lab(recipe)
    assert again.judge(recipe, Split.TEST) == test
    assert again.judge(recipe, Split.VAL) == val


def test_a_job_whose_examples_change_is_trained_for_real(make_lab, blobs, recipe) -> None:
    task = blobs()
    task.is_random_before_head = True
    lab = make_lab(replace(recipe, schedule=replace(recipe.schedule, max_epochs=1)), task)
    assert lab.features(recipe) is None
    found = lab.outcomes(replace(recipe, schedule=replace(recipe.schedule, max_epochs=1))).found
    assert [outcome.provenance for outcome in found] == [Provenance.MEASURED] * 3


def test_a_budget_ends_and_without_one_time_is_left_for_ever(make_lab, recipe) -> None:
    lab = make_lab(recipe)
    assert lab.time_left() == math.inf
    assert lab.budget_s == 600
    assert lab.allowed_s(0.1) == 60
    short = make_lab(recipe, budget_s=1e-6)
    assert short.time_left() < 0
    assert short.allowed_s(0.5) == 0
    outcomes = short.outcomes(replace(recipe, schedule=replace(recipe.schedule, max_epochs=900)))
    assert outcomes.found == ()
    assert outcomes.why_not is not None
    assert outcomes.why_not.startswith("not compared: it would take 3 trainings of")


def test_a_lab_leaves_nothing(make_lab, recipe) -> None:
    lab = make_lab(recipe)
    lab.outcomes(recipe)
    assert list(lab.cache.iterdir())
    lab.__exit__(None, None, None)
    assert not list(lab.cache.iterdir())


def test_the_code_of_trials_is_that_of_this_package(make_lab, monkeypatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(lab_module, "code_key", lambda package: asked.append(package) or "abc+12")
    lab = make_lab()
    assert (lab.commit, lab.commit) == ("abc+12", "abc+12")
    assert asked == [Path(stepladder.__file__).parent]


@pytest.mark.parametrize("seed", [0, 7])
def test_seeds_of_trials_follow_from_the_labs(make_lab, recipe, seed) -> None:
    lab = make_lab(recipe)
    lab.seed = seed
    seeds = [outcome.seed for outcome in lab.plain(recipe).found]
    assert seeds == list(range(seed + 1000, seed + 1000 + LENGTH_ROUNDS * 3))
    probed = [outcome.seed for outcome in lab.probe(recipe)]
    assert probed
    assert not {*probed} & {*seeds}


def test_heads_on_features_get_more_seeds(make_lab, recipe) -> None:
    found = make_lab(recipe).outcomes(recipe).found
    assert len({outcome.seed for outcome in found}) == len(found) == 3 * STACKED_ROUNDS


def test_an_outcome_says_how_it_does_on_what_it_learnt_from(make_lab, recipe) -> None:
    lab = make_lab(recipe)
    stacked = lab.outcomes(recipe).found[0]
    parts = lab._parts(recipe)[0]
    alone = lab._trainings.train_anew(recipe, parts, stacked.seed)
    assert stacked.train_loss == pytest.approx(alone.train_loss, rel=1e-3)
    assert stacked.train_accuracy == alone.train_accuracy
    assert stacked.train_accuracy is not None
    assert 0.5 < stacked.train_accuracy <= 1

"""Replay learns what `train` learns."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import FeaturesConfig, StoppingConfig
from stepladder.ladder.accuracy.folds import plain_parts
from stepladder.ladder.recipe_keys import replay_recipe
from stepladder.ladder.trainings.feature_replay import Instrument
from stepladder.ladder.trainings.trial_training import DIVERGED, learn
from stepladder.records import read_json, read_jsonl
from stepladder.records.profile import Provenance
from stepladder.training.evaluate import Evaluation
from stepladder.training.output.display import Display
from stepladder.training.run import train
from stepladder.training.setup.build import open_sources

CPU = torch.device("cpu")


def validations(folder: Path) -> list[float]:
    return [
        event["val_loss"]
        for event in read_jsonl(folder / "events.jsonl")
        if event["event"] == "validation"
    ]


@pytest.mark.parametrize(
    ("stopping", "schedule"),
    [
        (StoppingConfig(patience=2, min_improvement_frac=0.05), {"max_epochs": 30}),
        (StoppingConfig(early=False, restore_best=False), {"max_epochs": 4}),
        (StoppingConfig(early=False, validate_every_epochs=2), {"max_epochs": 5}),
        (StoppingConfig(early=False, validate_every_steps=7), {"max_steps": 40}),
    ],
    ids=["early", "fixed", "rare validations", "steps"],
)
@pytest.mark.parametrize("is_replayed", [True, False], ids=["replayed", "on examples"])
def test_learning_is_what_train_does(
    tmp_path, blobs, recipe, stopping, schedule, is_replayed
) -> None:
    recipe = replace(
        recipe, seed=3, stopping=stopping, schedule=replace(recipe.schedule, **schedule)
    )
    task = blobs()
    run = RunConfig(dir=tmp_path / "run", system_every_s=60)
    summary = train(
        JobConfig(recipe=recipe, run=run),
        task,
        task_name="blobs",
        display=Display(io.StringIO()),
    )

    sources = open_sources(task)
    seen: list[float] = []

    def look(epochs: float, result: Evaluation) -> None:
        seen.append(float(result.losses.mean(dtype="float64")))

    if is_replayed:
        instrument = Instrument(
            task=task, sources=sources, device=CPU, folder=tmp_path / "features", max_s=60
        )
        features = instrument.features(recipe)
        assert features is not None
        learner, job, parts = instrument.head(recipe, 3), replay_recipe(recipe, CPU), features
    else:
        learner, job, parts = task, recipe, sources
    outcome = learn(
        job,
        learner,
        plain_parts(parts),
        seed=3,
        device=CPU,
        provenance=Provenance.REPLAYED,
        on_validation=look,
    )
    assert seen == pytest.approx(validations(tmp_path / "run"), abs=1e-4)
    assert outcome.num_validations == len(seen)
    steps_per_epoch = -(-90 // 8)
    assert outcome.epochs == pytest.approx(summary["steps"] / steps_per_epoch)
    assert np.mean(outcome.losses) == pytest.approx(summary["val_loss"], abs=1e-4)
    assert outcome.rows == tuple(range(90, 120))
    assert read_json(tmp_path / "run" / "summary.json")["steps"] > 0


def test_learning_leaves_random_states_and_threads_alone(blobs, recipe) -> None:
    state = torch.get_rng_state()
    task = blobs()
    parts = plain_parts(open_sources(task))
    outcome = learn(
        replace(recipe, device=replace(recipe.device, threads=2)),
        task,
        parts,
        seed=1,
        device=CPU,
        provenance=Provenance.MEASURED,
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == 1
    assert outcome.why_not is None
    assert outcome.hits is not None


def test_a_loss_that_is_not_finite_is_an_outcome(blobs, recipe) -> None:
    wild = replace(recipe, batch=replace(recipe.batch, lr=3e38))
    task = blobs()
    outcome = learn(
        wild,
        task,
        plain_parts(open_sources(task)),
        seed=1,
        device=CPU,
        provenance=Provenance.MEASURED,
    )
    assert outcome.why_not == DIVERGED
    assert outcome.losses == ()
    assert outcome.epochs < 6


def test_heads_of_one_seed_begin_alike_and_of_two_seeds_apart(tmp_path, blobs, recipe) -> None:
    task = blobs()
    instrument = Instrument(
        task=task, sources=open_sources(task), device=CPU, folder=tmp_path, max_s=60
    )
    one, again = (instrument.head(recipe, 1).build_model(recipe) for _ in range(2))
    other = instrument.head(recipe, 2).build_model(recipe)
    assert one is not again
    assert torch.equal(one.weight, again.weight)
    assert not torch.equal(one.weight, other.weight)


def test_features_that_take_too_long_are_not_computed(tmp_path, blobs, recipe) -> None:
    task = blobs()
    instrument = Instrument(
        task=task, sources=open_sources(task), device=CPU, folder=tmp_path, max_s=0
    )
    assert instrument.features(recipe) is None


def test_a_disk_without_room_for_features_ends_no_climb(
    make_lab, recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(recipe)
    full = shutil.disk_usage(lab.cache)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    assert lab.features(recipe) is None
    assert not list(lab.cache.rglob("*.npy"))
    assert not list(lab.cache.rglob("*.partial"))
    (first, *_) = lab.outcomes(recipe).found
    assert first.provenance is Provenance.MEASURED
    assert first.why_not is None


def test_random_examples_are_not_replayed_though_views_are_named(tmp_path, blobs, recipe) -> None:
    task = blobs()
    task.is_random_before_head = True
    instrument = Instrument(
        task=task, sources=open_sources(task), device=CPU, folder=tmp_path, max_s=60
    )
    named = replace(recipe, features=FeaturesConfig(cached_views=2))
    assert instrument.features(named) is None
    kept = replace(recipe, features=FeaturesConfig(cached=True, cached_views=2))
    assert instrument.features(kept) is not None

"""Replay learns the same as `train`."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import FeaturesConfig, Recipe, StoppingConfig
from stepladder.ladder.accuracy.folds import plain_parts
from stepladder.ladder.keys import replay_recipe
from stepladder.ladder.trainings.feature_replay import Instrument
from stepladder.ladder.trainings.trial_training import DIVERGED, learn
from stepladder.records import read_jsonl
from stepladder.records.profile import Provenance
from stepladder.task import Task
from stepladder.training.checkpoint.checkpoint import load_best
from stepladder.training.output.display import Display
from stepladder.training.run import train
from stepladder.training.setup.build import open_sources
from stepladder.training.stopping import Weights

CPU = torch.device("cpu")


def validations(folder: Path) -> list[float]:
    return [
        event["val_loss"]
        for event in read_jsonl(folder / "events.jsonl")
        if event["event"] == "validation"
    ]


EARLY = StoppingConfig(patience=1, min_improvement_frac=0.2)


def run_of(recipe: Recipe, task: Task, folder: Path) -> dict[str, Any]:
    run = RunConfig(dir=folder, system_every_s=60)
    job = JobConfig(recipe=recipe, run=run)
    return train(job, task, task_name="blobs", display=Display(io.StringIO()))


@pytest.mark.parametrize(
    ("stopping", "schedule"),
    [
        (EARLY, {"max_epochs": 30}),
        (
            StoppingConfig(patience=1, min_improvement_frac=0.2, validate_every_steps=7),
            {"max_steps": 200, "max_epochs": 30},
        ),
    ],
    ids=["by epochs", "by steps"],
)
def test_a_training_learns_what_a_run_does_to_the_last_bit(
    tmp_path, blobs, recipe, stopping, schedule
) -> None:
    recipe = replace(
        recipe, seed=3, stopping=stopping, schedule=replace(recipe.schedule, **schedule)
    )
    summary = run_of(recipe, blobs(), tmp_path)
    seen: list[float] = []
    ended: list[Weights] = []
    outcome = learn(
        recipe,
        blobs(),
        plain_parts(open_sources(blobs())),
        seed=3,
        device=CPU,
        provenance=Provenance.MEASURED,
        on_validation=lambda _, result: bool(seen.append(result.loss().mean)),
        on_end=ended.append,
    )
    assert summary["stop_reason"] == "early_stopping"
    assert seen == validations(tmp_path)
    assert outcome.num_validations == len(seen)
    assert outcome.epochs == summary["steps"] / -(-90 // 8)
    best = load_best(tmp_path).weights
    assert ended[0]
    assert all(torch.equal(weight, best[name]) for name, weight in ended[0].items())


def test_replay_learns_what_a_run_does_to_rounding(tmp_path, blobs, recipe) -> None:
    recipe = replace(
        recipe, seed=3, stopping=EARLY, schedule=replace(recipe.schedule, max_epochs=30)
    )
    task = blobs()
    summary = run_of(recipe, task, tmp_path / "run")
    instrument = Instrument(
        task=task,
        sources=open_sources(task),
        device=CPU,
        folder=tmp_path / "features",
        max_s=60,
    )
    features = instrument.features(recipe)
    assert features is not None
    seen: list[float] = []
    outcome = learn(
        replay_recipe(recipe, CPU),
        instrument.head(recipe, 3),
        plain_parts(features),
        seed=3,
        device=CPU,
        provenance=Provenance.REPLAYED,
        on_validation=lambda _, result: bool(seen.append(result.loss().mean)),
    )
    assert seen == pytest.approx(validations(tmp_path / "run"), abs=1e-4)
    assert outcome.num_validations == len(seen)
    assert outcome.epochs == pytest.approx(summary["steps"] / -(-90 // 8))
    assert np.mean(outcome.losses) == pytest.approx(summary["val_loss"], abs=1e-4)
    assert outcome.rows == tuple(range(90, 120))


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
    assert outcome.num_validations == 0, "weights that no step may change"


def test_heads_of_one_seed_start_equal_and_of_two_seeds_differ(tmp_path, blobs, recipe) -> None:
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

"""Trainings read pictures in the form of their own recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stepladder.config.choices import Encoding, OptimizerName, TrainMode, WeightsSource, Where
from stepladder.config.options import PrepareConfig
from stepladder.config.recipe import (
    AugmentConfig,
    BatchConfig,
    DataConfig,
    DeviceConfig,
    LoaderConfig,
    ModelConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.data.prepare.prepare import prepare
from stepladder.ladder.keys import learning_key
from stepladder.ladder.trainings import training_cache
from stepladder.records.profile import Provenance
from stepladder.task.image_classification import ImageClassification


@pytest.fixture(name="full")
def _full(photos: Path, tmp_path: Path) -> Recipe:
    """A job on JPEGs of 48 × 40 pixels that are decoded in full and resized to 8 × 8."""
    config = PrepareConfig(source=photos, out=tmp_path / "store", size=8, encoding=Encoding.JPEG)
    return Recipe(
        data=DataConfig(store=prepare(config).folder, where=Where.STREAM),
        loader=LoaderConfig(threads=1, scaled_decode=False),
        model=ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE),
        batch=BatchConfig(global_batch_size=8, lr=0.05),
        optimizer=OptimizerConfig(name=OptimizerName.SGD),
        schedule=ScheduleConfig(max_epochs=2),
        stopping=StoppingConfig(early=False, restore_best=False),
        device=DeviceConfig(threads=1),
    )


def as_scaled(recipe: Recipe) -> Recipe:
    return replace(recipe, loader=replace(recipe.loader, scaled_decode=True))


@pytest.mark.parametrize(
    ("is_flipped", "provenance"),
    [(False, Provenance.REPLAYED), (True, Provenance.MEASURED)],
    ids=["replayed", "real"],
)
def test_what_other_pixels_teach_is_learnt_from_them(
    make_lab,
    full: Recipe,
    is_flipped: bool,
    provenance: Provenance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_cache, "STACKED_ROUNDS", 1)  # each head builds its trunk
    full = replace(full, augment=AugmentConfig(flip=is_flipped))
    scaled = as_scaled(full)
    assert learning_key(full) != learning_key(scaled)
    lab = make_lab(full, ImageClassification(full.data.store, full), num_seeds=2)
    before, after = lab.outcomes(full).found, lab.outcomes(scaled).found
    assert {outcome.provenance for outcome in (*before, *after)} == {provenance}
    for one, other in zip(before, after, strict=True):
        assert one.rows == other.rows, "each pair holds out the same pictures"
        assert one.losses != other.losses
    again = make_lab(scaled, ImageClassification(full.data.store, scaled), num_seeds=2)
    same = again.outcomes(scaled).found
    assert [o.losses for o in same] == [o.losses for o in after], "like a job written in this way"


def test_features_of_two_decodings_are_never_mixed_up(make_lab, full: Recipe) -> None:
    lab = make_lab(full, ImageClassification(full.data.store, full))
    found = [lab.features(recipe) for recipe in (full, as_scaled(full), full)]
    rows = np.arange(len(lab.sources.train))
    one, other, again = (
        np.asarray(sources.train.read(rows).inputs) for sources in found if sources is not None
    )
    assert one.shape == other.shape
    assert not np.array_equal(one, other)
    assert np.array_equal(one, again)


def test_trainings_and_their_forecast_compile_nothing(
    make_lab, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiles(*_: object, **__: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(torch, "compile", compiles)
    real = replace(recipe, train=TrainMode.ALL, schedule=ScheduleConfig(max_epochs=1))
    compiled = replace(real, device=replace(real.device, compile=True))
    lab = make_lab(compiled, num_seeds=2)
    assert not lab._trainings.is_replayed(compiled)
    assert lab.forecast_s(compiled) > 0
    found = lab.outcomes(compiled).found
    assert [one.losses for one in found] == [one.losses for one in lab.outcomes(real).found]

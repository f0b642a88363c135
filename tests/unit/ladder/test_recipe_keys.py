"""What counts for learning, and what for speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepladder.config.choices import MemoryFormat, Precision, Where
from stepladder.config.recipe import FeaturesConfig, Recipe
from stepladder.ladder.keys import execution_key, instrument_recipe, learning_key

BASE = Recipe()
FAST = {
    "threads": replace(BASE, loader=replace(BASE.loader, threads=3)),
    "where": replace(BASE, data=replace(BASE.data, where=Where.STREAM)),
    "decoded once": replace(BASE, data=replace(BASE.data, decode_once=True)),
    "layout": replace(BASE, device=replace(BASE.device, memory_format=MemoryFormat.CHANNELS_LAST)),
    "compiled": replace(BASE, device=replace(BASE.device, compile=True)),
    "fused": replace(BASE, optimizer=replace(BASE.optimizer, fused=True)),
    "folded": replace(BASE, model=replace(BASE.model, fold_batchnorm=True)),
    "features": replace(BASE, features=FeaturesConfig(cached=True)),
}
LEARNT = {
    "precision": replace(BASE, device=replace(BASE.device, precision=Precision.BF16)),
    "decoding": replace(BASE, loader=replace(BASE.loader, scaled_decode=False)),
    "batch": replace(BASE, batch=replace(BASE.batch, global_batch_size=32)),
    "views": replace(BASE, features=FeaturesConfig(cached=True, cached_views=2)),
    "model": replace(BASE, model=replace(BASE.model, name="resnet18")),
    "seed": replace(BASE, seed=1),
    "epochs": replace(BASE, schedule=replace(BASE.schedule, max_epochs=3)),
    "stopping": replace(BASE, stopping=replace(BASE.stopping, patience=9)),
}


@pytest.mark.parametrize("recipe", FAST.values(), ids=FAST.keys())
def test_what_only_speeds_up_is_not_learnt_again(recipe: Recipe) -> None:
    assert recipe != BASE
    assert learning_key(recipe) == learning_key(BASE)
    assert execution_key(recipe) != execution_key(BASE)


@pytest.mark.parametrize("recipe", LEARNT.values(), ids=LEARNT.keys())
def test_what_changes_learning_is(recipe: Recipe) -> None:
    assert learning_key(recipe) != learning_key(BASE)


@pytest.mark.parametrize("name", ["epochs", "stopping"])
def test_the_length_of_a_training_changes_no_step(name: str) -> None:
    assert execution_key(LEARNT[name]) == execution_key(BASE)


def test_the_instrument_keeps_the_precision_and_takes_the_fast_layout() -> None:
    wanted = instrument_recipe(LEARNT["precision"])
    assert wanted.device.precision is Precision.BF16
    assert wanted.device.memory_format is MemoryFormat.CHANNELS_LAST
    assert not instrument_recipe(FAST["compiled"]).device.compile

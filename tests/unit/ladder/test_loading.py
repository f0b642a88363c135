"""Filling memory, of recipes that read otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepladder.config.choices import Encoding, WeightsSource, Where
from stepladder.config.recipe import ModelConfig, Recipe
from stepladder.ladder import loading
from stepladder.ladder.guard import Watchdog
from stepladder.ladder.lab import Lab
from stepladder.ladder.loading import loading_s
from stepladder.task.image_classification import ImageClassification

KNOWN_S = 9.0


@pytest.fixture(name="held")
def _held(recipe: Recipe, build_store, tmp_path) -> Recipe:  # type: ignore[no-untyped-def]
    """A job whose pictures, 90 to learn from and 30 to validate, are held in memory."""
    rows = {"train": 90, "val": 30}
    build_store(tmp_path / "store", num_rows=rows, size=32, encoding=Encoding.JPEG)
    model = ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE)
    data = replace(recipe.data, store=tmp_path / "store", where=Where.MEMORY)
    return replace(recipe, data=data, model=model)


@pytest.fixture(name="lab")
def _lab(make_lab, held: Recipe) -> Lab:  # type: ignore[no-untyped-def]
    return make_lab(held, ImageClassification(held.data.store, held))


@pytest.fixture(name="loaded")
def _loaded(profile):  # type: ignore[no-untyped-def]
    """A profile that found what loading takes."""
    return replace(profile, time=replace(profile.time, one_time_s={"load": KNOWN_S}))


def threads(recipe: Recipe, number: int) -> Recipe:
    return replace(recipe, loader=replace(recipe.loader, threads=number))


def test_recipes_that_read_alike_load_as_the_profile_found(lab, loaded, held) -> None:
    other = replace(held, seed=3)
    found = loading_s(lab, loaded, held, other, watchdog=Watchdog())
    assert found == ({"load": KNOWN_S}, {"load": KNOWN_S})


def test_each_of_two_ways_to_read_is_timed(lab, loaded, held, monkeypatch) -> None:
    one, two = threads(held, 1), threads(held, 2)
    measured = loading_s(lab, loaded, one, two, watchdog=Watchdog())
    assert all(0 < side["load"] < KNOWN_S for side in measured), "120 small examples"

    asked: list[int | None] = []

    def example_s(_: object, recipe: Recipe, __: int) -> float:
        asked.append(recipe.loader.threads)
        return 0.1 if recipe.loader.threads == 1 else 0.05

    monkeypatch.setattr(loading, "_example_s", example_s)
    found = loading_s(lab, loaded, one, two, watchdog=Watchdog())
    assert found == ({"load": pytest.approx(12.0)}, {"load": pytest.approx(6.0)}), "90 + 30"
    assert asked[:4] == [1, 2, 2, 1], "in turn"


def test_a_larger_sample_takes_longer_to_load(lab, loaded, held, monkeypatch) -> None:
    monkeypatch.setattr(loading, "_example_s", lambda *_: 0.1)
    half = replace(held, data=replace(held.data, fraction=0.5))
    found = loading_s(lab, loaded, half, held, watchdog=Watchdog())
    assert found == ({"load": pytest.approx(7.5)}, {"load": pytest.approx(12.0)})


def test_nothing_is_loaded_that_is_streamed_or_read_once_for_features(lab, loaded, held) -> None:
    stream = replace(held, data=replace(held.data, where=Where.STREAM))
    cached = replace(held, features=replace(held.features, cached=True))
    watchdog = Watchdog()
    assert loading_s(lab, loaded, held, cached, watchdog=watchdog) == ({"load": KNOWN_S}, {})
    assert loading_s(lab, loaded, stream, stream, watchdog=watchdog) == ({}, {})
    before, after = loading_s(lab, loaded, stream, held, watchdog=watchdog)
    assert before == {}
    assert after["load"] > 0

"""Loading data into memory, for recipes that read differently."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepladder.config.choices import Encoding, WeightsSource, Where
from stepladder.config.recipe import ModelConfig, Recipe
from stepladder.data.reading.reader import Reader
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.guard import Watchdog
from stepladder.ladder.timing import speedup as loading
from stepladder.ladder.timing.interleaved_blocks import Side
from stepladder.ladder.timing.speedup import loading_s
from stepladder.measuring.blocks.block import BlockTimes, training_time
from stepladder.measuring.blocks.workload import Workload
from stepladder.records.profile import TrainingTime
from stepladder.task.image_classification import ImageClassification
from stepladder.training.setup.build import make_train_reader

KNOWN_S = 9.0


@pytest.fixture(name="held")
def _held(recipe: Recipe, build_store, tmp_path) -> Recipe:  # type: ignore[no-untyped-def]
    """A job whose pictures, 90 for training and 30 for validation, are held in memory."""
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
    """A profile that measured the loading time."""
    return replace(profile, time=replace(profile.time, one_time_s={"load": KNOWN_S}))


def time_of(block: BlockTimes) -> TrainingTime:
    return training_time(
        block, batch_size=16, num_train=90, num_val=30, epochs=1.0, num_validations=1.0
    )


def threads(recipe: Recipe, number: int) -> Recipe:
    return replace(recipe, loader=replace(recipe.loader, threads=number))


def test_recipes_that_read_alike_load_as_the_profile_found(lab, loaded, held) -> None:
    other = replace(held, seed=3)
    assert loading_s(lab, loaded, held, other, watchdog=Watchdog()) == ((KNOWN_S,), (KNOWN_S,))


def test_each_of_two_ways_to_read_is_timed(lab, loaded, held, monkeypatch) -> None:
    one, two = threads(held, 1), threads(held, 2)
    asked: list[int | None] = []

    def example_s(_: object, recipe: Recipe, __: int) -> float:
        asked.append(recipe.loader.threads)
        return 0.1 / len(asked)

    monkeypatch.setattr(loading, "_example_s", example_s)
    before, after = loading_s(lab, loaded, one, two, watchdog=Watchdog())
    assert asked[:6] == [1, 2, 2, 1, 1, 2], "in turn"
    assert (len(before), len(after)) == (8, 8), "the first timings have cold pages"
    assert before[:2] == (pytest.approx(12 / 4), pytest.approx(12 / 5)), "90 + 30 examples"
    assert after[:2] == (pytest.approx(12 / 3), pytest.approx(12 / 6))


def test_a_timing_fills_memory_with_a_sample(lab, held, monkeypatch) -> None:
    opened: list[Reader] = []

    def reader_of(*given: object) -> Reader:
        opened.append(make_train_reader(*given))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr(loading, "make_train_reader", reader_of)
    assert loading._example_s(lab, held, 45) > 0
    assert [reader.num_examples for reader in opened] == [45], "half of the 90"
    assert opened[0].stats.decode_s > 0, "memory is filled from the store"


def test_a_larger_sample_takes_longer_to_load(lab, loaded, held, monkeypatch) -> None:
    monkeypatch.setattr(loading, "_example_s", lambda *_: 0.1)
    half = replace(held, data=replace(held.data, fraction=0.5))
    before, after = loading_s(lab, loaded, half, held, watchdog=Watchdog())
    assert before == pytest.approx((7.5,) * 8)
    assert after == pytest.approx((12.0,) * 8)


def test_nothing_is_loaded_that_is_streamed_or_read_once_for_features(
    lab, loaded, held, monkeypatch
) -> None:
    stream = replace(held, data=replace(held.data, where=Where.STREAM))
    cached = replace(held, features=replace(held.features, cached=True))
    watchdog = Watchdog()
    looked: list[Recipe] = []
    monkeypatch.setattr(loading, "_example_s", lambda _, recipe, __: looked.append(recipe) or 0.1)
    assert loading_s(lab, loaded, held, cached, watchdog=watchdog) == ((KNOWN_S,), ())
    assert loading_s(lab, loaded, held, stream, watchdog=watchdog) == ((KNOWN_S,), ())
    assert loading_s(lab, loaded, stream, stream, watchdog=watchdog) == ((), ())
    assert looked == []
    before, after = loading_s(lab, loaded, stream, held, watchdog=watchdog)
    assert (before, len(after)) == ((), 8)
    assert all(recipe == held for recipe in looked), "streaming recipes are not timed"


def test_the_noise_of_loading_is_in_the_blocks(lab, loaded, held) -> None:
    side = Side(Workload.__new__(Workload), lambda block: time_of(block), loads_s=(1.0, 3.0))
    for _ in range(3):
        side.add(BlockTimes(step_s=0.0, num_steps=1, validation_s=0.0))
    assert side.totals_s() == (1.0, 3.0, 1.0)
    assert side.mean_time().one_time_s["load"] == pytest.approx(5 / 3)

"""Predictions about reading, from statistics of the reader, the disk and the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stepladder.config.choices import OrderMode, Where
from stepladder.config.recipe import DataConfig, FeaturesConfig, LoaderConfig, Recipe
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile, TrainingTime
from stepladder.rungs.speed.all_data import AllData
from stepladder.rungs.speed.loader_threads import LoaderThreads
from stepladder.rungs.speed.pixel_store import PixelStore
from stepladder.rungs.speed.scaled_decode import ScaledDecode
from stepladder.rungs.speed.streaming import Streaming
from stepladder.rungs.speed.windowed_order import WindowedOrder

Make = Callable[..., Profile]

STREAM = Recipe(
    data=DataConfig(where=Where.STREAM), loader=LoaderConfig(threads=1, scaled_decode=False)
)
# 1,600 pictures of train and 200 of val, read on one of two cores: 20 ms to fetch, 80 to decode
JPEGS = {
    "store_encoding": "jpeg",
    "source_pixels": 4e6,
    "stored_bytes": 20_000.0,
    "loader_cpu_s": 0.1,
    "loader_fetch_s": 0.02,
    "loader_decode_s": 0.08,
    "fetch_bytes_per_s": 1e6,
    "bandwidth_bytes_per_s": 2e8,
    "replay_host_s": 0.2,
}
# 1,800 pictures of 20 kB are 36 MB; at 0.2 MB/s, 0.1 s each
LINK = {"link_bytes_per_s": 2e5, "is_store_near": False}
SMALL_CACHE = replace(STREAM, data=replace(STREAM.data, max_cache_bytes=35_999_999))


def time_of(found: Prediction) -> TrainingTime:
    assert found.time is not None
    return found.time


def test_a_smaller_decode_leaves_the_fetch_as_it_is(make_profile: Make) -> None:
    # a side of 2,000 pixels, a quarter of which is more than a third above the required 200
    profile = make_profile(**JPEGS, step_s=1.6)
    found = ScaledDecode().predict(profile, STREAM)
    assert (found.inputs["factor"], found.inputs["cost"]) == (4, 0.63)
    assert (found.inputs["loader_fetch_s"], found.inputs["loader_decode_s"]) == (0.02, 0.08)
    assert time_of(found).step_s == pytest.approx(16 * (0.02 + 0.63 * 0.08)), (
        "reading sets the pace"
    )


def test_pixels_are_fetched_as_jpegs_are_with_more_to_copy(make_profile: Make) -> None:
    found = PixelStore().predict(make_profile(**JPEGS), STREAM)
    # 120,000 bytes instead of 20,000, each copied twice at 200 MB/s: 1 ms more
    assert found.inputs["read_s"] == pytest.approx(0.02 + 0.001)
    assert found.inputs["store_s"] == pytest.approx(1800 * (0.1 / 2 + 0.0012))


def test_more_threads_make_no_link_faster(make_profile: Make) -> None:
    near, far = make_profile(**JPEGS, step_s=1.6), make_profile(**JPEGS, **LINK, step_s=1.6)
    faster = LoaderThreads().predict(near, SMALL_CACHE)
    assert time_of(faster).step_s < 1.6
    same = LoaderThreads().predict(far, SMALL_CACHE)
    assert time_of(same).step_s == pytest.approx(16 * 0.1)
    assert same.inputs["store_s"] == pytest.approx(0.1)
    cached = LoaderThreads().predict(far, STREAM)
    assert time_of(cached).step_s == time_of(faster).step_s, "the cache has all the files"


def test_the_first_epoch_pays_for_what_a_cache_keeps_and_each_where_it_does_not(
    make_profile: Make,
) -> None:
    profile = make_profile(**JPEGS | {"replay_host_s": None}, **LINK, free_memory_bytes=10**6)
    held = replace(STREAM, data=replace(STREAM.data, where=Where.MEMORY))
    kept = Streaming().predict(profile, held)
    assert time_of(kept).one_time_s == pytest.approx({"download": 180.0})
    assert time_of(kept).step_s == pytest.approx(1 + 16 * 0.1), "fetch and decode on one thread"
    assert "only the first epoch downloads the files" in kept.note
    small = replace(held, data=replace(held.data, max_cache_bytes=10**6))
    faster = replace(profile, device="cuda", link_bytes_per_s=1e5)
    each = Streaming().predict(faster, small)
    assert time_of(each).one_time_s == {}
    assert (time_of(each).step_s, time_of(each).validation_s) == pytest.approx(
        (16 * 0.2, 200 * 0.2)
    )
    assert each.note == "each epoch downloads the files, at 0.1 MB/s, as the cache cannot hold them"


def test_all_data_may_be_more_than_the_cache_holds(make_profile: Make) -> None:
    sample = replace(STREAM, data=replace(STREAM.data, fraction=0.5))
    profile = make_profile(**JPEGS, **LINK)  # all are 3,400 pictures, 68 MB
    fits = AllData().predict(profile, sample)
    assert time_of(fits).step_s == 1
    assert time_of(fits).one_time_s == pytest.approx({"download": 1600 * 0.1})
    small = replace(sample, data=replace(sample.data, max_cache_bytes=60_000_000))
    each = AllData().predict(profile, small)
    assert time_of(each).step_s == pytest.approx(16 * 0.1)
    assert time_of(each).one_time_s == {}


FAR = {**JPEGS, **LINK, "step_s": 10.0, "device": "cuda", "link_bytes_per_s": 2e6}
GLOBAL = replace(SMALL_CACHE, data=replace(SMALL_CACHE.data, order=OrderMode.GLOBAL))


def test_windows_read_each_file_once_an_epoch(make_profile: Make) -> None:
    profile = make_profile(**FAR)
    assert WindowedOrder().why_not(profile, GLOBAL) is None
    found = WindowedOrder().predict(profile, GLOBAL)
    assert time_of(found).step_s == pytest.approx(0.2), "16 pictures of 20 kB take 0.16 s"
    assert found.inputs["bytes_per_s"] == 2e6
    slow = replace(profile, link_bytes_per_s=2e5)
    assert time_of(WindowedOrder().predict(slow, GLOBAL)).step_s == pytest.approx(1.6)
    on_cpu = replace(profile, device="cpu")
    shared = time_of(WindowedOrder().predict(on_cpu, GLOBAL)).step_s
    assert shared == pytest.approx(0.2 + 16 * 0.08 / 2)
    assert WindowedOrder().apply(profile, GLOBAL).data.order is OrderMode.WINDOWED


def test_windows_on_a_disk_that_turns(make_profile: Make) -> None:
    facts = FAR | {"link_bytes_per_s": None, "disk_bytes_per_s": 1e6, "free_host_bytes": 18_000_000}
    found = WindowedOrder().predict(make_profile(**facts), GLOBAL)
    assert found.inputs["store_s"] == pytest.approx(0.5 * 0.02), "half of it stays in memory"


@pytest.mark.parametrize(
    ("facts", "recipe", "said"),
    [
        ({}, SMALL_CACHE, "not global"),
        ({"is_store_near": True}, GLOBAL, "single examples from this store is cheap"),
        ({"is_store_near": None}, GLOBAL, "not a store"),
        ({"link_bytes_per_s": None}, GLOBAL, "the rate of reading files"),
        ({}, replace(GLOBAL, features=FeaturesConfig(cached=True)), "for its features"),
        ({}, Recipe(data=DataConfig(order=OrderMode.GLOBAL)), "whole store"),
    ],
)
def test_windows_are_refused_where_they_give_nothing(
    make_profile: Make, facts: dict[str, object], recipe: Recipe, said: str
) -> None:
    assert said in (WindowedOrder().why_not(make_profile(**FAR | facts), recipe) or "")

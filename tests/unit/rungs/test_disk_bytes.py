"""The disk usage of a rung is counted completely before it is tried."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.config.choices import Where
from stepladder.config.options import LadderConfig
from stepladder.config.recipe import DataConfig, FeaturesConfig, ModelConfig, Recipe
from stepladder.ladder.limits.feasibility import why_not_here
from stepladder.records.profile import Profile
from stepladder.rungs.speed.all_data import AllData
from stepladder.rungs.speed.cached_features import CachedFeatures
from stepladder.rungs.speed.larger_model import LargerModel
from stepladder.rungs.speed.pixel_store import PixelStore

Make = Callable[..., Profile]
SAMPLE = DataConfig(fraction=0.5, where=Where.STREAM)
CACHED = FeaturesConfig(cached=True)


def test_a_pixel_store_holds_what_a_sample_leaves_out(make_profile: Make) -> None:
    profile = make_profile(
        store_encoding="jpeg",
        loader_cpu_s=0.1,
        bandwidth_bytes_per_s=240_000 / 0.02,
        num_test=150,
    )
    recipe = Recipe(data=SAMPLE)
    num = 2 * 1600 + 200 + 150
    assert PixelStore().disk_bytes(profile, recipe) == 120_000 * num
    found = PixelStore().predict(profile, recipe)
    assert found.inputs["store_s"] == pytest.approx(num * (0.05 + 0.02))


@pytest.mark.parametrize(("views", "num"), [(0, 3200 + 200 + 7), (3, 3 * 3200 + 200 + 7)])
def test_features_of_all_data_are_other_features(make_profile: Make, views: int, num: int) -> None:
    profile = make_profile(feature_bytes=1000, is_random_before_head=views > 0, num_test=7)
    features = FeaturesConfig(cached=True, cached_views=views)
    assert AllData().disk_bytes(profile, Recipe(data=SAMPLE, features=features)) == 1000 * num
    assert AllData().disk_bytes(profile, Recipe(data=SAMPLE)) == 0


def test_features_of_a_larger_trunk_are_as_wide_as_it_is(make_profile: Make) -> None:
    profile = make_profile(feature_bytes=512 * 4, larger_trunks=("resnet50",), num_test=7)
    model = ModelConfig(name="resnet34")
    cached = Recipe(model=model, features=CACHED)
    assert LargerModel().disk_bytes(profile, cached) == 2048 * 4 * 1807
    assert LargerModel().disk_bytes(profile, Recipe(model=model)) == 0


def test_a_larger_model_is_refused_where_its_features_take_more_than_is_allowed(
    make_profile: Make,
) -> None:
    profile = make_profile(feature_bytes=512 * 4, larger_trunks=("resnet50",))
    cached = Recipe(model=ModelConfig(name="resnet34"), features=CACHED)
    allowed = LadderConfig(max_cache_bytes=10**7)
    refusal = why_not_here(LargerModel(), profile, cached, allowed)
    assert refusal == "needs 14.7 MB of disk; ladder.max_cache_bytes allows 10.0 MB"


def test_features_of_test_are_kept_too(make_profile: Make) -> None:
    profile = make_profile(feature_bytes=1000, num_test=7)
    assert CachedFeatures().disk_bytes(profile, Recipe()) == 1000 * (1600 + 200 + 7)

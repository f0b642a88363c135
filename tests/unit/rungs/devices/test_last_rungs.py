"""The last level: stronger optimizers, rates by layer, and populations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stepladder.config.choices import (
    AsyncMethod,
    OptimizerName,
    Precision,
    TrainMode,
)
from stepladder.config.recipe import (
    AsynchronousConfig,
    BatchConfig,
    DeviceConfig,
    FeaturesConfig,
    HeadConfig,
    OptimizerConfig,
    Recipe,
    StoppingConfig,
)
from stepladder.optim.table import OPTIMIZERS, spec_of
from stepladder.records.profile import Profile
from stepladder.rungs.devices.layerwise_rates import LayerwiseRates
from stepladder.rungs.devices.population import Population
from stepladder.rungs.devices.stronger_optimizer import StrongerOptimizer
from stepladder.rungs.order import RUNGS

RECIPE = Recipe(train=TrainMode.ALL)
LARGE = replace(RECIPE, batch=BatchConfig(global_batch_size=4096))
STRONG = {spec.name for spec in OPTIMIZERS if spec.uses_curvature}


@pytest.fixture(name="profile")
def _profile(make_profile: Callable[..., Profile]) -> Profile:
    return make_profile(phases_s={"optimizer": 0.1}, is_trunk_frozen=False)


def test_all_levels_of_the_ladder_exist() -> None:
    assert {rung.level for rung in RUNGS} >= set(range(2, 13))
    assert [rung.name for rung in RUNGS[-3:]] == [
        "stronger_optimizer",
        "layerwise_rates",
        "population",
    ]


def test_stronger_optimizers_are_tried_at_their_own_rates(profile: Profile) -> None:
    rung = StrongerOptimizer()
    assert rung.why_not(profile, RECIPE) is None
    found = rung.variants(profile, RECIPE)
    assert {one.optimizer.name for one in found} == STRONG
    assert len(found) == 2 * len(STRONG)
    for one in found:
        usual = spec_of(one.optimizer.name).usual_lr
        assert one.batch.lr in (pytest.approx(usual), pytest.approx(0.3 * usual, rel=0.01))
        assert one.batch.base_batch_size == one.batch.global_batch_size
        assert rung.why_not(profile, one) == "already on"


def test_its_steps_cost_more_and_are_fewer(profile: Profile) -> None:
    found = StrongerOptimizer().predict(profile, RECIPE)
    assert found.time is not None
    assert found.time.epochs == pytest.approx(0.7 * profile.time.epochs)
    assert found.time.step_s == pytest.approx(profile.time.step_s + 0.2)
    assert "held-out examples decide" in found.note


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (replace(RECIPE, stopping=StoppingConfig(early=False)), "fixes the epochs"),
        (replace(RECIPE, train=TrainMode.HEAD_THEN_ALL), "stages"),
        (
            replace(RECIPE, asynchronous=AsynchronousConfig(method=AsyncMethod.LOCAL_SGD)),
            "workers",
        ),
        (replace(RECIPE, optimizer=OptimizerConfig(name=OptimizerName.SOAP)), "already on"),
        (replace(RECIPE, device=DeviceConfig(count=2, sharded=True)), "supports"),
    ],
)
def test_why_no_stronger_optimizer(profile: Profile, recipe: Recipe, reason: str) -> None:
    assert reason in str(StrongerOptimizer().why_not(profile, recipe))


def test_what_hides_layers_leaves_out_those_that_see_them(profile: Profile) -> None:
    for device in (DeviceConfig(compile=True), DeviceConfig(precision=Precision.FP16)):
        recipe = replace(RECIPE, device=device)
        names = {one.optimizer.name for one in StrongerOptimizer().variants(profile, recipe)}
        assert names == {name for name in STRONG if not spec_of(name).sees_layers}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (OptimizerName.SGD, OptimizerName.LARS),
        (OptimizerName.NADAM, OptimizerName.LAMB),
        (OptimizerName.ADAMW, OptimizerName.LAMB),
    ],
)
def test_rates_by_layer_go_with_the_optimizer(profile: Profile, name, expected) -> None:
    recipe = replace(LARGE, optimizer=OptimizerConfig(name=name))
    rung = LayerwiseRates()
    assert rung.why_not(profile, recipe) is None
    found = rung.variants(profile, recipe)
    assert [one.optimizer.name for one in found] == [expected] * 3
    usual = spec_of(expected).usual_lr
    assert found[0].batch.lr == pytest.approx(usual)
    assert rung.why_not(profile, found[0]) == "already on"
    assert rung.predict(profile, recipe).time.epochs == pytest.approx(0.9 * profile.time.epochs)


def test_a_batch_below_the_noise_scale_needs_no_rates_by_layer(profile: Profile) -> None:
    rung = LayerwiseRates()
    assert "1,024" in str(rung.why_not(profile, RECIPE))
    noisy = replace(profile, noise_scale=5000.0)
    assert "up to a batch of 5,000, the gradient noise scale" in str(rung.why_not(noisy, LARGE))
    quiet = replace(profile, noise_scale=300.0)
    small = replace(RECIPE, batch=BatchConfig(global_batch_size=512))
    assert rung.why_not(quiet, small) is None
    assert rung.why_not(profile, small) is not None


def test_a_head_alone_has_no_layers_whose_rates_could_differ(profile: Profile) -> None:
    assert "only the head" in str(
        LayerwiseRates().why_not(replace(profile, is_trunk_frozen=True), LARGE)
    )


def test_what_a_population_costs(profile: Profile) -> None:
    rung = Population()
    assert rung.is_prediction_only
    assert rung.why_not(profile, RECIPE) is None
    in_turn = rung.predict(profile, RECIPE)
    assert in_turn.time is not None
    assert in_turn.time.loop_s == pytest.approx(16 * profile.time.loop_s)
    assert "stepladder population" in in_turn.note
    cached = replace(RECIPE, train=TrainMode.HEAD, features=FeaturesConfig(cached=True))
    at_once = rung.predict(profile, cached)
    assert at_once.time is not None
    assert at_once.time.loop_s == pytest.approx(16 / 6 * profile.time.loop_s)
    hidden = replace(cached, head=HeadConfig(hidden=8))
    assert rung.predict(profile, hidden).time == in_turn.time
    assert rung.apply(profile, RECIPE) == RECIPE


def test_why_no_population(profile: Profile) -> None:
    rung = Population()
    assert "no validation" in str(rung.why_not(replace(profile, num_val=0), RECIPE))
    two = replace(RECIPE, device=DeviceConfig(count=2))
    assert "one device" in str(rung.why_not(profile, two))

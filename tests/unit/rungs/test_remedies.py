"""What each remedy changes, and when it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepladder.config.choices import Monitor, OptimizerName, TrainMode, WeightsSource
from stepladder.config.recipe import (
    AugmentConfig,
    BatchConfig,
    FeaturesConfig,
    HeadConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.records.profile import Profile, TrainingTime
from stepladder.rungs.accuracy.add_normalisation import AddNormalisation
from stepladder.rungs.accuracy.augmentation import Augmentation
from stepladder.rungs.accuracy.dropout import Dropout
from stepladder.rungs.accuracy.earlier_stop import EarlierStop
from stepladder.rungs.accuracy.hidden_layer import HiddenLayer
from stepladder.rungs.accuracy.label_smoothing import LabelSmoothing
from stepladder.rungs.accuracy.learning_rate_higher import LearningRateHigher
from stepladder.rungs.accuracy.learning_rate_lower import LearningRateLower
from stepladder.rungs.accuracy.train_longer import TrainLonger
from stepladder.rungs.accuracy.weight_decay import WeightDecay
from stepladder.rungs.accuracy.whole_model import WholeModel
from stepladder.rungs.speed.larger_model import LargerModel

TIME = TrainingTime(epochs=10, steps_per_epoch=5, step_s=0.1, num_validations=10, validation_s=0.2)
ProfileOf = Callable[..., Profile]


@pytest.fixture(name="built_in")
def _built_in(profile_of: ProfileOf) -> Callable[..., Profile]:
    def make(time: TrainingTime = TIME, **facts: Any) -> Profile:
        known = {"num_train": 50, "num_val": 10, "is_built_in": True, "has_head": True}
        return profile_of(time, **known | facts)

    return make


def of(recipes: tuple[Recipe, ...], group: str, name: str) -> list[Any]:
    return [getattr(getattr(recipe, group), name) for recipe in recipes]


def with_lr(lr: float, name: OptimizerName = OptimizerName.ADAM) -> Recipe:
    return Recipe(batch=BatchConfig(lr=lr), optimizer=OptimizerConfig(name=name))


def test_higher_rates_stay_where_the_optimizer_learns(built_in: Callable[..., Profile]) -> None:
    rung, profile = LearningRateHigher(), built_in()
    assert of(rung.variants(profile, with_lr(1e-3)), "batch", "lr") == [0.01, 0.003, 0.03]
    assert of(rung.variants(profile, with_lr(0.02)), "batch", "lr") == [0.06]
    assert "at a learning rate above 0.1" in (rung.why_not(profile, with_lr(0.05)) or "")
    sgd = with_lr(0.05, OptimizerName.SGD)
    assert of(rung.variants(profile, sgd), "batch", "lr") == [0.5, 0.15]


def test_lower_rates_end_above_nothing(built_in: Callable[..., Profile]) -> None:
    rung, profile = LearningRateLower(), built_in()
    rates = of(rung.variants(profile, with_lr(0.3)), "batch", "lr")
    assert rates == pytest.approx([0.03, 0.1, 0.01])
    assert rung.why_not(profile, with_lr(2e-6)) == "the learning rate is already 2e-06"


def test_a_training_that_its_schedule_ends_gets_twice_the_epochs(
    built_in: Callable[..., Profile],
) -> None:
    rung, profile = TrainLonger(), built_in()
    recipe = Recipe(schedule=ScheduleConfig(max_epochs=10), stopping=StoppingConfig(patience=3))
    after = rung.apply(profile, recipe)
    assert after.schedule.max_epochs == 20
    assert after.stopping == recipe.stopping
    found = rung.predict(profile, recipe)
    assert found.gain == pytest.approx(0.5)
    assert rung.why_not(profile, after) is None, "stopping may end it now: patience comes next"


def test_steps_and_the_horizon_move_along(built_in: Callable[..., Profile]) -> None:
    schedule = ScheduleConfig(max_epochs=60, max_steps=50, horizon_epochs=10)
    after = TrainLonger().apply(built_in(), Recipe(schedule=schedule)).schedule
    assert (after.max_epochs, after.max_steps, after.horizon_epochs) == (60, 100, 20)


def test_a_training_that_stops_by_itself_gets_patience_up_to_half_its_length(
    built_in: Callable[..., Profile],
) -> None:
    rung, profile = TrainLonger(), built_in()
    recipe = Recipe(schedule=ScheduleConfig(max_epochs=60), stopping=StoppingConfig(patience=1))
    after = rung.apply(profile, recipe)
    assert after.stopping.patience == 5
    assert after.schedule == recipe.schedule
    assert "patience" in (rung.why_not(profile, after) or "")
    assert rung.predict(profile, recipe).gain == pytest.approx(10 / 14)


def test_epochs_that_are_not_used_are_not_doubled(built_in: Callable[..., Profile]) -> None:
    recipe = Recipe(schedule=ScheduleConfig(max_epochs=60), stopping=StoppingConfig(early=False))
    assert "60 epochs" in (TrainLonger().why_not(built_in(), recipe) or "")


def test_a_head_gets_a_layer_where_it_has_none(built_in: Callable[..., Profile]) -> None:
    rung, profile = HiddenLayer(), built_in()
    assert of(rung.variants(profile, Recipe()), "head", "hidden") == [512, 128]
    assert rung.why_not(profile, Recipe(head=HeadConfig(hidden=64))) == "already on: 64 units"
    assert rung.why_not(built_in(is_built_in=False), Recipe()) == "the task builds its own model"


def test_for_accuracy_a_busy_device_and_random_weights_do_not_block_a_larger_trunk(
    built_in: Callable[..., Profile],
) -> None:
    busy = built_in(mfu=0.9, example_bytes=3 * 32 * 32)
    resnet = Recipe(model=ModelConfig(name="resnet18", weights=WeightsSource.NONE))
    assert LargerModel().why_not(busy, resnet) == "no weights of a larger trunk are available"
    rung = LargerModel(needs_idle=False)
    assert rung.why_not(busy, resnet) is None
    after = rung.apply(busy, resnet)
    assert after.model == ModelConfig(name="resnet34", weights=WeightsSource.NONE)
    learnt = Recipe(model=ModelConfig(name="resnet18", weights=WeightsSource.HUB))
    assert "available" in (rung.why_not(busy, learnt) or ""), (
        "no random weights instead of pretrained ones"
    )


def test_the_trunk_learns_at_its_own_rate_and_its_features_are_not_kept(
    built_in: Callable[..., Profile],
) -> None:
    profile = built_in(is_trunk_frozen=True, trunk_s=0.01)
    recipe = Recipe(
        features=FeaturesConfig(cached=True, cached_views=4),
        batch=BatchConfig(global_batch_size=10, lr=1e-2, lr_all=1e-4),
        model=ModelConfig(fold_batchnorm=True),
    )
    after = WholeModel().apply(profile, recipe)
    assert after.train is TrainMode.ALL
    assert after.batch.lr == 1e-4
    assert after.features == FeaturesConfig(cached=False)
    assert not after.model.fold_batchnorm
    found = WholeModel().predict(profile, recipe)
    assert found.time is not None
    assert found.time.step_s == pytest.approx(0.1 + 10 * 3 * 0.01), (
        "forward, and twice that backward"
    )
    assert found.time.validation_s == pytest.approx(0.2 + 10 * 0.01)


@pytest.mark.parametrize(
    ("facts", "refusal"),
    [
        ({"num_norms": None}, "not measured"),
        ({"num_norms": 3}, "has normalisation layers"),
        ({"num_norms": 0, "num_conv2d": 0}, "no Conv2d"),
        ({"num_norms": 0, "num_conv2d": 4, "num_batchnorm": 0}, None),
    ],
)
def test_normalisation_is_advised_for_convolutions_without_it(
    built_in: Callable[..., Profile], facts: dict[str, Any], refusal: str | None
) -> None:
    profile = built_in(**{"num_conv2d": 4, "num_batchnorm": 0} | facts)
    found = AddNormalisation().why_not(profile, Recipe())
    assert (found is None) if refusal is None else (refusal in (found or ""))
    if refusal is None:
        assert "nn.GroupNorm" in AddNormalisation().predict(profile, Recipe()).note


def test_pictures_of_a_frozen_trunk_are_kept_in_views(built_in: Callable[..., Profile]) -> None:
    rung = Augmentation()
    frozen = built_in(is_trunk_frozen=True, trunk_s=0.01, head_step_s=1e-3, feature_bytes=100)
    found = rung.variants(frozen, Recipe())
    assert of(found, "features", "cached_views") == [4, 4, 4]
    assert of(found, "augment", "flip") == [True, True, False]
    assert of(found, "augment", "randaugment_ops") == [0, 2, 0]
    assert rung.disk_bytes(frozen, Recipe()) == 100 * (4 * 50 + 10)
    learning = built_in(is_trunk_frozen=False)
    assert not any(of(rung.variants(learning, Recipe()), "features", "cached"))
    assert rung.disk_bytes(learning, Recipe()) == 0


def test_who_mirrors_already_gets_two_ways_and_who_crops_none(
    built_in: Callable[..., Profile],
) -> None:
    profile = built_in(is_trunk_frozen=False)
    mirrored = Recipe(augment=AugmentConfig(flip=True))
    assert len(Augmentation().variants(profile, mirrored)) == 2
    assert Augmentation().why_not(profile, Recipe(augment=AugmentConfig(crop=0.8))) == "already on"


@pytest.mark.parametrize(
    ("rung", "on", "refusal"),
    [
        (Dropout(), Recipe(head=HeadConfig(dropout=0.2)), "already on: 0.2"),
        (WeightDecay(), Recipe(optimizer=OptimizerConfig(weight_decay=0.5)), "already on: 0.5"),
        (LabelSmoothing(), Recipe(loss=LossConfig(label_smoothing=0.1)), "already on: 0.1"),
        (EarlierStop(), Recipe(), "already on"),
    ],
)
def test_what_is_on_is_not_tried(
    built_in: Callable[..., Profile], rung: Any, on: Recipe, refusal: str
) -> None:
    assert rung.why_not(built_in(), on) == refusal


@pytest.mark.parametrize(("name", "first"), [(OptimizerName.ADAMW, 0.1), (OptimizerName.SGD, 1e-3)])
def test_decay_of_the_weight_is_larger_than_decay_of_the_gradient(
    built_in: Callable[..., Profile], name: OptimizerName, first: float
) -> None:
    after = WeightDecay().apply(built_in(), with_lr(0.01, name))
    assert after.optimizer.weight_decay == first
    assert after.optimizer.name is name


def test_an_earlier_stop_keeps_the_best_weights_by_either_measure(
    built_in: Callable[..., Profile],
) -> None:
    last = Recipe(stopping=StoppingConfig(early=False, restore_best=False))
    rung = EarlierStop()
    found = rung.variants(built_in(), last)
    assert of(found, "stopping", "monitor") == [Monitor.VAL_LOSS, Monitor.VAL_ACCURACY]
    assert all(of(found, "stopping", "restore_best"))
    own = rung.variants(built_in(is_built_in=False), last)
    assert of(own, "stopping", "monitor") == [Monitor.VAL_LOSS], "a task may have no classes"
    assert rung.why_not(built_in(num_val=0), last) == "there are no validation examples"
    kept = replace(last, stopping=replace(last.stopping, early=True))
    assert rung.predict(built_in(), kept).gain == pytest.approx(1.0)

"""What each rung refuses, predicts and changes, on a job with numbers that are easy to verify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest

from stepladder.config.choices import (
    DeviceChoice,
    MemoryFormat,
    OptimizerName,
    Precision,
    WeightsSource,
    Where,
)
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    DeviceConfig,
    FeaturesConfig,
    LoaderConfig,
    ModelConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.ladder.advise import flags_of
from stepladder.records.ladder import Exactness
from stepladder.records.profile import Curve, Profile, Provenance
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.gpu import UseGpu
from stepladder.rungs.speed.all_data import AllData
from stepladder.rungs.speed.cached_features import CachedFeatures
from stepladder.rungs.speed.compile import Compile
from stepladder.rungs.speed.compute_threads import ComputeThreads
from stepladder.rungs.speed.early_stopping import EarlyStopping
from stepladder.rungs.speed.fewer_validations import FewerValidations
from stepladder.rungs.speed.fused_optimizer import FusedOptimizer
from stepladder.rungs.speed.gradient_checkpointing import GradientCheckpointing
from stepladder.rungs.speed.larger_batch import LargerBatch
from stepladder.rungs.speed.larger_model import LargerModel
from stepladder.rungs.speed.loader_threads import LoaderThreads
from stepladder.rungs.speed.mixed_precision import MixedPrecision
from stepladder.rungs.speed.pixel_store import PixelStore
from stepladder.rungs.speed.pretrained import Pretrained
from stepladder.rungs.speed.scaled_decode import ScaledDecode
from stepladder.rungs.speed.streaming import Streaming

Make: TypeAlias = Callable[..., Profile]
UNTIL_THE_END = Recipe(stopping=StoppingConfig(early=False))
FIXED = {"stopping": UNTIL_THE_END.stopping}
SGD = OptimizerConfig(name=OptimizerName.SGD)


def test_pretrained_takes_packaged_weights_only_for_their_own_trunk(make_profile: Make) -> None:
    profile = make_profile(is_pretrained=False)
    scratch = ModelConfig(weights=WeightsSource.NONE)
    assert Pretrained().apply(profile, Recipe(model=scratch)).model.weights == "packaged"
    other = Recipe(model=replace(scratch, name="resnet18"))
    assert Pretrained().apply(profile, other).model.weights == "hub"


def test_without_a_gpu_the_loader_bounds_what_one_could_give(make_profile: Make) -> None:
    # 16,000 examples and 2,000 for validation at 150 per second: 120 s instead of 1,200
    profile = make_profile(loader_per_s=150.0, step_flops=1e3, forward_flops=1e3)
    refusal = UseGpu().why_not(profile, Recipe())
    assert (
        refusal
        == "no GPU on this machine (with a T4: at most 10×, limited by the loader's 150 examples/s)"
    )


def test_without_a_gpu_its_roofline_bounds_it_too(make_profile: Make) -> None:
    # FLOP/s as 2 to 1, bytes/s as 4 to 1: nothing gets more than four times as fast
    profile = make_profile(
        loader_per_s=1e6,
        peak_flops_per_s=8.1e12 / 2,
        bandwidth_bytes_per_s=320e9 / 4,
        phases_s={"forward": 0.8},  # the rest of the step is assumed to take no time
    )
    bound = 1200 / (1000 * 0.2 + 200 / 4)
    refusal = UseGpu().why_not(profile, Recipe())
    assert refusal == f"no GPU on this machine (with a T4: at most {bound:.1f}×)"


def test_without_a_loaders_rate_no_bound_is_claimed(make_profile: Make) -> None:
    assert UseGpu().why_not(make_profile(), Recipe()) == "no GPU on this machine"


def test_where_neither_data_nor_arithmetic_is_known_nothing_bounds_a_gpu(
    make_profile: Make,
) -> None:
    profile = make_profile(step_s=1.0, replay_host_s=1.0, has_cuda=True)
    found = UseGpu().predict(profile, Recipe())
    assert found.gain == 1
    assert "no bound is known" in found.note


def test_early_stopping_takes_the_epochs_of_the_curve(make_profile: Make) -> None:
    curve = Curve(epochs=10, val_losses=(), epochs_to_stop=5.0, provenance=Provenance.REPLAYED)
    found = EarlyStopping().predict(make_profile(curve=curve), UNTIL_THE_END)
    assert found.gain == pytest.approx(2)
    assert found.provenance is Provenance.REPLAYED


def test_early_stopping_still_writes_the_checkpoint_at_the_end(make_profile: Make) -> None:
    curve = Curve(epochs=10, val_losses=(), epochs_to_stop=5.0, provenance=Provenance.REPLAYED)
    profile = make_profile(curve=curve, checkpoint_s=9.0, save_s=3.0)
    found = EarlyStopping().predict(profile, UNTIL_THE_END)
    assert found.time is not None
    assert found.time.checkpoint_s == 3 + 6 / 2
    assert found.gain == pytest.approx(1209 / 606)


def test_early_stopping_without_a_curve_says_that_it_assumes(make_profile: Make) -> None:
    found = EarlyStopping().predict(make_profile(epochs=60.0), UNTIL_THE_END)
    assert found.time is not None
    assert found.time.epochs == pytest.approx(11)
    assert "assumes" in found.note
    short = EarlyStopping().predict(make_profile(epochs=3.0), UNTIL_THE_END)
    assert short.gain == 1  # patience alone takes longer


def test_early_stopping_leaves_what_the_user_goes_by(make_profile: Make) -> None:
    recipe = Recipe(
        stopping=StoppingConfig(early=False, restore_best=False, validate_every_epochs=2)
    )
    after = EarlyStopping().apply(make_profile(), recipe).stopping
    assert after == StoppingConfig(validate_every_epochs=2, patience=2)


def test_early_stopping_waits_for_epochs_however_often_it_validates(make_profile: Make) -> None:
    for every in (1, 4, 10):
        stopping = StoppingConfig(early=False, validate_every_epochs=every)
        found = EarlyStopping().variants(make_profile(), Recipe(stopping=stopping))
        best, *last = [variant.stopping for variant in found]
        assert best.restore_best
        assert (best.patience - 1) * every < 3 <= best.patience * every
        assert not any(one.restore_best for one in last)
        assert [one.patience for one in last] == sorted({one.patience for one in last})
        assert last[-1].patience * every >= 24


def test_early_stopping_predicts_other_patience_from_the_same_curve(make_profile: Make) -> None:
    curve = Curve(epochs=20, val_losses=(), epochs_to_stop=9.0, provenance=Provenance.REPLAYED)
    profile = make_profile(curve=curve, epochs=60.0)
    found = {
        variant.stopping.patience: EarlyStopping().predict_variant(profile, UNTIL_THE_END, variant)
        for variant in EarlyStopping().variants(profile, UNTIL_THE_END)[1:]
    }
    assert {p: one.inputs["epochs_to_stop"] for p, one in found.items()} == {
        1: 7.0,
        3: 9.0,
        6: 12.0,
        12: 18.0,
        24: 30.0,
    }


def test_early_stopping_takes_the_epochs_of_a_curve_whose_validations_go_by_steps(
    make_profile: Make,
) -> None:
    recipe = Recipe(
        schedule=ScheduleConfig(max_epochs=3),
        stopping=StoppingConfig(early=False, validate_every_steps=100),
    )
    curve = Curve(epochs=3, val_losses=(), epochs_to_stop=0.6, provenance=Provenance.REPLAYED)
    profile = make_profile(curve=curve, epochs=3.0, steps_per_epoch=1000.0, num_validations=30.0)
    assert EarlyStopping().predict(profile, recipe).gain == pytest.approx(5)
    found = EarlyStopping().variants(profile, recipe)
    epochs = [
        EarlyStopping().predict_variant(profile, recipe, variant).inputs["epochs_to_stop"]
        for variant in found
    ]
    assert [variant.stopping.patience for variant in found] == [3, 1, 3, 6, 12, 24]
    assert epochs == pytest.approx([0.6, 0.4, 0.6, 0.9, 1.5, 2.7])


def test_less_patience_still_takes_a_best_validation_and_one_more(make_profile: Make) -> None:
    curve = Curve(epochs=9, val_losses=(), epochs_to_stop=4.0, provenance=Provenance.REPLAYED)
    profile, every = make_profile(curve=curve), StoppingConfig(early=False, validate_every_epochs=2)
    recipe = Recipe(stopping=every)
    hasty = EarlyStopping().variants(profile, recipe)[1]
    assert hasty.stopping.patience == 1
    # two validations less than the curve's patience would end before the second validation
    found = EarlyStopping().predict_variant(profile, recipe, hasty)
    assert found.inputs["epochs_to_stop"] == 4


@pytest.mark.parametrize(
    ("schedule", "patience"),
    [
        (ScheduleConfig(max_epochs=60), [3, 1, 3, 6, 12, 24]),
        (ScheduleConfig(max_epochs=25), [3, 1, 3, 6, 12]),
        (ScheduleConfig(max_epochs=10), [3, 1, 3, 6]),
        (ScheduleConfig(max_epochs=60, max_steps=500), [3, 1, 3]),  # five epochs
        (ScheduleConfig(max_epochs=2), [3]),
    ],
)
def test_patience_that_the_schedule_ends_first_is_not_offered(
    make_profile: Make, schedule: ScheduleConfig, patience: list[int]
) -> None:
    recipe = replace(UNTIL_THE_END, schedule=schedule)
    found = EarlyStopping().variants(make_profile(), recipe)
    assert [variant.stopping.patience for variant in found] == patience
    assert found[0] == EarlyStopping().apply(make_profile(), recipe)


def test_early_stopping_says_which_other_way_to_stop_was_chosen(make_profile: Make) -> None:
    rung = EarlyStopping()
    curve = Curve(epochs=60, val_losses=(), epochs_to_stop=9.0, provenance=Provenance.REPLAYED)
    known, unknown = make_profile(curve=curve, epochs=60.0), make_profile(epochs=60.0)
    first, hasty, *_, patient = rung.variants(known, UNTIL_THE_END)
    notes = [rung.predict_variant(known, UNTIL_THE_END, v).note for v in (first, hasty, patient)]
    assert notes == [
        "",
        "patience of 1 validation, last weights",
        "patience of 24 validations, last weights",
    ]
    assumed = rung.predict_variant(unknown, UNTIL_THE_END, patient).note
    assert assumed.startswith("patience of 24 validations, last weights; assumes")


def test_cached_features_move_the_trunk_out_of_the_epochs(make_profile: Make) -> None:
    profile = make_profile(trunk_s=0.05, loader_cpu_s=0.02, head_step_s=0.01, head_validation_s=0.1)
    found = CachedFeatures().predict(profile, Recipe())
    features_s = 1800 * (0.05 + 0.02 / 2)  # two cores read
    assert found.gain == pytest.approx(1200 / (features_s + 1000 * 0.01 + 10 * 0.1))
    # an epoch saves 120 s minus 1.1 s
    assert found.inputs["break_even_epochs"] == pytest.approx(features_s / 118.9)
    of_dataset = replace(profile, default_threads=1)  # one thread reads, on any number of cores
    found = CachedFeatures().predict(of_dataset, Recipe())
    assert found.time is not None
    assert found.time.one_time_s["features"] == pytest.approx(1800 * (0.05 + 0.02))


def test_cached_features_load_no_pictures_into_memory(make_profile: Make) -> None:
    # the loader copies from memory; loading the 1,800 pictures took 5 ms each
    times = {"trunk_s": 0.05, "loader_cpu_s": 1e-6, "head_step_s": 0.01, "head_validation_s": 0.1}
    held = make_profile(one_time_s={"load": 9.0, "compile": 3.0}, **times)
    found = CachedFeatures().predict(held, Recipe(data=DataConfig(where=Where.MEMORY)))
    features_s = 1800 * (0.05 + 0.005)
    assert found.time is not None
    assert found.time.one_time_s == pytest.approx({"features": features_s, "compile": 3.0})
    # an epoch saves 120 s minus 1.1 s, and the pass replaces loading
    assert found.inputs["break_even_epochs"] == pytest.approx((features_s - 9) / 118.9)


def test_with_a_gpu_the_slower_of_reading_and_trunk_sets_the_pace(make_profile: Make) -> None:
    profile = make_profile(device="cuda", trunk_s=0.001, loader_cpu_s=0.02, head_step_s=0.01)
    found = CachedFeatures().predict(profile, Recipe())
    assert found.time is not None
    assert found.time.one_time_s["features"] == pytest.approx(1800 * 0.01)


def test_cached_views_cost_as_many_passes_and_are_another_training(make_profile: Make) -> None:
    profile = make_profile(is_random_before_head=True, trunk_s=0.05, head_step_s=0.01)
    assert "--features.cached-views" in (CachedFeatures().why_not(profile, Recipe()) or "")
    recipe = Recipe(features=FeaturesConfig(cached_views=4))
    assert CachedFeatures().why_not(profile, recipe) is None
    found = CachedFeatures().predict(profile, recipe)
    assert found.time is not None
    assert found.time.one_time_s["features"] == pytest.approx(0.05 * (4 * 1600 + 200))
    assert CachedFeatures().exactness_of(recipe) is Exactness.STATISTICAL
    assert CachedFeatures().exactness_of(Recipe()) is Exactness.ROUNDING


@pytest.mark.parametrize(
    ("device", "trunk_s", "features_s"),
    [
        ("cpu", 0.05, 1600 * (0.01 + 4 * 0.06) + 200 * (0.01 + 0.05)),
        ("cuda", 0.05, 1600 * (4 * 0.06) + 200 * 0.05),
        ("cuda", 0.005, 1600 * (4 * 0.015) + 200 * 0.01),  # a held-out example waits for reading
    ],
)
def test_an_example_is_read_once_and_each_view_of_it_made_and_put_through_the_trunk(
    make_profile: Make, device: str, trunk_s: float, features_s: float
) -> None:
    profile = make_profile(
        device=device,
        is_random_before_head=True,
        trunk_s=trunk_s,
        loader_cpu_s=0.02,  # on two cores
        phases_s={"augment": 0.16},  # of 16 examples
        head_step_s=0.01,
    )
    found = CachedFeatures().predict(profile, Recipe(features=FeaturesConfig(cached_views=4)))
    assert found.time is not None
    assert found.time.one_time_s["features"] == pytest.approx(features_s)


def test_features_that_do_not_fit_the_disk_are_refused(make_profile: Make) -> None:
    profile = make_profile(
        trunk_s=0.05, head_step_s=0.01, feature_bytes=5 * 10**6, free_disk_bytes=10**9
    )
    refusal = CachedFeatures().why_not(profile, Recipe())
    assert refusal == "features need 9.0 GB of disk; 1.0 GB are free"


def test_mixed_precision_reads_the_replay_of_its_layout(make_profile: Make) -> None:
    replays = {"bf16": 0.9, "channels_last+bf16": 0.5}
    profile = make_profile(op_replays=replays, phases_s={"forward": 1.0})
    recipe = Recipe(device=DeviceConfig(memory_format=MemoryFormat.CHANNELS_LAST))
    assert MixedPrecision().predict(profile, Recipe()).gain == pytest.approx(1 / 0.9)
    assert MixedPrecision().predict(profile, recipe).gain == pytest.approx(2)


def test_mixed_precision_takes_fp16_only_on_a_gpu(make_profile: Make) -> None:
    on_cpu = make_profile(has_bf16=False)
    assert MixedPrecision().why_not(on_cpu, Recipe()) == "this CPU has no bf16 instructions"
    on_gpu = make_profile(has_bf16=False, device="cuda")
    assert MixedPrecision().apply(on_gpu, Recipe()).device.precision is Precision.FP16
    assert MixedPrecision().apply(make_profile(), Recipe()).device.precision is Precision.BF16


def test_a_fused_update_shrinks_the_optimizers_phase_alone(make_profile: Make) -> None:
    profile = make_profile(op_replays={"fused_optimizer": 0.25}, phases_s={"optimizer": 0.4})
    found = FusedOptimizer().predict(profile, Recipe(optimizer=SGD))
    assert found.gain == pytest.approx(1200 / 900)


def test_nadam_is_fused_on_the_cpu_alone(make_profile: Make) -> None:
    nadam = Recipe(optimizer=OptimizerConfig(name=OptimizerName.NADAM))
    assert FusedOptimizer().why_not(make_profile(), nadam) is None
    assert FusedOptimizer().apply(make_profile(), nadam).optimizer.fused
    refusal = FusedOptimizer().why_not(make_profile(device="cuda"), nadam)
    assert refusal == "NAdam has no fused kernel on a GPU"


def test_compile_charges_its_own_time(make_profile: Make) -> None:
    profile = make_profile(
        num_conv2d=49, num_batchnorm=49, op_replays={"pointwise": 0.5}, phases_s={"forward": 1.0}
    )
    frozen = replace(profile, is_trunk_frozen=True)
    learning = replace(profile, is_trunk_frozen=False)
    folded = Recipe(model=ModelConfig(fold_batchnorm=True))
    found = Compile().predict(frozen, Recipe())
    assert found.gain == pytest.approx(1200 / (600 + 42.88))
    assert found.note == "compiling takes about 43 s (assumed), training 1.2e+03 s"
    assert Compile().predict(frozen, folded).inputs["compile_s"] == pytest.approx(25.73)
    assert Compile().predict(learning, Recipe()).inputs["compile_s"] == pytest.approx(108.64)


def test_compiling_for_little_work_loses(make_profile: Make) -> None:
    profile = make_profile(
        epochs=1.0, steps_per_epoch=5.0, num_validations=0.0, op_replays={"pointwise": 0.5}
    )
    assert Compile().predict(profile, Recipe()).gain < 0.2


def test_compute_threads_divide_what_the_model_computes(make_profile: Make) -> None:
    profile = make_profile(step_s=1.0, phases_s={"forward": 0.6, "backward": 0.2}, num_cores=4)
    one_thread = Recipe(device=DeviceConfig(threads=1))
    time = ComputeThreads().predict(profile, one_thread).time
    assert time is not None
    assert time.step_s == pytest.approx(0.2 + 0.8 / 4)


def sweep(make_profile: Make, **changes: object) -> Profile:
    """Steps of t(b) = 10 ms + 1 ms b: the knee is at 90, so 16 grows to 128."""
    return make_profile(step_fixed_s=0.01, step_per_example_s=0.001, **changes)


def test_a_larger_batch_saves_the_fixed_part_of_a_step(make_profile: Make) -> None:
    found = LargerBatch().predict(sweep(make_profile), UNTIL_THE_END)
    # eight times fewer steps, each 138 ms instead of 26 ms
    assert found.gain == pytest.approx(1200 / (1000 / 8 * 138 / 26 + 200))
    assert "generalise worse" in found.note


def test_the_noise_scale_costs_epochs_only_where_stopping_is_early(make_profile: Make) -> None:
    profile = sweep(make_profile, noise_scale=1000.0)
    fixed, early = (LargerBatch().predict(profile, r) for r in (UNTIL_THE_END, Recipe()))
    assert fixed.time is not None
    assert early.time is not None
    assert fixed.time.epochs == 10
    batch = early.inputs["larger_batch"]
    assert early.time.epochs == pytest.approx(10 * (1 + batch / 1000) / (1 + 16 / 1000))


def test_the_noise_scale_asks_for_no_more_epochs_than_the_schedule_has(
    make_profile: Make,
) -> None:
    profile = sweep(make_profile, noise_scale=1000.0)
    short = Recipe(schedule=ScheduleConfig(max_epochs=11))
    found = LargerBatch().predict(profile, short)
    assert found.time is not None
    assert found.inputs["more_epochs"] > 1.1
    assert found.time.epochs == 11
    assert found.time.num_validations == pytest.approx(1.1 * profile.time.num_validations)


def test_a_schedule_in_steps_has_no_more_epochs_for_a_larger_batch_either(
    make_profile: Make,
) -> None:
    profile = sweep(make_profile, noise_scale=1000.0)
    found = LargerBatch().predict(profile, Recipe(schedule=ScheduleConfig(max_steps=1050)))
    assert found.time is not None
    assert found.time.epochs == pytest.approx(10.5)  # 100 steps an epoch


def test_a_small_noise_scale_keeps_the_batch_of_sgd_small(make_profile: Make) -> None:
    # the minimum of (1 + B / Bn) t(B) / B is at sqrt(a Bn / c) = 31
    profile, recipe = sweep(make_profile, noise_scale=100.0), Recipe(optimizer=SGD)
    assert LargerBatch().predict(profile, recipe).inputs["larger_batch"] == 32
    assert LargerBatch().apply(profile, recipe).batch.global_batch_size == 32


def test_where_the_schedule_ends_training_the_knee_is_best_whatever_the_noise_scale(
    make_profile: Make,
) -> None:
    for optimizer in (SGD, OptimizerConfig()):
        fixed = replace(UNTIL_THE_END, optimizer=optimizer)
        found = LargerBatch().predict(sweep(make_profile, noise_scale=1.0), fixed)
        assert found == replace(
            LargerBatch().predict(sweep(make_profile), fixed),
            inputs={**found.inputs, "noise_scale": 1.0},
        )
        assert found.inputs["larger_batch"] == 128


def test_for_nadam_the_noise_scale_is_a_smaller_variant_and_bounds_no_more(
    make_profile: Make,
) -> None:
    rung, recipe = LargerBatch(), Recipe(batch=BatchConfig(lr=0.01))
    profile = sweep(make_profile, noise_scale=40.0, num_train=16_000)
    # the minimum of (1 + B / Bn) t(B) / B is at sqrt(a Bn / c) = 20: the batch of 16, or 32
    found = rung.variants(profile, recipe)
    assert [one.batch.global_batch_size for one in found] == [128] * 3 + [32] * 3
    other = rung.variants(sweep(make_profile, noise_scale=350.0), recipe)  # at 59
    assert [one.batch.global_batch_size for one in other] == [128] * 3 + [64] * 3 + [32] * 3
    fixed = rung.variants(sweep(make_profile, noise_scale=350.0), replace(recipe, **FIXED))
    assert [one.batch.global_batch_size for one in fixed] == [128] * 3 + [32] * 3


def test_the_noise_scale_of_sgd_is_no_reason_not_to_try_a_larger_batch_with_nadam(
    make_profile: Make,
) -> None:
    hopeless = sweep(make_profile, noise_scale=1.0)  # for SGD no larger batch pays
    assert LargerBatch().why_not(hopeless, Recipe()) is None
    found = LargerBatch().predict(hopeless, Recipe())
    assert found.gain == LargerBatch().predict(sweep(make_profile), Recipe()).gain
    assert "as the noise scale is that of SGD" in found.note
    some = sweep(make_profile, noise_scale=350.0)  # according to it, 64 is best
    at_64 = (1 + 64 / 350) / (1 + 16 / 350)
    assert LargerBatch().predict(some, Recipe()).inputs["more_epochs"] == pytest.approx(at_64)


@pytest.mark.parametrize(
    ("optimizer", "growth"), [(OptimizerConfig(), 8**0.5), (SGD, 8.0)], ids=["nadam", "sgd"]
)
def test_the_learning_rate_moves_with_the_batch(
    make_profile: Make, optimizer: OptimizerConfig, growth: float
) -> None:
    recipe = Recipe(optimizer=optimizer, batch=BatchConfig(lr=0.01))
    after = LargerBatch().apply(sweep(make_profile), recipe).batch
    assert (after.global_batch_size, after.base_batch_size) == (128, 128)
    assert after.lr == pytest.approx(0.01 * growth, rel=5e-3)  # rounded to three digits


def test_a_larger_batch_goes_through_the_model_in_parts_as_large_as_before(
    make_profile: Make,
) -> None:
    recipe = Recipe(batch=BatchConfig(global_batch_size=16, micro_batch_size=4))
    for after in LargerBatch().variants(sweep(make_profile), recipe):
        assert after.batch.global_batch_size > 16
        assert after.batch.micro_batch_size == 4


def test_the_noise_scale_caps_the_learning_rate_of_sgd(make_profile: Make) -> None:
    profile = sweep(make_profile, noise_scale=1000.0)
    recipe = Recipe(optimizer=SGD, batch=BatchConfig(lr=0.01))
    after = LargerBatch().apply(profile, recipe).batch
    expected = 0.01 * (1 + 1000 / 16) / (1 + 1000 / after.global_batch_size)
    assert after.lr == float(f"{expected:.3g}")


def test_a_scaled_learning_rate_is_what_is_printed_and_typed(make_profile: Make) -> None:
    recipe = Recipe(batch=BatchConfig(global_batch_size=16, lr=0.0012345678))
    for after in LargerBatch().variants(sweep(make_profile), recipe):
        (flag,) = flags_of({"batch.lr": (recipe.batch.lr, after.batch.lr)})
        assert len(flag.partition("0.")[2].strip("0")) <= 3
        assert float(flag.partition(" ")[2]) == after.batch.lr


def test_what_counts_in_steps_moves_with_the_batch(make_profile: Make) -> None:
    recipe = Recipe(
        schedule=ScheduleConfig(warmup_steps=100, max_steps=801),
        stopping=StoppingConfig(validate_every_steps=40),
    )
    after = LargerBatch().apply(sweep(make_profile), recipe)
    assert (after.schedule.warmup_steps, after.schedule.max_steps) == (13, 101)
    assert after.stopping.validate_every_steps == 5


def test_a_steep_rise_of_sgds_rate_gets_an_epoch_of_warm_up(make_profile: Make) -> None:
    after = LargerBatch().apply(sweep(make_profile), Recipe(optimizer=SGD))
    assert after.schedule.warmup_steps == 13  # 1,600 examples in batches of 128
    nadam = LargerBatch().apply(sweep(make_profile), Recipe())
    assert nadam.schedule.warmup_steps == 0


def test_a_variant_is_predicted_by_its_own_batch(make_profile: Make) -> None:
    rung, profile, recipe = LargerBatch(), sweep(make_profile), Recipe(batch=BatchConfig(lr=0.01))
    best, *_, smallest = rung.variants(profile, recipe)
    assert rung.predict_variant(profile, recipe, best) == rung.predict(profile, recipe)
    smaller = rung.predict_variant(profile, recipe, smallest)
    assert smaller.inputs["larger_batch"] == smallest.batch.global_batch_size
    assert 1 < smaller.gain < rung.predict(profile, recipe).gain


def test_the_probe_gets_three_rates_for_each_of_two_batches(make_profile: Make) -> None:
    found = LargerBatch().variants(sweep(make_profile), Recipe(batch=BatchConfig(lr=0.01)))
    assert [recipe.batch.global_batch_size for recipe in found] == [128] * 3 + [32] * 3
    rates = [recipe.batch.lr / 0.01 for recipe in found[:3]]
    assert rates == pytest.approx([8**0.5, 8, 8**1.5], rel=5e-3)  # rounded to three digits


@pytest.mark.parametrize(
    ("changes", "batch", "refusal"),
    [
        ({}, 128, "the batch size is already at the knee of the throughput"),
        ({"num_train": 200}, 16, "twice the batch size would leave fewer than 8 steps per epoch"),
        (
            {"memory_by_batch": {1: 10**9, 2: 2 * 10**9}},
            16,
            "twice the batch size does not fit into memory",
        ),
    ],
)
def test_a_larger_batch_says_what_prevents_it(
    make_profile: Make, changes: dict[str, object], batch: int, refusal: str
) -> None:
    recipe = Recipe(batch=BatchConfig(global_batch_size=batch))
    assert LargerBatch().why_not(sweep(make_profile, **changes), recipe) == refusal


def test_sgd_is_kept_from_a_larger_batch_only_where_it_would_stop_later(make_profile: Make) -> None:
    profile, early = sweep(make_profile, noise_scale=1.0), Recipe(optimizer=SGD)
    refusal = LargerBatch().why_not(profile, early)
    assert refusal == "the extra epochs of a larger batch would cost more time than it saves"
    assert LargerBatch().why_not(profile, replace(early, **FIXED)) is None


def test_checkpointing_is_for_a_batch_that_memory_blocks(make_profile: Make) -> None:
    blocked = {"memory_by_batch": {16: 5 * 10**9, 32: 9 * 10**9}, "is_trunk_frozen": False}
    profile = sweep(make_profile, **blocked, phases_s={"forward": 0.25})
    assert GradientCheckpointing().why_not(profile, Recipe()) is None
    found = GradientCheckpointing().predict(profile, Recipe())
    assert found.time is not None
    assert found.time.step_s == pytest.approx(1.25)
    roomy = replace(profile, free_memory_bytes=10**12)
    refusal = GradientCheckpointing().why_not(roomy, Recipe())
    assert refusal == "memory does not limit the batch size"


def test_a_larger_model_takes_the_ratio_of_the_flops(make_profile: Make) -> None:
    profile = make_profile(larger_trunks=("resnet34", "resnet50"), phases_s={"forward": 1.0})
    recipe = Recipe(model=ModelConfig(name="resnet18.a1_in1k"))
    found = LargerModel().predict(profile, recipe)
    assert found.inputs["flops_ratio"] == pytest.approx(3.6 / 1.8, rel=0.05)  # He et al. 2016
    assert found.gain == pytest.approx(1 / found.inputs["flops_ratio"])
    after = LargerModel().apply(profile, recipe).model
    assert (after.name, after.weights) == ("resnet34", WeightsSource.HUB)


def test_a_larger_model_whose_flops_cannot_be_counted_is_refused(make_profile: Make) -> None:
    for names in ({"larger": "no_such_model"}, {"now": "no_such_model", "larger": "resnet34"}):
        profile = make_profile(larger_trunks=(names["larger"],), phases_s={"forward": 1.0})
        recipe = Recipe(model=ModelConfig(name=names.get("now", "resnet18")))
        refusal = LargerModel().why_not(profile, recipe)
        assert refusal == f"the FLOPs of {names['larger']} are not known"


def test_a_busy_trunk_is_distinguished_from_a_busy_step(make_profile: Make) -> None:
    busy = make_profile(larger_trunks=("resnet34",), mfu=0.7)
    cached = Recipe(features=FeaturesConfig(cached=True))
    refusal = LargerModel().why_not(busy, cached)
    assert refusal == "no idle capacity: the trunk's pass reaches 70 % of peak FLOP/s"


def test_a_busy_device_has_no_room_for_a_larger_model(make_profile: Make) -> None:
    profile = make_profile(larger_trunks=("resnet34",), mfu=0.6)
    refusal = LargerModel().why_not(profile, Recipe())
    assert refusal == "no idle capacity: the step reaches 60 % of peak FLOP/s"


def test_loader_threads_are_named_only_for_stores(make_profile: Make) -> None:
    profile = make_profile(loader_cpu_s=0.1)
    assert LoaderThreads().why_not(profile, Recipe()) == "already on: one thread per core"
    one = Recipe(loader=LoaderConfig(threads=1))
    assert LoaderThreads().why_not(profile, one) is None
    assert LoaderThreads().apply(profile, one).loader.threads == 2
    dataset = make_profile(loader_cpu_s=0.1, store_encoding=None)
    assert "Dataset" in (LoaderThreads().why_not(dataset, Recipe()) or "")
    in_order = make_profile(loader_cpu_s=0.1, store_encoding=None, default_threads=0)
    assert "main thread" in (LoaderThreads().why_not(in_order, one) or "")


@pytest.mark.parametrize(("side", "factor"), [(500, None), (600, 2), (1100, 4), (2200, 8)])
def test_scaled_decode_leaves_a_third_more_than_needed(
    make_profile: Make, side: int, factor: int | None
) -> None:
    profile = make_profile(store_encoding="jpeg", source_pixels=float(side**2), loader_cpu_s=0.1)
    recipe = Recipe(loader=LoaderConfig(scaled_decode=False))
    refusal = ScaledDecode().why_not(profile, recipe)
    if factor is None:
        assert refusal == "the stored pictures are not much larger than needed"
    else:
        assert ScaledDecode().predict(profile, recipe).inputs["factor"] == factor


@pytest.mark.parametrize(
    "rung", [LoaderThreads(), ScaledDecode(), PixelStore()], ids=lambda rung: rung.name
)
def test_reading_is_left_alone_where_the_wait_for_it_is_not_known(
    make_profile: Make, rung: Rung
) -> None:
    recipe = Recipe(
        data=DataConfig(where=Where.STREAM), loader=LoaderConfig(threads=1, scaled_decode=False)
    )
    facts = {
        "store_encoding": "jpeg",
        "source_pixels": 1e7,
        "loader_cpu_s": 0.1,
        "bandwidth_bytes_per_s": 1e10,
        "replay_host_s": 0.95,
        "num_cores": 2,
    }
    sound = make_profile(**facts, phases_s={"forward": 0.9, "data_wait": 0.05})
    assert rung.why_not(sound, recipe) is None
    prediction = rung.predict(sound, recipe)
    assert prediction.time is not None
    assert prediction.time.step_s >= 0.95, "no step is faster than with ready batches"
    doubtful = make_profile(**facts, phases_s={"forward": 0.5, "data_wait": 0.5})
    assert "disagree: 500 ms per step, 50 ms" in (rung.why_not(doubtful, recipe) or "")


@pytest.mark.parametrize("rung", [ScaledDecode(), PixelStore()], ids=lambda rung: rung.name)
def test_how_pictures_are_decoded_is_not_changed_for_a_users_own_task(
    make_profile: Make, rung: Rung
) -> None:
    facts = {
        "store_encoding": "jpeg",
        "source_pixels": 1e7,
        "loader_cpu_s": 0.1,
        "bandwidth_bytes_per_s": 1e10,
    }
    recipe = Recipe(
        data=DataConfig(where=Where.STREAM), loader=LoaderConfig(threads=1, scaled_decode=False)
    )
    assert rung.why_not(make_profile(**facts), recipe) is None
    own = make_profile(**facts, is_built_in=False)
    assert rung.why_not(own, recipe) == "the task reads its pictures itself"


def test_a_pixel_store_decodes_once(make_profile: Make) -> None:
    profile = make_profile(
        store_encoding="jpeg",
        loader_cpu_s=0.1,
        replay_host_s=0.2,
        bandwidth_bytes_per_s=240_000 / 0.02,  # two copies of 120,000 bytes: 20 ms
    )
    found = PixelStore().predict(profile, Recipe(data=DataConfig(where=Where.STREAM)))
    assert found.time is not None
    assert found.time.one_time_s == pytest.approx({"store": 1800 * (0.05 + 0.02)})
    # 0.2 s of computing and 16 pictures on two cores: 1.0 s before, 0.36 s after
    assert found.time.step_s == pytest.approx(0.36)


def test_a_pixel_store_is_refused_where_nothing_is_decoded_twice(make_profile: Make) -> None:
    profile = make_profile(store_encoding="jpeg", loader_cpu_s=0.1, bandwidth_bytes_per_s=1e10)
    held = Recipe(data=DataConfig(where=Where.MEMORY))
    assert "into memory" in (PixelStore().why_not(profile, held) or "")
    cached = Recipe(features=FeaturesConfig(cached=True))
    assert "for its features" in (PixelStore().why_not(profile, cached) or "")


def test_streaming_is_for_data_that_memory_does_not_hold(make_profile: Make) -> None:
    held = Recipe(data=DataConfig(where=Where.MEMORY))
    refusal = Streaming().why_not(make_profile(), held)
    assert refusal == "all pictures fit into memory"
    small = make_profile(free_memory_bytes=10**6)
    assert Streaming().why_not(small, held) is None
    # four batches of 16 in flight instead of 1,800 pictures
    assert Streaming().predict(small, held).memory_frac == pytest.approx(64 / 1800)


SAMPLE = Recipe(data=DataConfig(fraction=0.1, where=Where.MEMORY))
"""1,800 pictures of 120 kB, 216 MB; all of them are 16,200, 1.9 GB."""


def test_a_sample_that_memory_holds_is_not_streamed_for_nothing(make_profile: Make) -> None:
    for_sample = make_profile(free_memory_bytes=10**9)
    refusal = Streaming().why_not(for_sample, SAMPLE)
    assert refusal == "the sample fits into memory; all_data streams if all data does not"
    assert Streaming().why_not(make_profile(free_memory_bytes=10**8), SAMPLE) is None
    cached = replace(SAMPLE, features=FeaturesConfig(cached=True))
    for_none = make_profile(free_memory_bytes=10**6)
    assert (
        Streaming().why_not(for_none, cached) == "each picture is read only once, for its features"
    )


def test_all_data_reads_each_epoch_what_memory_does_not_hold(make_profile: Make) -> None:
    held = {"one_time_s": {"load": 9.0, "compile": 1.0}}
    small, large = make_profile(free_memory_bytes=10**9, **held), make_profile(**held)
    assert AllData().why_not(small, SAMPLE) is None
    assert AllData().apply(small, SAMPLE).data == DataConfig(fraction=1.0, where=Where.STREAM)
    assert AllData().apply(large, SAMPLE).data == DataConfig(fraction=1.0, where=Where.MEMORY)
    streamed, loaded = (AllData().predict(profile, SAMPLE) for profile in (small, large))
    assert streamed.time is not None
    assert loaded.time is not None
    assert streamed.time.one_time_s == {"compile": 1.0}
    assert loaded.time.one_time_s == pytest.approx({"load": 9.0 * 16_200 / 1_800, "compile": 1.0})
    assert "read in each epoch" in streamed.note
    assert "read in each epoch" not in loaded.note
    cached = replace(SAMPLE, features=FeaturesConfig(cached=True))
    assert AllData().apply(small, cached).data.where is Where.MEMORY, (
        "nothing is held in memory then"
    )


def test_streaming_reads_in_every_step_what_loading_read_once(make_profile: Make) -> None:
    # 1,800 pictures of 120 kB, loaded in 18 s: 10 ms each, 0.16 s a step and 2 s a validation
    full = {"free_memory_bytes": 10**6, "one_time_s": {"load": 18.0}}
    held = Recipe(data=DataConfig(where=Where.MEMORY))
    found = Streaming().predict(make_profile(**full), held)
    assert found.time is not None
    assert found.time.one_time_s == {}
    assert (found.time.step_s, found.time.validation_s) == pytest.approx((1.16, 22))
    assert found.gain == pytest.approx((18 + 1200) / (1160 + 220))
    assert "its rate was not measured" in found.note
    beside_a_gpu = make_profile(device="cuda", free_host_bytes=10**6, **full)
    hidden = Streaming().predict(beside_a_gpu, held)
    assert hidden.time is not None
    assert hidden.time.step_s == 1  # reading is faster than the step


def test_streaming_is_no_faster_than_the_disk(make_profile: Make) -> None:
    # half of 216 MB stays in memory: 60 kB of each picture at 0.5 MB/s are 0.12 s
    slow = make_profile(
        free_memory_bytes=108 * 10**6,
        stored_bytes=120_000.0,
        disk_bytes_per_s=5e5,
        one_time_s={"load": 18.0},
    )
    found = Streaming().predict(slow, Recipe(data=DataConfig(where=Where.MEMORY)))
    assert found.time is not None
    assert (found.time.step_s, found.time.validation_s) == pytest.approx((16 * 0.12, 24))
    assert found.note == "data that memory cannot cache is read at 0.5 MB/s"


def test_all_data_counts_what_reading_each_epoch_adds(make_profile: Make) -> None:
    held = {"one_time_s": {"load": 18.0}, "free_memory_bytes": 10**9}
    found = AllData().predict(make_profile(**held), SAMPLE)
    assert found.time is not None
    assert (found.time.step_s, found.time.validation_s) == pytest.approx((1.16, 22))
    # 16,200 pictures are 1.944 GB, of which 944 MB come from the disk: 58 kB each, at 0.2 MB/s
    slow = make_profile(**held, stored_bytes=120_000.0, disk_bytes_per_s=2e5)
    from_disk_s = (1 - 1 / 1.944) * 120_000 / 2e5
    found = AllData().predict(slow, SAMPLE)
    assert found.time is not None
    assert found.time.step_s == pytest.approx(16 * from_disk_s)


def test_a_pixel_store_that_memory_does_not_keep_is_as_slow_as_its_disk(make_profile: Make) -> None:
    jpegs = {"store_encoding": "jpeg", "loader_cpu_s": 0.1, "bandwidth_bytes_per_s": 1e10}
    times = {"replay_host_s": 0.2, "disk_bytes_per_s": 5e5}
    roomy = PixelStore().predict(make_profile(**jpegs, **times), Recipe())
    full = make_profile(**jpegs, **times, free_memory_bytes=108 * 10**6)
    slow = PixelStore().predict(full, Recipe())
    assert roomy.time is not None
    assert slow.time is not None
    assert roomy.inputs["disk_s"] == 0
    assert slow.inputs["disk_s"] == pytest.approx(0.12)  # half of 120 kB at 0.5 MB/s
    assert roomy.time.step_s < 1 < slow.time.step_s == pytest.approx(16 * 0.12)
    assert slow.gain < 1 < roomy.gain


def test_pictures_are_held_by_the_host_and_not_by_the_gpu(make_profile: Make) -> None:
    held = Recipe(data=DataConfig(where=Where.MEMORY))
    small_gpu = make_profile(device="cuda", free_memory_bytes=10**6, free_host_bytes=10**10)
    assert Streaming().why_not(small_gpu, held) == "all pictures fit into memory"
    assert AllData().apply(small_gpu, SAMPLE).data.where is Where.MEMORY
    small_host = make_profile(device="cuda", free_memory_bytes=10**11, free_host_bytes=10**6)
    assert Streaming().why_not(small_host, held) is None
    assert AllData().apply(small_host, SAMPLE).data.where is Where.STREAM


def test_fewer_validations_weigh_patience_against_what_they_save(make_profile: Make) -> None:
    # an epoch takes 100 s, a validation 20 s: validating half as often ends an epoch later
    hasty = Recipe(stopping=StoppingConfig(patience=1))
    assert "stopping later" in (FewerValidations().why_not(make_profile(), hasty) or "")
    dear = make_profile(validation_s=50.0)  # 1,500 s in total
    found = FewerValidations().predict(dear, hasty)
    # every second: 11 epochs and 5.5 validations, 1,375 s; every third: 12 and 4, 1,400 s
    assert found.inputs["then_every"] == 2
    assert found.gain == pytest.approx(1500 / 1375)


def test_fewer_validations_wait_for_as_many_epochs(make_profile: Make) -> None:
    profile = make_profile(epochs=30.0, num_validations=30.0)  # 3,600 s
    patient = Recipe(stopping=StoppingConfig(patience=24))
    found = FewerValidations().predict(profile, patient)
    # every third: 8 validations are 24 epochs, 3,200 s; every fifth: 5 are 25, 3,224 s
    assert found.time is not None
    assert (found.inputs["then_every"], found.time.epochs) == (3, 30)
    assert found.gain == pytest.approx(3600 / 3200)
    after = FewerValidations().apply(profile, patient).stopping
    assert after == StoppingConfig(patience=8, validate_every_epochs=3)


def test_without_early_stopping_patience_is_left_alone(make_profile: Make) -> None:
    after = FewerValidations().apply(make_profile(), UNTIL_THE_END).stopping
    assert after == StoppingConfig(early=False, validate_every_epochs=3)


def test_fewer_validations_end_with_a_schedule_in_steps(make_profile: Make) -> None:
    short = Recipe(
        schedule=ScheduleConfig(max_steps=1000), stopping=StoppingConfig(patience=1)
    )  # ten epochs, which it uses unchanged
    found = FewerValidations().predict(make_profile(validation_s=50.0), short)
    assert found.time is not None
    assert found.time.epochs == 10


def test_without_early_stopping_fewer_validations_cost_no_epochs(make_profile: Make) -> None:
    found = FewerValidations().predict(make_profile(), UNTIL_THE_END)
    assert found.inputs["then_every"] == 3  # three remain to choose the weights from
    assert found.gain == pytest.approx(1200 / (1000 + 10 / 3 * 20))


def test_all_of_the_data_takes_as_much_longer_as_it_is_more(make_profile: Make) -> None:
    profile = make_profile(num_val=0, num_validations=0.0, one_time_s={"features": 10.0})
    found = AllData().predict(profile, Recipe(data=DataConfig(fraction=0.1)))
    assert found.gain == pytest.approx(0.1)


def test_the_gpu_is_only_predicted_as_a_climb_measures_on_one_device(make_profile: Make) -> None:
    profile = make_profile(has_cuda=True, loader_per_s=150.0)
    assert UseGpu().why_not(profile, Recipe()) is None
    assert UseGpu().is_prediction_only
    assert UseGpu().apply(profile, Recipe()) == Recipe()


def test_a_gpu_that_the_job_leaves_out_is_named_and_not_tried(make_profile: Make) -> None:
    profile = make_profile(has_cuda=True, loader_per_s=150.0)
    on_cpu = Recipe(device=DeviceConfig(kind=DeviceChoice.CPU))
    refusal = UseGpu().why_not(profile, on_cpu)
    assert refusal == (
        "use --device.kind auto, not cpu "
        "(with a T4: at most 10×, limited by the loader's 150 examples/s)"
    )
    unknown = UseGpu().why_not(make_profile(has_cuda=True), on_cpu)
    assert unknown == "use --device.kind auto, not cpu"


def test_with_very_large_numbers_the_refusal_of_a_gpu_is_still_short(make_profile: Make) -> None:
    profile = make_profile(has_cuda=True, loader_per_s=1e7, step_s=1e3)
    on_cpu = Recipe(
        device=DeviceConfig(kind=DeviceChoice.CPU), batch=BatchConfig(global_batch_size=1)
    )
    refusal = UseGpu().why_not(profile, on_cpu)
    assert refusal is not None
    assert "limited by the loader's 10,000,000 examples/s" in refusal
    assert len(refusal) <= 120

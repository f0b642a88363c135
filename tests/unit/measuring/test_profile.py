"""A complete profile of a small job."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stepladder.config.choices import OptimizerName, TrainMode
from stepladder.config.recipe import (
    BatchConfig,
    DeviceConfig,
    FeaturesConfig,
    ModelConfig,
    OptimizerConfig,
    Recipe,
)
from stepladder.errors import UsageError
from stepladder.machine.compiler import compiler_missing
from stepladder.measuring import profile as profile_module
from stepladder.measuring.model import head as head_module
from stepladder.measuring.model.head import TrunkTime
from stepladder.measuring.profile import ProfileMemory, take_profile
from stepladder.measuring.saving import SaveTimes
from stepladder.records import to_json
from stepladder.records.from_json import from_json
from stepladder.records.profile import Curve, Profile, Provenance
from stepladder.task import Task
from stepladder.training.setup.build import open_sources


def profile(recipe: Recipe, task: Task, **options: Any) -> Profile:
    values = {"epochs": 3.0, "num_validations": 3.0, "curve": None, "budget_s": 0.05}
    values |= {"cache": Path("not there"), **options}
    return take_profile(
        recipe,
        task,
        open_sources(task),
        device=torch.device("cpu"),
        **values,
    )


@pytest.fixture(name="plain", scope="module")
def _plain(pictures: Callable, recipe: Callable[..., Recipe]) -> Profile:
    """The profile of a head on a frozen trunk."""
    torch.set_num_threads(1)
    return profile(recipe(), pictures())


def test_a_frozen_trunk(plain: Profile) -> None:
    found = plain
    assert (found.num_train, found.num_val) == (70, 12)
    assert found.is_trunk_frozen
    assert found.example_bytes == 3 * 8 * 8 * 4
    assert found.feature_bytes == 16
    assert found.time.steps_per_epoch == 70 / 4
    assert found.time.validation_s > 0
    assert found.time.one_time_s == {}
    assert None not in (found.trunk_s, found.head_step_s, found.head_validation_s)
    assert {"channels_last", "folded", "pointwise"} <= set(found.op_replays)
    conv, linear = 2 * 27 * 4 * 64, 2 * 4 * 3
    assert found.forward_flops == conv + linear
    assert found.step_flops == conv + 2 * linear  # only the gradient of the head's weights
    picture, planes, pooled = 3 * 64, 4 * 64, 4
    activations = picture + planes + 2 * planes + 2 * planes + planes + pooled  # to the features
    activations += 2 * pooled + pooled + 3  # dropout and the head
    weights = 4 * 27 + 4 + 4 * 4 + 4 * 3 + 3  # and a BatchNorm counter of 8 bytes
    assert found.forward_bytes == 4 * activations + (4 * weights + 8) / 4  # four per batch
    assert found.peak_flops_per_s is not None
    of_step = found.step_flops * 4 / (found.time.step_s * found.peak_flops_per_s)
    assert found.mfu == pytest.approx(of_step)
    assert len(found.step_by_batch_s) == 3
    assert len(found.memory_by_batch) == 2


def test_all_layers_learn(pictures: Callable, recipe: Callable[..., Recipe]) -> None:
    config = OptimizerConfig(name=OptimizerName.SGD)
    found = profile(recipe(train=TrainMode.ALL, optimizer=config), pictures())
    assert not found.is_trunk_frozen
    assert found.trainable_bytes == found.weight_bytes
    assert (found.head_step_s, found.head_validation_s) == (None, None)
    assert "folded" not in found.op_replays
    assert found.op_replays["fused_optimizer"] > 0
    assert found.forward_flops is not None
    assert found.step_flops is not None
    assert found.step_flops > 1.9 * found.forward_flops


def test_cached_features_count_the_trunk_once(
    pictures: Callable, recipe: Callable[..., Recipe]
) -> None:
    found = profile(recipe(features=FeaturesConfig(cached=True)), pictures())
    assert set(found.time.one_time_s) == {"features"}
    assert found.trunk_s is not None
    assert found.time.one_time_s["features"] > (70 + 12) * found.trunk_s
    assert found.head_step_s == found.time.step_s
    assert found.step_flops == 2 * (2 * 4 * 3)  # the head's forward pass and weight gradients
    assert found.example_bytes == 3 * 8 * 8 * 4  # per picture, not per feature
    assert found.peak_flops_per_s is not None
    assert found.forward_flops is not None
    of_trunk = found.forward_flops / (found.trunk_s * found.peak_flops_per_s)
    assert found.mfu == pytest.approx(of_trunk), "for the trunk's pass, not for the head's step"


def test_checkpoints_are_a_part_of_the_time(
    pictures: Callable, recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    found = profile(recipe(), pictures(), saves=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert found.save_s is not None
    assert found.time.checkpoint_s == found.save_s > 0, "one, at the end"
    each_step = profile(recipe(), pictures(), saves=tmp_path, checkpoint_every_s=0.0)
    assert each_step.time.checkpoint_s > each_step.save_s
    elsewhere = profile(recipe(), pictures(), saves=tmp_path / "not there")
    assert (elsewhere.save_s, elsewhere.time.checkpoint_s) == (None, 0)


def test_a_save_is_timed_once_for_the_weights_that_learn(
    pictures: Callable,
    recipe: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = iter((SaveTimes(first_s=1.0, later_s=0.5), SaveTimes(first_s=9.0, later_s=0.5)))
    monkeypatch.setattr(profile_module, "measure_saves", lambda *_: next(found))
    known = ProfileMemory()
    more = {"known": known, "saves": tmp_path}
    first = profile(recipe(), pictures(), **more)
    cached = recipe(features=FeaturesConfig(cached=True), batch=BatchConfig(global_batch_size=8))
    second = profile(cached, pictures(), **more)
    all_learn = profile(recipe(train=TrainMode.ALL), pictures(), **more)
    assert [one.save_s for one in (first, second, all_learn)] == [1.0, 1.0, 9.0]


def test_why_the_noise_scale_is_unknown_is_reported(
    pictures: Callable, recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = profile(recipe(), pictures(num_train=6))
    assert few.noise_scale is None
    assert "of the training examples" in (few.noise_scale_unknown_because or "")

    def run_out(*args: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(profile_module, "estimate_noise_scale", run_out)
    found = profile(recipe(), pictures())
    assert (found.noise_scale, found.noise_scale_unknown_because) == (
        None,
        "computing its gradients ran out of memory, or hung",
    )


def test_features_cannot_be_cached_without_a_frozen_trunk(
    pictures: Callable, recipe: Callable[..., Recipe]
) -> None:
    with pytest.raises(UsageError, match="features cannot be cached"):
        profile(recipe(features=FeaturesConfig(cached=True)), pictures(has_head=False))


def test_a_model_without_parts_or_validation(
    pictures: Callable, recipe: Callable[..., Recipe]
) -> None:
    found = profile(recipe(train=TrainMode.ALL), pictures(has_head=False, num_val=0))
    assert not found.has_head
    assert (found.trunk_s, found.feature_bytes) == (None, None)
    assert found.num_val == 0
    assert found.time.validation_s == 0


def test_what_is_known_is_not_measured_again(
    pictures: Callable, recipe: Callable[..., Recipe]
) -> None:
    known = ProfileMemory()
    first = profile(recipe(), pictures(), known=known)
    longer = recipe(schedule=recipe().schedule, seed=5)
    second = profile(longer, pictures(), known=known, epochs=7.0)
    for name in ("op_replays", "peak_flops_per_s", "step_by_batch_s", "trunk_s", "noise_scale"):
        assert getattr(first, name) == getattr(second, name)
    assert second.time.epochs == 7
    other = profile(recipe(train=TrainMode.ALL), pictures(), known=known)
    assert other.op_replays != first.op_replays


def test_the_curve_and_the_epochs_are_the_callers(
    pictures: Callable, recipe: Callable[..., Recipe]
) -> None:
    curve = Curve(
        epochs=2, val_losses=(1.0, 0.9), epochs_to_stop=None, provenance=Provenance.REPLAYED
    )
    found = profile(recipe(), pictures(), curve=curve, epochs=2.0, num_validations=1.0)
    assert found.curve is curve
    assert (found.time.epochs, found.time.num_validations) == (2, 1)


def test_a_folded_trunk_is_replayed_as_it_is_folded(
    pictures: Callable, recipe: Callable[..., Recipe]
) -> None:
    folded = recipe(model=ModelConfig(fold_batchnorm=True))
    found = profile(folded, pictures())
    assert "folded" not in found.op_replays
    assert {"channels_last", "pointwise"} <= set(found.op_replays)


def test_a_profile_without_room_for_the_peaks_continues(
    pictures: Callable, recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*args: object, **options: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(profile_module, "measure_peaks", run_out)
    found = profile(recipe(), pictures())
    assert (found.peak_flops_per_s, found.bandwidth_bytes_per_s, found.mfu) == (None, None, None)
    assert found.step_flops is not None
    monkeypatch.setattr(profile_module, "measure_flops", run_out)
    found = profile(recipe(features=FeaturesConfig(cached=True)), pictures())
    assert (found.forward_flops, found.step_flops, found.mfu) == (None, None, None)
    assert found.time.step_s > 0


def test_probes_that_cannot_do_with_a_model_whose_steps_run_leave_their_numbers_unknown(
    pictures: Callable,
    recipe: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ValueError("its own")

    unknown: dict[str, dict[str, object]] = {
        "measure_flops": {"step_flops": None, "mfu": None},
        "measure_peaks": {"peak_flops_per_s": None, "mfu": None},
        "measure_replays": {"op_replays": {}},
        "measure_saves": {"save_s": None},
        "estimate_noise_scale": {
            "noise_scale_unknown_because": "computing its gradients raised ValueError: its own"
        },
    }
    for probe in unknown:
        monkeypatch.setattr(profile_module, probe, fail)
    found = profile(recipe(), pictures(), saves=tmp_path)
    for probe, numbers in unknown.items():
        assert {name: getattr(found, name) for name in numbers} == numbers, probe
    assert found.time.step_s > 0


def test_a_fault_in_a_step_itself_ends_the_profile(
    pictures: Callable, recipe: Callable[..., Recipe]
) -> None:
    def fail(batch: object) -> None:
        raise ValueError("its own")

    task = pictures()
    task.on_loss = fail
    with pytest.raises(ValueError, match="its own"):
        profile(recipe(), task)


def test_batch_sizes_are_those_that_were_run(
    pictures: Callable, recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "MAX_ROWS", 3)  # of features; the batch has four
    found = profile(recipe(features=FeaturesConfig(cached=True)), pictures())
    assert set(found.step_by_batch_s) == {1, 2, 3}


def test_with_views_an_example_is_read_once_and_computed_once_for_each(
    pictures: Callable, recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(subject: object, trunk: TrunkTime, *, budget_s: float) -> TrunkTime:
        return replace(trunk, example_s=1.0, augment_s=0.5)

    monkeypatch.setattr(profile_module, "look_again", slow)
    task = pictures()
    task.is_random_before_head = True
    found = profile(recipe(features=FeaturesConfig(cached=True, cached_views=3)), task)
    read_s = found.loader_cpu_s  # one thread reads a Dataset
    assert read_s is not None
    wanted_s = 70 * (3 * 1.5 + read_s) + 12 * (1 + read_s)
    assert found.time.one_time_s["features"] == pytest.approx(wanted_s)


def test_a_profile_of_an_earlier_version_is_read(plain: Profile) -> None:
    assert plain.free_host_bytes is not None
    values = to_json(plain)
    del values["free_host_bytes"]
    assert from_json(Profile, values).free_host_bytes is None


@pytest.mark.thorough
@pytest.mark.skipif(compiler_missing("cpu") is not None, reason="no compiler")
def test_compiling_is_timed_once_and_operations_are_counted_as_built(
    pictures: Callable,
    recipe: Callable[..., Recipe],
    plain: Profile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch._dynamo.reset()
    traced = functools.partial(torch.compile, backend="eager")  # with torch's own kernels
    monkeypatch.setattr(torch, "compile", traced)
    compiled, known = recipe(device=DeviceConfig(compile=True)), ProfileMemory()
    first = profile(compiled, pictures(), known=known)
    second = profile(compiled, pictures(), known=known)
    assert first.time.one_time_s["compile"] > 0
    assert second.time.one_time_s == first.time.one_time_s
    assert (first.forward_flops, first.step_flops) == (plain.forward_flops, plain.step_flops)
    assert set(first.op_replays) == set(plain.op_replays)
    assert first.memory_by_batch == {}  # allocations of compiled code are not visible

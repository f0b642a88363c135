"""Other all-reduces: what they save of an exchange, by the fitted cost of messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stepladder.config.choices import AllReduce as Choices
from stepladder.config.choices import GradientCompression, Precision
from stepladder.config.recipe import DeviceConfig, Recipe
from stepladder.records.collectives import Fit, Link
from stepladder.records.profile import Devices, Profile
from stepladder.rungs.devices.all_reduce import AllReduce
from stepladder.rungs.devices.compressed_gradients import CompressedGradients

LINK = Link.plain(alpha_s=1e-3, beta_s=1e-8)
FIT = Fit(num_ranks=2, num_local=2, link=LINK, native_sizes=(1000, 10**7), native_s=(0.2, 0.3))
TWO = Devices(
    num=2,
    start_s=3.0,
    share_step_s=0.4,
    exchange_fixed_s=0.2,
    exchange_byte_s=1e-8,
    fit=FIT,
)
RECIPE = Recipe(device=DeviceConfig(count=2))
NUM_BYTES = 10**7


@pytest.fixture(name="profile")
def _profile(make_profile: Callable[..., Profile]) -> Profile:
    """A step of 1 s on two devices, and 10 MB of gradients in one message."""
    return make_profile(devices=TWO, trainable_bytes=NUM_BYTES)


def test_the_saving_is_that_of_the_fastest_algorithm(profile: Profile) -> None:
    """Two ranks exchange halves, or all at once: 2 α + n β, or α + n β."""
    found = AllReduce().predict(profile, RECIPE)
    own_s = 1e-3 + NUM_BYTES * 1e-8
    assert found.inputs["native_s"] == pytest.approx(0.3)
    assert found.inputs["chosen_s"] == pytest.approx(own_s)
    assert found.time is not None
    assert found.time.step_s == pytest.approx(profile.time.step_s - (0.3 - own_s))
    assert found.note == "recursive_doubling for 10 MB of gradients"


def test_the_devices_of_all_machines_count_once_they_are_used(profile: Profile) -> None:
    """With more machines than devices here, what was measured between all of them decides."""
    four = replace(TWO, num=4, fit=replace(FIT, num_ranks=4))
    on_all = replace(RECIPE, device=replace(RECIPE.device, count=4))
    assert (AllReduce().why_not(profile, on_all) or "").startswith("not measured")
    both = replace(profile, machines=four)
    assert AllReduce().why_not(both, on_all) is None
    assert CompressedGradients().why_not(both, on_all) is None
    own_s = 2 * (1e-3 + NUM_BYTES * 1e-8)  # two exchanges of all bytes, or four of parts
    assert AllReduce().predict(both, on_all).inputs["chosen_s"] <= own_s
    halves = CompressedGradients().predict(both, on_all)
    assert halves.inputs == CompressedGradients().predict(profile, RECIPE).inputs


def test_gradients_of_several_buckets_are_several_messages(profile: Profile) -> None:
    large = replace(profile, trainable_bytes=60 * 1024**2)
    found = AllReduce().predict(large, RECIPE)
    assert found.inputs["chosen_s"] == pytest.approx(3 * 1e-3 + 60 * 1024**2 * 1e-8, rel=0.05)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"all_reduce": Choices.RING}, "already on"),
        ({"count": 1}, "one device has nothing to add up"),
        ({"gradient_compression": GradientCompression.POWER_SGD}, "PowerSGD adds up"),
        ({"count": 4}, "not measured"),
    ],
)
def test_it_is_refused_with_a_reason(change: dict[str, object], why: str, profile: Profile) -> None:
    recipe = replace(RECIPE, device=replace(RECIPE.device, **change))
    assert (AllReduce().why_not(profile, recipe) or "").startswith(why)


def test_it_is_refused_where_torch_is_the_fastest(profile: Profile) -> None:
    quick = replace(TWO, fit=replace(FIT, native_s=(1e-6, 1e-3)))
    refused = AllReduce().why_not(replace(profile, devices=quick), RECIPE)
    assert refused == "PyTorch's own is the fastest for these gradients"
    on_gpus = AllReduce().why_not(replace(profile, device="cuda"), RECIPE)
    assert on_gpus == "on GPUs, NCCL chooses an algorithm by size itself"
    assert AllReduce().why_not(profile, RECIPE) is None


def test_half_of_the_bytes_are_sent_and_rounding_costs_three_passes(profile: Profile) -> None:
    """0.2 s + 10 MB at 100 MB/s are 0.3 s, 5 MB 0.25 s; 30 MB at 10 GB/s are read and written."""
    profile = replace(profile, bandwidth_bytes_per_s=1e10)
    found = CompressedGradients().predict(profile, RECIPE)
    assert found.inputs["exchange_s"] == pytest.approx(0.3)
    assert found.inputs["half_exchange_s"] == pytest.approx(0.25)
    assert found.time is not None
    assert found.time.step_s == pytest.approx(profile.time.step_s - (0.05 - 3e-3))
    changed = CompressedGradients().apply(profile, RECIPE)
    assert changed.device.gradient_compression is GradientCompression.BF16
    assert CompressedGradients().why_not(profile, changed) == "already on"


def test_an_algorithm_that_is_chosen_by_size_is_predicted_from_its_messages(
    profile: Profile,
) -> None:
    recipe = replace(RECIPE, device=replace(RECIPE.device, all_reduce=Choices.AUTO))
    found = CompressedGradients().predict(profile, recipe)
    assert found.inputs["half_exchange_s"] == pytest.approx(1e-3 + NUM_BYTES / 2 * 1e-8)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"count": 1}, "one device sends no gradients"),
        ({"count": 4}, "not measured"),
        ({"precision": Precision.FP16_MASTER}, "the gradients have 16 bits already"),
    ],
)
def test_compression_is_refused_with_a_reason(
    change: dict[str, object], why: str, profile: Profile
) -> None:
    recipe = replace(RECIPE, device=replace(RECIPE.device, **change))
    assert (CompressedGradients().why_not(profile, recipe) or "").startswith(why)


def test_compression_is_refused_where_sending_is_free(profile: Profile) -> None:
    quick = replace(profile, devices=replace(TWO, exchange_byte_s=1e-12))
    refused = CompressedGradients().why_not(quick, RECIPE)
    assert refused == "rounding the gradients takes longer than sending the other half of them"

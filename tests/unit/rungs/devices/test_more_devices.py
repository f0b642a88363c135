"""Several devices and machines: closed forms, and what limits the gain in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepladder.config.recipe import BatchConfig, DeviceConfig, Recipe
from stepladder.planning.hardware.gpus import Gpu
from stepladder.records.profile import Devices, Profile
from stepladder.rungs.devices.cost import cost_words
from stepladder.rungs.devices.more_gpus import MoreGpus, on_several_devices
from stepladder.rungs.devices.more_machines import MoreMachines, TriedMachines

TWO = Devices(num=2, start_s=3.0, share_step_s=0.4, exchange_fixed_s=0.01, exchange_byte_s=1e-9)
RECIPE = Recipe(batch=BatchConfig(global_batch_size=16))
MEGABYTES = 10**8
"""Four messages of 25 MB: 4 × 0.01 + 0.1 = 0.14 s."""


@pytest.fixture(name="profile")
def _profile(make_profile: Callable[..., Profile]) -> Profile:
    """A step of 1 s, of which 0.2 s are a wait for data."""
    return make_profile(
        devices=TWO,
        trainable_bytes=MEGABYTES,
        replay_host_s=0.8,
        replay_device_s=0.8,
        phases_s={"forward": 0.25, "backward": 0.5},
        step_fixed_s=0.2,
        step_per_example_s=0.05,
        loader_per_s=None,
    )


def test_on_a_cpu_share_and_exchange_add_up(profile: Profile) -> None:
    found = MoreGpus().predict(profile, RECIPE).time
    assert found is not None
    assert found.step_s == pytest.approx(0.4 + 0.14)
    assert found.validation_s == pytest.approx(20 * 0.4)
    assert found.one_time_s == {"start": 3.0}


def test_on_gpus_the_exchange_hides_behind_the_backward_pass(profile: Profile) -> None:
    """Of 0.4 s, two thirds are the backward pass: only the last bucket is waited for."""
    found = MoreGpus().predict(replace(profile, device="cuda"), RECIPE).time
    assert found is not None
    last_s = 0.01 + 25 * 1024**2 * 1e-9
    assert found.step_s == pytest.approx(0.4 + last_s)


def test_each_trained_norm_exchanges_in_both_passes(profile: Profile) -> None:
    with_norms = replace(profile, num_batchnorm=3, is_trunk_frozen=False)
    frozen = replace(with_norms, is_trunk_frozen=True)
    learns, rests = (MoreGpus().predict(one, RECIPE).time for one in (with_norms, frozen))
    assert learns is not None
    assert rests is not None
    assert learns.step_s - rests.step_s == pytest.approx(6 * 0.01)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "batch 16 over 2 devices leaves 8 each"),
        ({}, "100 MB travel, which takes 26 % of a step"),
        (
            {"devices": replace(TWO, share_step_s=0.8, share_wait_s=0.564)},
            "the loader is waited for in 60 % of a step: more devices would wait too",
        ),
        (
            {"trainable_bytes": 2_106_372, "devices": replace(TWO, exchange_fixed_s=0.001)},
            "2.1 MB travel: communication is free",
        ),
        ({"trainable_bytes": 10**9}, "1,000 MB travel, which takes"),
        ({"devices": replace(TWO, start_s=5000.0)}, "starting the processes takes 5000.0 s"),
    ],
    ids=["batch", "bytes", "wait", "free", "exchange", "start"],
)
def test_the_note_says_what_limits_the_gain(
    profile: Profile, changes: dict[str, Any], words: str
) -> None:
    assert words in MoreGpus().predict(replace(profile, **changes), RECIPE).note


def test_it_is_refused_in_words(profile: Profile) -> None:
    rung = MoreGpus()
    assert rung.why_not(profile, RECIPE) is None
    one = "only one device may be used: --devices 2 or more tries several"
    assert rung.why_not(replace(profile, devices=None), RECIPE) == one
    small = replace(profile, devices=replace(TWO, num=32))
    words = "batch 16 over 32 devices leaves 0 or 1 each, so some would have nothing to compute"
    assert rung.why_not(small, RECIPE) == words
    norm = replace(profile, devices=replace(TWO, num=16, share_step_s=None))
    words = "batch 16 over 16 devices leaves 1 each, which is too few for a step of this model"
    assert rung.why_not(norm, RECIPE) == words
    assert rung.why_not(profile, replace(RECIPE, device=DeviceConfig(count=2))) == "already on"


def test_a_norm_that_is_trained_is_synchronised_and_a_frozen_one_is_not(profile: Profile) -> None:
    learns = replace(profile, is_trunk_frozen=False)
    assert MoreGpus().apply(learns, RECIPE).device.sync_batchnorm
    assert (
        not MoreGpus().apply(replace(profile, is_trunk_frozen=True), RECIPE).device.sync_batchnorm
    )


def test_afterwards_the_step_grows_less_with_the_batch(profile: Profile) -> None:
    """A step on half of the batch took half of the time, so an example takes half as well."""
    found = on_several_devices(profile, replace(profile.time, step_s=0.6))
    assert found.time.step_s == 0.6
    assert found.step_per_example_s == pytest.approx(0.025)
    assert found.step_fixed_s == pytest.approx(0.6 - 0.025 * 16)


def test_two_machines_take_half_of_the_batch_each_and_a_ring(profile: Profile) -> None:
    """t(16) = 1 and t(8) = 0.6: the model's 0.75 s shrink to 0.45, of which 0.3 s are backward."""
    found = MoreMachines(10).predict(profile, RECIPE)
    assert found.time is not None
    exchange_s = 2 * (1e-4 + MEGABYTES / 2 / 1.25e9)
    assert found.inputs["exchange_s"] == pytest.approx(exchange_s)
    last_s = 2 * (1e-4 + 5 / 16 * MEGABYTES / 2 / 1.25e9)  # 5 of 16 parts fill the last bucket
    assert found.time.step_s == pytest.approx(0.25 + 0.45 + last_s)
    assert found.time.validation_s == pytest.approx(10.0)


def test_a_slow_network_is_named(profile: Profile) -> None:
    slow = MoreMachines(0.1).predict(profile, RECIPE)
    assert slow.gain < 1
    assert "on a network of 0.1 Gbit/s" in slow.note
    assert "batch 16 over 2 devices leaves 8 each" in slow.note
    assert "100 MB travel, which takes 92 % of a step" in slow.note
    assert "assumed" in MoreMachines().predict(profile, RECIPE).note
    assert MoreMachines().why_not(profile, replace(RECIPE, batch=BatchConfig(global_batch_size=1)))


def test_a_second_machine_is_no_gain_for_a_training_of_seconds(profile: Profile) -> None:
    """Starting the processes takes longer than the training that they would divide."""
    short = replace(profile, time=replace(profile.time, epochs=0.02, num_validations=0.0))
    assert short.time.total_s < 3
    assert MoreMachines(100).predict(short, RECIPE).gain < 1


def test_phases_that_add_up_to_more_than_a_step_leave_no_time_below_zero(profile: Profile) -> None:
    """Timers of phases may overlap, so their sum may exceed the step."""
    odd = replace(profile, phases_s={"forward": 30.0, "backward": 60.0}, trainable_bytes=0)
    found = MoreMachines(10).predict(odd, RECIPE).time
    assert found is not None
    assert found.step_s == pytest.approx(0.6)  # without trained weights, nothing is sent


T4 = Gpu(
    name="T4",
    half_flops_per_s=65e12,
    fp32_flops_per_s=8e12,
    bytes_per_s=3e11,
    price_per_hour=0.53,
)
FOUR = replace(T4, devices=4, price_per_hour=4.0)
"""One machine of four, and eight of one: +6 % per hour."""


def on_t4(profile: Profile, **changes: Any) -> Profile:
    return replace(profile, device="cuda", device_name="Tesla T4", **changes)


def test_devices_cost_what_their_row_says(profile: Profile) -> None:
    four = on_t4(profile, devices=replace(TWO, num=4))
    found = MoreGpus((T4, FOUR)).predict(four, RECIPE)
    assert found.price == pytest.approx(4.0 / 0.53)
    assert MoreGpus((T4,)).predict(four, RECIPE).price == pytest.approx(4)
    assert MoreGpus((FOUR,)).predict(four, RECIPE).price == 1  # the whole machine is paid for
    assert MoreGpus((T4, FOUR)).predict(profile, RECIPE).price is None  # this is a CPU
    cpu = (replace(T4, name="cpu"),)
    assert MoreGpus(cpu).predict(profile, RECIPE).price == pytest.approx(2)


def test_machines_cost_what_the_devices_of_each_do(profile: Profile) -> None:
    on_one = replace(RECIPE, device=DeviceConfig(count=4))
    eight = on_t4(profile, machines=replace(TWO, num=8))
    found = TriedMachines(8, gpus=(T4, FOUR)).predict(eight, on_one)
    assert found.price == pytest.approx(1.06)
    assert TriedMachines(2, gpus=(T4, FOUR)).predict(eight, on_one).price == 2
    assert MoreMachines(gpus=(T4, FOUR)).predict(on_t4(profile), on_one).price == 2


def test_the_note_says_up_to_which_price_it_is_worth_it(profile: Profile) -> None:
    alone = MoreGpus().predict(on_t4(profile), RECIPE)
    limit = f"worth it up to +{100 * (alone.gain - 1):.0f} % per hour"
    assert alone.note.endswith(f"; {limit}")
    priced = MoreGpus((T4,)).predict(on_t4(profile), RECIPE)
    less = 100 * (1 - 2 / priced.gain)
    words = f"{priced.gain:.2f}× as fast at +100 % per hour costs {less:.0f} % less; {limit}"
    assert priced.note.endswith(words)
    assert priced.gain_at_price == pytest.approx(priced.gain / 2)


@pytest.mark.parametrize(
    ("gain", "price", "words"),
    [
        (1.28, None, "worth it up to +28 % per hour"),
        (
            1.28,
            1.06,
            "1.28× as fast at +6 % per hour costs 17 % less; worth it up to +28 % per hour",
        ),
        (
            1.28,
            2.0,
            "1.28× as fast at +100 % per hour costs 56 % more; worth it up to +28 % per hour",
        ),
        (
            1.5,
            1.5,
            "1.50× as fast at +50 % per hour costs as much as before; worth it up to +50 % per "
            "hour",
        ),
        (0.9, None, "worth it at no higher price"),
    ],
)
def test_what_a_training_costs_in_words(gain: float, price: float | None, words: str) -> None:
    assert cost_words(gain, price) == words

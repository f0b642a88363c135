"""Local steps: what they save of an exchange and of delays by chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepladder.config.choices import AsyncMethod, Precision, TrainMode
from stepladder.config.recipe import (
    AsynchronousConfig,
    AugmentConfig,
    BatchConfig,
    DeviceConfig,
    FeaturesConfig,
    Recipe,
)
from stepladder.measuring.ranks.probe import Share, delay_s
from stepladder.records.profile import Devices, Profile
from stepladder.rungs.devices.local_sgd import LocalSgd
from stepladder.rungs.devices.more_gpus import MoreGpus

RECIPE = Recipe(train=TrainMode.ALL, device=DeviceConfig(count=2))
DEVICES = Devices(
    num=2,
    start_s=3.0,
    share_step_s=0.5,
    share_delay_s=0.2,
    exchange_fixed_s=0.04,
    exchange_byte_s=1e-8,
)


@pytest.fixture(name="profile")
def _profile(make_profile: Callable[..., Profile]) -> Profile:
    """A step of 1 s on two devices, 12 MB of gradients in one message, and delays of 0.2 s."""
    return make_profile(devices=DEVICES, trainable_bytes=12 * 10**6)


def test_the_exchange_is_divided_and_delays_add_up_by_chance(profile: Profile) -> None:
    """Of 0.16 s, an eighth is left; of 0.2 s, a part of 1 / sqrt(8)."""
    found = LocalSgd().predict(profile, RECIPE)
    assert found.time is not None
    saved_s = 0.16 * (1 - 1 / 8) + 0.2 * (1 - 8**-0.5)
    assert found.time.step_s == pytest.approx(profile.time.step_s - saved_s)
    assert found.inputs["local_steps"] == 8
    assert found.note == "an exchange every 8 steps"


def test_workers_take_the_places_of_the_devices(profile: Profile) -> None:
    assert LocalSgd().why_not(profile, RECIPE) is None
    after = LocalSgd().apply(profile, RECIPE)
    assert after.device.count == 1
    assert after.asynchronous.method is AsyncMethod.LOCAL_SGD
    assert after.asynchronous.workers == 2
    assert not after.is_alone
    assert LocalSgd().why_not(profile, after) == "already on"
    assert MoreGpus().why_not(profile, after) == "several workers train already"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": DeviceConfig(count=1)}, "one device waits for no other"),
        ({"device": DeviceConfig(count=4)}, "workers share one machine"),
        ({"train": TrainMode.HEAD_THEN_ALL}, "workers train one stage"),
        ({"features": FeaturesConfig(cached=True)}, "workers do not read cached features"),
        ({"augment": AugmentConfig(mixup_alpha=0.2)}, "MixUp draws"),
        ({"device": DeviceConfig(count=2, precision=Precision.FP16)}, "workers send float32"),
        ({"batch": BatchConfig(global_batch_size=1)}, "the batch has fewer examples"),
        ({"asynchronous": AsynchronousConfig(method=AsyncMethod.DILOCO)}, "already on"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_it_is_refused_with_a_reason(change: dict[str, Any], said: str, profile: Profile) -> None:
    refused = LocalSgd().why_not(profile, replace(RECIPE, **change))
    assert refused is not None
    assert refused.startswith(said)


def test_it_is_refused_where_devices_hardly_wait(profile: Profile) -> None:
    quick = replace(DEVICES, exchange_fixed_s=0.0, exchange_byte_s=0.0, share_delay_s=0.05)
    refused = LocalSgd().why_not(replace(profile, devices=quick), RECIPE) or ""
    assert refused.startswith("the devices exchange, and wait for each other, in 5 % of a step")
    on_gpus = LocalSgd().why_not(replace(profile, device="cuda"), RECIPE)
    assert on_gpus == "it has not been tried on GPUs"


def test_a_device_that_is_always_slower_is_no_delay_by_chance() -> None:
    """Steps of 3 and 1 s, of which the first ends all of them: nothing is left to chance."""
    always = [Share(step_s=3.0, wait_s=0.0, own_s=3.0), Share(step_s=3.0, wait_s=0.0, own_s=1.0)]
    assert delay_s(always) == 0
    in_turn = [Share(step_s=3.0, wait_s=0.0, own_s=2.0), Share(step_s=3.0, wait_s=0.0, own_s=2.0)]
    assert delay_s(in_turn) == 1
    assert delay_s([]) == 0

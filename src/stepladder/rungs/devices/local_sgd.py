"""Let devices take several steps by themselves between two exchanges."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Final

from stepladder.config.choices import AsyncMethod, Precision, TrainMode
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Devices, Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.more_gpus import bucket_sizes
from stepladder.rungs.formulas import predict_time
from stepladder.training.output.wording import percent

_MIN_WAIT: Final = 0.1
"""Share of a step in which devices wait for each other, below which nothing is gained."""


class LocalSgd(Rung):
    """Let each device take several steps by itself, then average the weights of all.

    Synchronous devices exchange gradients and wait for the slowest one in every step. With local
    steps they do so once in several, and delays that come by chance add up to less than the sum of
    the longest. A device that is always slower is waited for all the same.

    Trades: other steps, so that what is learnt is compared; the state of each worker's optimizer
    when a run resumes.
    Source: Stich 2019, "Local SGD Converges Fast and Communicates Little", arXiv:1805.09767;
    docs/asynchronous.md.
    """

    name: ClassVar[str] = "local_sgd"
    level: ClassVar[int] = 11
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse on one device, where workers cannot train, and if devices hardly wait."""
        if recipe.asynchronous.is_on:
            return "already on"
        if recipe.device.count == 1:
            return "one device waits for no other"
        if recipe.device.divides_model:
            return "each worker has all of the model"
        return _why_no_workers(recipe) or _why_no_gain(profile, recipe)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Exchange once in H steps, and add up delays before waiting for the longest.

            step' = step - (1 - 1 / H) exchange - (1 - 1 / sqrt(H)) delays

        The delays are those by chance: how much longer the slowest device of each step takes than
        the one that is the slowest on average.
        """
        devices = profile.devices
        assert devices is not None
        num_steps = recipe.asynchronous.local_steps
        exchange_s, delays_s = _exchange_s(profile, devices), devices.share_delay_s
        saved_s = (1 - 1 / num_steps) * exchange_s + (1 - 1 / math.sqrt(num_steps)) * delays_s
        now = profile.time
        saved_s = max(0.0, min(saved_s, now.step_s / 2))
        return predict_time(
            self.name,
            profile,
            replace(now, step_s=now.step_s - saved_s),
            inputs={"exchange_s": exchange_s, "delays_s": delays_s, "local_steps": num_steps},
            note=f"an exchange every {num_steps} steps",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Let workers on the same devices train by local SGD."""
        workers = replace(
            recipe.asynchronous, method=AsyncMethod.LOCAL_SGD, workers=recipe.device.count
        )
        device = replace(recipe.device, count=1, sync_batchnorm=False)
        return replace(recipe, asynchronous=workers, device=device)


def _why_no_workers(recipe: Recipe) -> str | None:
    """Return why workers cannot train a recipe; see `require_workers`."""
    if recipe.train is TrainMode.HEAD_THEN_ALL:
        return "workers train one stage, and this recipe has two"
    if recipe.features.cached:
        return "workers do not read cached features"
    if recipe.augment.mixup_alpha:
        return "MixUp draws partners from the whole batch"
    if recipe.device.precision in (Precision.FP16, Precision.FP16_MASTER):
        return "workers send float32, without the loss scale of fp16"
    if recipe.batch.global_batch_size < recipe.device.count:
        return "the batch has fewer examples than there are devices"
    return None


def _why_no_gain(profile: Profile, recipe: Recipe) -> str | None:
    """Return why nothing is known to be gained."""
    devices = profile.devices
    if profile.device != "cpu":
        return "it has not been tried on GPUs"
    if devices is None or devices.num != recipe.device.count:
        return "workers share one machine, and the devices of this one were not measured alone"
    wait = _waits_s(profile, devices) / max(profile.time.step_s, 1e-12)
    if wait >= _MIN_WAIT:
        return None
    return (
        f"the devices exchange, and wait for each other, in {percent(wait, 0)} of a step: "
        "synchronous steps cost almost nothing"
    )


def _exchange_s(profile: Profile, devices: Devices) -> float:
    sizes = bucket_sizes(profile)
    return len(sizes) * devices.exchange_fixed_s + sum(sizes) * devices.exchange_byte_s


def _waits_s(profile: Profile, devices: Devices) -> float:
    return _exchange_s(profile, devices) + devices.share_delay_s

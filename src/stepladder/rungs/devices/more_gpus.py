"""Train on several devices of this machine."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Final

from stepladder.config.recipe import Recipe
from stepladder.planning.hardware.gpus import GPUS, Gpu
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Devices, Profile, TrainingTime
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.cost import cost_words, times_price
from stepladder.rungs.formulas import predict_time, with_one_time
from stepladder.training.output.wording import percent

_BUCKET_BYTES: Final = 25 * 1024**2
"""Gradients that DistributedDataParallel sends in one message (`bucket_cap_mb`)."""
_WAITS: Final = 0.25
"""Share from which the wait for data (of a step) and the start (of a training) are named."""
_FREE: Final = 0.02
"""Share of a step below which the exchange of gradients is called free."""


class MoreGpus(Rung):
    """Train on several devices of this machine, one process each, with the same global batch.

    Each device takes its part of every batch, and gradients are added up over all devices, so that
    the result is the same up to the order of sums. A BatchNorm that is trained uses the statistics
    of the whole batch, for the same reason. On a CPU, the cores are divided among the processes.

    Args:
        gpus: with prices, the verdict is by the cost of the whole training, else by its time.

    Trades: other devices, and their price; a smaller part of the batch on each device.
    Source: Sergeev and Del Balso 2018, "Horovod", arXiv:1802.05799; overlap of the exchange: Li et
    al. 2020, "PyTorch Distributed", arXiv:2006.15704; Amdahl 1967.
    """

    name: ClassVar[str] = "more_gpus"
    level: ClassVar[int] = 10
    needs_devices: ClassVar[bool] = True

    def __init__(self, gpus: tuple[Gpu, ...] = GPUS) -> None:
        self.gpus = gpus

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse without several devices, or if a batch cannot be divided among them."""
        if recipe.device.count > 1:
            return "already on"
        if recipe.asynchronous.is_on:
            return "several workers train already"
        devices = profile.devices
        if devices is None:
            return "only one device may be used: --devices 2 or more tries several"
        batch = recipe.batch.global_batch_size
        return why_not_divided(devices, batch)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Add up a step on a part of the batch, which contains reading it, and the exchange.

            step' = share + exchange            (CPU: all share the cores)
            step' = share + exposed exchange    (GPU)

        The share is measured on the devices at hand, all at once, and the exchange follows from the
        bytes, by a line that was fitted there; a BatchNorm that is trained exchanges twice more per
        layer. On a GPU, bytes travel while gradients are computed, except for the last bucket; on a
        CPU, nothing is free to send them meanwhile. Validation shrinks like the share.
        """
        assert profile.devices is not None
        price = times_price(self.gpus, profile, (1, recipe.device.count), (1, profile.devices.num))
        return predict_devices(self.name, profile, recipe, profile.devices, price=price)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Use all devices; a BatchNorm that is trained uses the statistics of the whole batch."""
        num = profile.devices.num if profile.devices is not None else recipe.device.count
        return with_devices(profile, recipe, num)


def why_not_divided(devices: Devices, batch: int) -> str | None:
    """Return why a global batch cannot be divided among devices, with what is left for each."""
    left = batch_words(batch, devices.num)
    if batch < devices.num:
        return f"{left}, so some would have nothing to compute"
    if devices.share_step_s is None:
        return f"{left}, which is too few for a step of this model"
    return None


def batch_words(batch: int, num: int) -> str:
    """Return what is left for each device: `batch 16 over 8 devices leaves 2 each`."""
    least, rest = divmod(batch, num)
    own = f"{least}" if rest == 0 else f"{least} or {least + 1}"
    return f"batch {batch} over {num} devices leaves {own} each"


def travel_words(num_bytes: int, seconds: float, step_s: float) -> str:
    """Return what exchanging gradients costs: `2.1 MB travel: communication is free`.

    Args:
        seconds: of a step, that the exchange takes.
        step_s: seconds of the whole step.
    """
    size = num_bytes / 1e6
    digits = 0 if size >= 99.5 else 1 if size >= 0.95 else 4
    travel = f"{size:,.{digits}f} MB travel"
    share = min(1.0, seconds / max(step_s, 1e-12))
    if share < _FREE:
        return f"{travel}: communication is free"
    return f"{travel}, which takes {percent(share, 0)} of a step"


def has_trained_norm(profile: Profile) -> bool:
    """Return whether the model has a BatchNorm that is trained."""
    return profile.num_batchnorm > 0 and not profile.is_trunk_frozen


def with_devices(profile: Profile, recipe: Recipe, num: int) -> Recipe:
    """Return the recipe on several devices, with the result of one."""
    device = replace(
        recipe.device,
        count=num,
        replicas=1,
        sync_batchnorm=recipe.device.sync_batchnorm or has_trained_norm(profile),
    )
    return replace(recipe, device=device)


def predict_devices(
    name: str, profile: Profile, recipe: Recipe, devices: Devices, *, price: float | None
) -> Prediction:
    """Predict a training on several devices for a rung; see `MoreGpus.predict`.

    Args:
        devices: measured; a batch can be divided among them.
        price: per hour, over that now; None: not known.
    """
    assert devices.share_step_s is not None
    now, share_s = profile.time, devices.share_step_s
    is_cpu = profile.device == "cpu"
    exchange_s = _exchange_s(devices, profile, profile.trainable_bytes)
    exposed_s = exchange_s
    if not is_cpu:
        backward_s = share_s * backward_frac(profile)
        last_s = _exchange_s(devices, profile, min(profile.trainable_bytes, _BUCKET_BYTES))
        exposed_s = max(last_s, exchange_s - backward_s)
    step_s, shrink = share_s + exposed_s, share_s / max(now.step_s, 1e-12)
    after = _after(profile, recipe, devices, step_s=step_s, shrink=min(1.0, shrink))
    inputs = {
        "devices": float(devices.num),
        "share_step_s": share_s,
        "exchange_s": exchange_s,
        "exposed_s": exposed_s,
        "wait_s": devices.share_wait_s,
        "exchanged_bytes": float(profile.trainable_bytes),
        "start_s": devices.start_s,
    }
    note = _note(profile, recipe, after, inputs)
    found = predict_time(name, profile, after, inputs=inputs, price=price)
    return replace(found, note=f"{note}; {cost_words(found.gain, price)}")


def _after(
    profile: Profile, recipe: Recipe, devices: Devices, *, step_s: float, shrink: float
) -> TrainingTime:
    now = profile.time
    after = with_one_time(
        replace(now, step_s=step_s, validation_s=now.validation_s * shrink),
        start=devices.start_s,
    )
    features_s = now.one_time_s.get("features")
    if not recipe.features.cached or features_s is None or profile.device == "cpu":
        return after  # on a CPU, the trunk has the same cores as before
    load_s = 1 / profile.loader_per_s if profile.loader_per_s else 0.0
    read_s = load_s * (profile.num_train + profile.num_val)
    return with_one_time(after, features=max(features_s / devices.num, min(read_s, features_s)))


def _note(profile: Profile, recipe: Recipe, after: TrainingTime, inputs: dict[str, float]) -> str:
    """Return what a device gets, and what limits the gain."""
    num, batch = int(inputs["devices"]), recipe.batch.global_batch_size
    parts = [batch_words(batch, num)]
    if inputs["wait_s"] > _WAITS * after.step_s:
        share = inputs["wait_s"] / after.step_s
        parts.append(
            f"the loader is waited for in {percent(share, 0)} of a step: more devices would wait "
            "too"
        )
    parts.append(travel_words(profile.trainable_bytes, inputs["exposed_s"], after.step_s))
    if inputs["start_s"] > _WAITS * after.total_s:
        parts.append(f"starting the processes takes {inputs['start_s']:.1f} s")
    gain = profile.time.total_s / max(after.total_s, 1e-12)
    efficiency = gain / (num / recipe.device.count)
    parts.append(f"efficiency {percent(efficiency, 0)}")
    return "; ".join(parts)


def on_several_devices(profile: Profile, time: TrainingTime) -> Profile:
    """Return what is known of a recipe on several devices, from the profile of one device.

    Args:
        profile: of one device; or of several, after another change.
        time: measured on several devices.

    Returns:
        The profile with their time, and with a step t(b) = a + c b in which c shrinks like the step
        on a part of the batch, and the rest, such as the exchange, is fixed.
    """
    now = profile.time
    growth = now.steps_per_epoch / max(time.steps_per_epoch, 1e-12)  # of the batch
    shrink = time.step_s / max(now.step_s * growth, 1e-12)
    per_example_s, fixed_s = profile.step_per_example_s, None
    if per_example_s is not None:
        per_example_s *= _share_of_model(profile)
        batch = profile.num_train / max(time.steps_per_epoch, 1e-12)
        fixed_s = max(0.0, time.step_s - per_example_s * batch)
    return replace(
        profile,
        time=time,
        phases_s={name: seconds * shrink for name, seconds in profile.phases_s.items()},
        replay_host_s=_times(profile.replay_host_s, shrink),
        replay_device_s=_times(profile.replay_device_s, shrink),
        step_by_batch_s={},
        step_per_example_s=per_example_s,
        step_fixed_s=fixed_s,
    )


def _times(seconds: float | None, factor: float) -> float | None:
    return None if seconds is None else seconds * factor


def _share_of_model(profile: Profile) -> float:
    """Return a step on a part of the batch, over that on all of it; 1 once several are used."""
    devices, whole_s = profile.devices, profile.replay_device_s
    if devices is None or not devices.share_step_s or not whole_s:
        return 1.0
    is_several = "start" in profile.time.one_time_s
    share_s = devices.share_step_s - devices.share_wait_s
    return 1.0 if is_several else min(1.0, share_s / whole_s)


def _exchange_s(devices: Devices, profile: Profile, num_bytes: float) -> float:
    """Return the seconds to add up gradients over all devices, one message for each bucket.

    A layer whose statistics are those of the whole batch sends two small messages.
    """
    num_norms = profile.num_batchnorm if has_trained_norm(profile) else 0
    num_messages = 2 * num_norms + math.ceil(num_bytes / _BUCKET_BYTES)
    return num_messages * devices.exchange_fixed_s + num_bytes * devices.exchange_byte_s


def bucket_sizes(profile: Profile) -> list[int]:
    """Return the bytes of the messages in which DDP sends the gradients of a step."""
    whole, rest = divmod(profile.trainable_bytes, _BUCKET_BYTES)
    return [_BUCKET_BYTES] * whole + ([rest] if rest else [])


def devices_of(profile: Profile, recipe: Recipe) -> Devices | None:
    """Return what was measured of the devices that a recipe trains on; None: nothing."""
    found = (profile.devices, profile.machines)
    return next((one for one in found if one is not None and one.num == recipe.device.count), None)


def backward_frac(profile: Profile) -> float:
    """Return the share of the backward pass in the model's time; two thirds if unknown."""
    forward_s, backward_s = (profile.phases_s.get(name, 0.0) for name in ("forward", "backward"))
    total_s = forward_s + backward_s
    return backward_s / total_s if total_s > 0 else 2 / 3

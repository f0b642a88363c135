"""Divide the model among devices, instead of keeping a copy on each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import (
    AllReduce,
    Buckets,
    GradientCompression,
    Precision,
    TrainMode,
)
from stepladder.config.recipe import DeviceConfig, Recipe
from stepladder.parallel.divided.choice import Choice, Kind, choose
from stepladder.records.ladder import Aim, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.more_gpus import devices_of
from stepladder.rungs.formulas import batch_doublings, memory_batch, predict_time


class ShardedModel(Rung):
    """Divide the model among devices, so that it or a larger batch fits into their memory.

    A sharded model (FSDP2) is the first choice; its layers on several devices (tensor parallelism,
    a pipeline) are the last one. Which kind fits, and what each needs and sends, is in
    docs/parallelism.md.

    Trades: half as much traffic again, for memory.
    Source: Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054; Zhao et al. 2023, "PyTorch FSDP",
    arXiv:2304.11277.
    """

    name: ClassVar[str] = "sharded_model"
    level: ClassVar[int] = 12
    aim: ClassVar[Aim] = Aim.MEMORY
    is_enabler: ClassVar[bool] = True

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if copies of the model fit, with the bytes that both ways send."""
        refusal = _why_never(profile, recipe)
        if refusal is not None:
            return refusal
        choice = choice_of(profile, recipe)
        if recipe.device.count == 1:
            batch = f"batch {recipe.batch.global_batch_size} for 2 devices: "
            return f"on two devices, {choice.reason.removeprefix(batch)}"
        refusal = _why_not_needed(profile, recipe, choice)
        return refusal or _why_not_with(recipe.device, kind_of(choice))

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Send what the chosen kind sends, instead of the gradients.

            step' = step + (sent' - sent) * seconds of a byte

        Memory shrinks as the parts of the model do; what a step keeps stays that of each device's
        examples.
        """
        choice = choice_of(profile, recipe)
        kind = kind_of(choice)
        devices = devices_of(profile, recipe)
        byte_s = 0.0 if devices is None else devices.exchange_byte_s
        sends, needs = choice.traffic, choice.memory
        # the line of an exchange has gradients, not what a device sends of them
        share = 2 * (recipe.device.count - 1) / recipe.device.count
        more_s = (sends[kind] - sends[Kind.DATA]) / share * byte_s
        now = profile.time
        return predict_time(
            self.name,
            profile,
            replace(now, step_s=max(now.step_s + more_s, now.step_s / 2)),
            inputs={
                "devices": float(recipe.device.count),
                "bytes_with_copies": needs[Kind.DATA],
                "bytes_divided": needs[kind],
                "sent_with_copies": sends[Kind.DATA],
                "sent_divided": sends[kind],
            },
            memory_frac=needs[kind] / needs[Kind.DATA],
            note=f"{kind}: {choice.reason}",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Divide the model among the devices in the way that fits."""
        return replace(recipe, device=divided(recipe.device, kind_of(choice_of(profile, recipe))))


def _why_never(profile: Profile, recipe: Recipe) -> str | None:
    """Return why the model of a recipe cannot be divided, or whether it pays is not known."""
    if recipe.device.divides_model:
        return "already on"
    if recipe.asynchronous.is_on:
        return "each worker has a copy of the model"
    if recipe.train is TrainMode.HEAD_THEN_ALL:
        return "a divided model is trained in one stage, and this recipe has two"
    if profile.is_trunk_frozen or recipe.features.cached:
        return "the trunk is frozen: it has no gradients that could be divided"
    return "not measured: what a step keeps in memory" if profile.size is None else None


def choice_of(profile: Profile, recipe: Recipe) -> Choice:
    """Return which kind of parallelism fits; for one device, what two of its size would do."""
    assert profile.size is not None
    devices = max(2, recipe.device.count)
    memory = float(profile.free_memory_bytes)
    if profile.device == "cpu":
        memory /= recipe.device.count  # all processes have the memory of the machine
    batch, micro = recipe.batch.global_batch_size, recipe.batch.micro_batch_size
    at_once = None if micro is None else micro * devices
    return choose(profile.size, devices=devices, batch=batch, memory=memory, at_once=at_once)


def kind_of(choice: Choice) -> Kind:
    """Return how the model is divided: sharded if copies fit, but not with a larger batch."""
    return Kind.SHARDED if choice.kind in (None, Kind.DATA) else choice.kind


def divided(device: DeviceConfig, kind: Kind) -> DeviceConfig:
    """Return the options of devices that share the work of a step in one of the kinds."""
    if kind is Kind.TENSOR:
        return replace(device, tensor_parallel=device.count, sync_batchnorm=False)
    if kind is Kind.PIPELINE:
        return replace(device, pipeline_stages=device.count, sync_batchnorm=False)
    return replace(device, sharded=True)


def _why_not_needed(profile: Profile, recipe: Recipe, choice: Choice) -> str | None:
    """Return why copies of the model are enough, or why nothing fits."""
    if choice.kind is None:
        return choice.reason
    if choice.kind is not Kind.DATA:
        return None
    if len(profile.memory_by_batch) < 2:
        return choice.reason
    wanted = max(batch_doublings(profile, recipe, limit=math.inf), default=0)
    return choice.reason if wanted <= memory_batch(profile) else None


def _why_not_with(device: DeviceConfig, kind: Kind) -> str | None:
    """Return which other option does not go with a divided model."""
    others = {
        "fp16": device.precision in (Precision.FP16, Precision.FP16_MASTER),
        "torch.compile": device.compile,
        "gradient checkpointing": device.gradient_checkpointing and kind is Kind.PIPELINE,
        "another all-reduce": device.all_reduce is not AllReduce.NATIVE,
        "buckets by layer": device.buckets is not Buckets.SIZE,
        "compressed gradients": device.gradient_compression is not GradientCompression.NONE,
    }
    found = next((name for name, is_on in others.items() if is_on), None)
    return None if found is None else f"it has not been tried with {found}"

"""Add up gradients with the algorithm that suits their size and the connections."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import AllReduce as Choices
from stepladder.config.choices import GradientCompression
from stepladder.config.recipe import Recipe
from stepladder.parallel.collectives.choice import NATIVE, Choice
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Devices, Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.more_gpus import bucket_sizes, devices_of
from stepladder.rungs.formulas import predict_time


class AllReduce(Rung):
    """Add up gradients with the algorithm that is the fastest for their size between these devices.

    PyTorch uses one algorithm on CPUs at every size. Few steps are better for small gradients, and
    few bytes for large ones; which is which depends on the connections, and is measured.

    Trades: about a second at the start of a training, to measure the connections.
    Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
    Operations in MPICH", IJHPCA 19(1); docs/collectives.md.
    """

    name: ClassVar[str] = "all_reduce"
    level: ClassVar[int] = 11

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse on one device, on GPUs, and if PyTorch's own is the fastest anyway."""
        if recipe.device.all_reduce is not Choices.NATIVE:
            return "already on"
        if recipe.device.count == 1 or recipe.device.divides_model:
            is_one = recipe.device.count == 1
            return "one device has nothing to add up" if is_one else "PyTorch adds up the parts"
        if profile.device != "cpu":
            return "on GPUs, NCCL chooses an algorithm by size itself"
        if recipe.device.gradient_compression is GradientCompression.POWER_SGD:
            return "PowerSGD adds up its matrices by itself"
        return _why_not_faster(profile, recipe)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Replace the time of PyTorch's own all-reduce by that of the fastest, for each bucket.

        step' = step - sum over buckets (native(n) - min over algorithms T(n)), where T(n) follows
        the messages of a schedule with the fitted cost of a message.
        """
        devices = devices_of(profile, recipe)
        assert devices is not None
        assert devices.fit is not None
        choice, native = Choice(devices.fit), Choice(devices.fit, algorithms=())
        sizes = bucket_sizes(profile)
        chosen = [choice(size) for size in sizes]
        before_s = sum(native(size).predicted_s for size in sizes)
        after_s = sum(one.predicted_s for one in chosen)
        now = profile.time
        saved_s = min(before_s - after_s, _exchange_s(devices, sum(sizes)), now.step_s / 2)
        names = " and ".join(dict.fromkeys(one.name for one in chosen))
        return predict_time(
            self.name,
            profile,
            replace(now, step_s=now.step_s - max(0.0, saved_s)),
            inputs={"native_s": before_s, "chosen_s": after_s, "gradient_bytes": float(sum(sizes))},
            note=f"{names} for {sum(sizes) / 1e6:,.2g} MB of gradients",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Choose the algorithm by size."""
        return replace(recipe, device=replace(recipe.device, all_reduce=Choices.AUTO))


def _why_not_faster(profile: Profile, recipe: Recipe) -> str | None:
    """Return why no algorithm is known to be faster than PyTorch's own."""
    devices = devices_of(profile, recipe)
    if devices is None or devices.fit is None:
        return "not measured: the connections between these devices"
    choice = Choice(devices.fit)
    if all(choice(size).name == NATIVE for size in bucket_sizes(profile)):
        return "PyTorch's own is the fastest for these gradients"
    return None


def _exchange_s(devices: Devices, num_bytes: int) -> float:
    return devices.exchange_fixed_s + num_bytes * devices.exchange_byte_s

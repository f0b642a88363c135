"""Train on a second machine, predicted from the speed of the network."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from stepladder.config.recipe import Recipe
from stepladder.planning.costs.all_reduce import ring_s as planned_ring_s
from stepladder.planning.hardware.gpus import GPUS, Gpu
from stepladder.planning.job import evenly
from stepladder.planning.step.step import StepInputs, step_time
from stepladder.records.collectives import Link
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.cost import cost_words, times_price
from stepladder.rungs.devices.more_gpus import (
    backward_frac,
    batch_words,
    predict_devices,
    travel_words,
    why_not_divided,
    with_devices,
)
from stepladder.rungs.formulas import loader_floor_s, model_s, predict_time, with_one_time
from stepladder.training.output.wording import percent

_MACHINES: Final = 2
ASSUMED_GBIT_S: Final = 10.0  # Ethernet of common servers
_LATENCY_S: Final = 1e-4
"""Assumed time of an empty message between two machines on Ethernet, with TCP."""
_START_S: Final = 3.0
"""Assumed time until processes have imported PyTorch and met, where it is not measured."""


class MoreMachines(Rung):
    """Train on a second machine like this one.

    Predicted only, unless torchrun or srun has started the climb on several machines.

    Args:
        network_gbit_s: speed of the network between the machines, in Gbit/s; None: assumed.
        gpus: with prices, the verdict is by the cost of the whole training, else by its time.

    Trades: a second machine, and its price; a smaller part of the batch on each device.
    Source: bytes of a ring all-reduce: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
    algorithms", J. Parallel Distrib. Comput. 69(2); overlap: Li et al. 2020, arXiv:2006.15704.
    """

    name: ClassVar[str] = "more_machines"
    level: ClassVar[int] = 11
    exactness: ClassVar[Exactness] = Exactness.ROUNDING
    is_prediction_only: ClassVar[bool] = True

    def __init__(
        self, network_gbit_s: float | None = None, *, gpus: tuple[Gpu, ...] = GPUS
    ) -> None:
        self.network_gbit_s = network_gbit_s
        self.gpus = gpus

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if a batch cannot be divided, or if its time is not known."""
        num, batch = _MACHINES * recipe.device.count, recipe.batch.global_batch_size
        if batch < num:
            return f"{batch_words(batch, num)}, so some would have nothing to compute"
        if profile.step_fixed_s is None or profile.step_per_example_s is None:
            return "not measured: the time of a step at three batch sizes"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Halve the examples of a step, and add what a ring sends between two machines.

            step' = max(t(b / 2) + exposed exchange, time of the loader / 2),  t(b) = a + c b

        Bytes travel while gradients are computed, in the order in which these are ready, as
        `planning.step.step_time` has it. Each machine reads
        and validates its own half. Starting the processes is added once.
        """
        now, batch = profile.time, recipe.batch.global_batch_size
        fixed_s, per_example_s = profile.step_fixed_s or 0.0, profile.step_per_example_s or 0.0
        whole_s = fixed_s + per_example_s * batch
        half_s = fixed_s + per_example_s * batch / _MACHINES
        shrink = half_s / whole_s if whole_s > 0 else 1.0
        computed_s = now.step_s - min(model_s(profile), now.step_s) * (1 - shrink)
        exchange_s = self._exchange_s(profile.trainable_bytes)
        exposed_s = step_time(
            StepInputs(
                fixed_s=shrink * model_s(profile),
                per_example_s=0.0,
                backward_frac=backward_frac(profile),
                gradients=profile.gradients or evenly(profile.trainable_bytes),
                all_reduce=self._exchange_s,
                num_devices=_MACHINES,
            )
        ).communication
        floor_s = min(now.step_s, loader_floor_s(profile, recipe)) / _MACHINES
        step_s = max(computed_s + exposed_s, floor_s)
        after = with_one_time(
            replace(now, step_s=step_s, validation_s=now.validation_s / _MACHINES),
            start=_START_S if profile.devices is None else profile.devices.start_s,
        )
        num = _MACHINES * recipe.device.count
        note = f"{_MACHINES} machines on a network of {self._gbit_s:g} Gbit/s"
        if self.network_gbit_s is None:
            note += " (assumed; --ladder.network-gbit-s changes it)"
        note += f"; {batch_words(batch, num)}"
        note += f"; {travel_words(profile.trainable_bytes, exposed_s, step_s)}"
        gain = now.total_s / max(after.total_s, 1e-12)
        note += f"; efficiency {percent(gain / _MACHINES, 0)}"
        inputs = {
            "machines": float(_MACHINES),
            "network_gbit_s": self._gbit_s,
            "exchange_s": exchange_s,
            "exposed_s": exposed_s,
            "exchanged_bytes": float(profile.trainable_bytes),
        }
        devices = recipe.device.count
        price = times_price(self.gpus, profile, (1, devices), (_MACHINES, devices))
        found = predict_time(self.name, profile, after, inputs=inputs, price=price)
        return replace(found, note=f"{note}; {cost_words(found.gain, price)}")

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Return the recipe unchanged: a recipe does not say on which machines it is trained."""
        return recipe

    @property
    def _gbit_s(self) -> float:
        return ASSUMED_GBIT_S if self.network_gbit_s is None else self.network_gbit_s

    def _exchange_s(self, num_bytes: float) -> float:
        """Return the seconds of a ring between the machines."""
        return ring_s(num_bytes, _MACHINES, self._gbit_s)


def ring_s(num_bytes: float, machines: int, network_gbit_s: float) -> float:
    """Return the seconds of a ring all-reduce between machines."""
    bytes_per_s = network_gbit_s * 1e9 / 8
    link = Link.plain(alpha_s=_LATENCY_S, beta_s=1 / bytes_per_s)
    return planned_ring_s(machines, num_bytes, link)


class TriedMachines(MoreMachines):
    """Train on all machines on which torchrun or srun has started the climb.

    Each device takes its part of every batch, as for `more_gpus`; the exchange of gradients is
    measured on the network between them.

    Args:
        num: of machines.
        gpus: see `MoreMachines`.

    Trades: other machines, and their price; a smaller part of the batch on each device.
    Source: see `MoreMachines` and `MoreGpus`.
    """

    is_prediction_only: ClassVar[bool] = False
    needs_machines: ClassVar[bool] = True

    def __init__(self, num: int, *, gpus: tuple[Gpu, ...] = GPUS) -> None:
        super().__init__(gpus=gpus)
        self.num = num

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if all machines are used, or if a batch cannot be divided among their devices."""
        machines, batch = profile.machines, recipe.batch.global_batch_size
        if machines is None or recipe.device.count >= machines.num:
            return "already on"
        if recipe.asynchronous.is_on:
            return "workers train already, which share one machine"
        return why_not_divided(machines, batch)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Predict as `MoreGpus` does, from a step and an exchange of all machines."""
        assert profile.machines is not None
        before, after = (1, recipe.device.count), (self.num, profile.machines.num // self.num)
        price = times_price(self.gpus, profile, before, after)
        return predict_devices(self.name, profile, recipe, profile.machines, price=price)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Use the devices of all machines."""
        assert profile.machines is not None
        return with_devices(profile, recipe, profile.machines.num)

"""The time of a step on several devices, from that of one: compute, messages, waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from stepladder.planning.step.stragglers import Spread, slowest_frac
from stepladder.records.profile import Gradient

BUCKET_BYTES: Final = 25 * 1024**2
FIRST_BUCKET_BYTES: Final = 1024**2
"""Gradients that DistributedDataParallel sends in one message, and in the first one."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A process that feeds all devices of single-process replication, one after the other.

    Attributes:
        device_s: of a step, for each device: to start its work.
        example_s: for each example: to divide batches, and to collect results.

    Source: measured by the field's advice to leave it: Owen 2019, "How (Not) To Scale Deep
        Learning", Databricks.
    """

    device_s: float = 0.0
    example_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """What the time of a step depends on.

    Attributes:
        fixed_s, per_example_s: a and c of t(b) = a + c b, of forward and backward pass of b
            examples on one device.
        backward_frac: share of the backward pass in that.
        update_s: the optimizer's.
        gradients: of the trained weights, in the order in which they are ready.
        all_reduce: seconds to add up so many bytes.
        num_devices, local_devices: in total, and of one host.
        micro_batch: examples of a device in one pass.
        accumulation: passes of a step.
        spread_frac, spread: of a step over devices and steps, see `stragglers`.
        hides: gradients travel while others are computed.
        contention_frac: how much longer the backward pass takes meanwhile.
        loader_example_s: seconds of a host's loader for an example, with all its cores.
        driver: of single-process replication; None: a process for each device.
        bucket_bytes, first_bucket_bytes: of a message of gradients.
    """

    fixed_s: float
    per_example_s: float
    backward_frac: float = 2 / 3
    update_s: float = 0.0
    gradients: Sequence[Gradient] = ()
    all_reduce: Callable[[float], float] = field(default=lambda _: 0.0)
    num_devices: int = 1
    local_devices: int = 1
    micro_batch: float = 1.0
    accumulation: int = 1
    spread_frac: float = 0.0
    spread: Spread = Spread.NORMAL
    hides: bool = True
    contention_frac: float = 0.0
    loader_example_s: float = 0.0
    driver: Driver | None = None
    bucket_bytes: float = BUCKET_BYTES
    first_bucket_bytes: float = FIRST_BUCKET_BYTES

    @property
    def pass_s(self) -> float:
        """Seconds of one forward and backward pass of a device."""
        return self.fixed_s + self.per_example_s * self.micro_batch

    @property
    def batch(self) -> float:
        """Examples of a step on all devices."""
        return self.micro_batch * self.accumulation * self.num_devices


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step by part; they add up to `total_s`.

    Attributes:
        compute: forward and backward passes, and the update.
        communication: messages that nothing hides, and what hidden ones slow down.
        stragglers: until the slowest device is ready.
        driver: of single-process replication.
        data: waiting for the loader.
    """

    compute: float
    communication: float = 0.0
    stragglers: float = 0.0
    driver: float = 0.0
    data: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds of the whole step."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by part."""
        return {
            "compute": self.compute,
            "communication": self.communication,
            "stragglers": self.stragglers,
            "driver": self.driver,
            "data": self.data,
        }


def step_time(inputs: StepInputs) -> StepTime:
    """Return the time of a step.

        ready_i = start of the backward pass + its share until gradient i is known
        begin_i = max(ready_i, end_(i-1)),  end_i = begin_i + T(bytes of bucket i)
        step    = max(all computed, last end) + update + z_N s t + driver,  at least the loader's

    With accumulation, only the last pass sends. A straggler delays all that follow, so its delay is
    added to the whole; s is the spread.

    Source: Li et al. 2020, "PyTorch Distributed", arXiv:2006.15704, section 3.2 (buckets, overlap).
    """
    computed_s = inputs.accumulation * inputs.pass_s
    exposed_s = 0.0
    if inputs.num_devices > 1 and inputs.gradients:
        exposed_s = _exposed_s(inputs, computed_s)
    delay = slowest_frac(inputs.num_devices, inputs.spread_frac, inputs.spread)
    driver_s = 0.0
    if inputs.driver is not None and inputs.num_devices > 1:
        driver_s = inputs.driver.device_s * inputs.num_devices
        driver_s += inputs.driver.example_s * inputs.batch
    busy = StepTime(
        compute=computed_s + inputs.update_s,
        communication=exposed_s,
        stragglers=delay * computed_s,
        driver=driver_s,
    )
    local_batch = inputs.micro_batch * inputs.accumulation * inputs.local_devices
    wait_s = max(0.0, local_batch * inputs.loader_example_s - busy.total_s)
    return StepTime(**{**busy.parts, "data": wait_s})


def buckets(
    gradients: Sequence[Gradient], *, first_bytes: float, most_bytes: float
) -> list[Gradient]:
    """Return the messages in which gradients travel: the bytes of each, and when it is full.

    As in DistributedDataParallel, a bucket is closed by the gradient that reaches its size.
    """
    found: list[Gradient] = []
    filled = 0
    for number, gradient in enumerate(gradients):
        filled += gradient.num_bytes
        limit = most_bytes if found else first_bytes
        if filled >= limit or number == len(gradients) - 1:
            found.append(Gradient(num_bytes=filled, ready_frac=gradient.ready_frac))
            filled = 0
    return found


def _exposed_s(inputs: StepInputs, computed_s: float) -> float:
    """Return the seconds by which messages make a step longer."""
    parts = buckets(
        inputs.gradients, first_bytes=inputs.first_bucket_bytes, most_bytes=inputs.bucket_bytes
    )
    times = [inputs.all_reduce(part.num_bytes) for part in parts]
    if not inputs.hides:
        return sum(times)
    backward_s = inputs.backward_frac * inputs.pass_s
    slower_s = inputs.contention_frac * min(sum(times), backward_s)
    begin_s = computed_s - backward_s
    length_s = backward_s + slower_s
    end_s = 0.0
    for part, took_s in zip(parts, times, strict=True):
        end_s = max(begin_s + part.ready_frac * length_s, end_s) + took_s
    return max(computed_s + slower_s, end_s) - computed_s

"""A training in a place: how long a step takes there, part by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from stepladder.parallel.divided.choice import PARTS_OF_A_STAGE, Kind
from stepladder.planning.costs.all_reduce import Group, all_reduce_s, required, slowed
from stepladder.planning.costs.divided import pipeline_s, tensor_parallel_s
from stepladder.planning.hardware.ranges import Case, Range
from stepladder.planning.job import PlannedJob
from stepladder.planning.memory import Fit
from stepladder.planning.place import ASYNCHRONOUS, SERVED, Place
from stepladder.planning.simulation.asynchronous import Throughput, Workers, simulate_workers
from stepladder.planning.simulation.synchronous import Devices, simulate_steps
from stepladder.planning.step.step import StepInputs, step_time
from stepladder.records.plan import NETWORK_FACTORS
from stepladder.records.profile import Gradient

_DRAWS: Final = 200_000
_MOST_STEPS: Final = 400
"""Simulated steps times devices, and simulated steps."""
_UPDATES: Final = 40
_MOST_UPDATES: Final = 40_000
"""Simulated updates by a worker, and by all."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A training in a place, with how its step fits there, and how fast a device is."""

    job: PlannedJob
    place: Place
    fit: Fit
    speed: Range

    def alone_s(self) -> float:
        """Return the seconds of a pass of one device by itself, with the update."""
        job, fit = self.job, self.fit
        pass_s = job.fixed_s.likely + job.per_example_s.likely * fit.micro_batch
        return (self._again * pass_s + job.update_s / fit.accumulation) / self.speed.likely

    def step_s(self) -> float:
        """Return the seconds of a step, in the likely case."""
        return sum(self.parts(self.place.group(Case.LIKELY), Case.LIKELY).values())

    def parts(self, group: Group, case: Case) -> Mapping[str, float]:
        """Return the seconds of a step by part."""
        inputs = self._inputs(group, case)
        if self.place.all_reduce == ASYNCHRONOUS and self.place.num > 1:
            return self._asynchronous_parts(inputs, group)
        found = self._synchronous_parts(inputs)
        if self.fit.kind is Kind.SHARDED:
            return {**found, "communication": self._sharded_s(inputs, found, group)}
        if self.fit.kind in (Kind.TENSOR, Kind.PIPELINE):
            compute, sent = self._shared_parts(inputs, group)
            return {**found, "compute": compute, "communication": found["communication"] + sent}
        return found

    def age(self) -> float | None:
        """Return by how many updates gradients are old, on average; None: they never are."""
        if self.place.all_reduce != ASYNCHRONOUS or self.place.num < 2:
            return None
        group = self.place.group(Case.LIKELY)
        return self._throughput(self._inputs(group, Case.LIKELY), group).mean_age

    def network_steps_s(self) -> tuple[float, ...]:
        """Return the seconds of a step with slower and faster networks."""
        group = self.place.group(Case.LIKELY)
        found = []
        for factor in NETWORK_FACTORS:
            network, slow = (
                None if link is None else slowed(link, 1 / factor)
                for link in (group.network, group.slow)
            )
            parts = self.parts(replace(group, network=network, slow=slow), Case.LIKELY)
            found.append(sum(parts.values()))
        return tuple(found)

    @property
    def _again(self) -> float:
        """Times of a pass: with checkpointing, the forward pass runs twice."""
        return 2 - self.job.backward_frac if self.fit.is_checkpointed else 1.0

    @property
    def _copies(self) -> int:
        """Copies of the model that exchange gradients."""
        return self.place.num // self.fit.shared

    def _inputs(self, group: Group, case: Case) -> StepInputs:
        job, place, fit, faster = self.job, self.place, self.fit, self.speed.at(case)
        gradients = job.gradients
        if fit.kind in (Kind.TENSOR, Kind.PIPELINE):  # a device has its part of them
            gradients = tuple(
                Gradient(num_bytes=one.num_bytes // fit.shared, ready_frac=one.ready_frac)
                for one in (gradients if self._copies > 1 else ())
            )
        return StepInputs(
            fixed_s=self._again * job.fixed_s.at(case) / faster,
            per_example_s=self._again * job.per_example_s.at(case) / faster,
            backward_frac=job.backward_frac,
            update_s=job.update_s / faster,
            gradients=gradients,
            all_reduce=self._exchange(group),
            num_devices=place.num,
            local_devices=place.devices,
            micro_batch=fit.micro_batch,
            accumulation=fit.accumulation,
            spread_frac=job.spread.at(case),
            hides=job.device == "cuda" or place.machine.gpu is not None,
            loader_example_s=job.loader_example_s,
            driver=place.driver,
        )

    def _exchange(self, group: Group) -> Callable[[float], float]:
        """Return the seconds in which gradients are added up, by their bytes."""
        name = self.place.all_reduce
        if self.fit.kind is Kind.SHARDED:  # gradients are scattered: half of an all-reduce
            return lambda num_bytes: all_reduce_s("native", group, num_bytes) / 2
        if self.fit.kind is not Kind.DATA:
            across = _across(group)  # all devices of a host send their parts at once
            return lambda num_bytes: all_reduce_s("native", across, num_bytes)
        named = "parameter_server" if name in SERVED else name
        return lambda num_bytes: all_reduce_s(named, group, num_bytes)

    def _synchronous_parts(self, inputs: StepInputs) -> Mapping[str, float]:
        """Return the parts of a step that ends with its slowest device, or without some of them."""
        place = self.place
        if place.num < 2 or (place.slow_device == 1 and not place.num_backups):
            return step_time(inputs).parts
        found = step_time(replace(inputs, spread_frac=0.0, loader_example_s=0.0)).parts
        slow = np.ones(place.num)
        slow[-1] = place.slow_device
        times = simulate_steps(
            replace(inputs, loader_example_s=0.0),
            num_steps=max(10, min(_MOST_STEPS, _DRAWS // place.num)),
            devices=Devices(slow=slow, num_backups=place.num_backups),
        )
        mean_s = float(times.mean())
        late_s = mean_s - sum(found.values())
        local = inputs.micro_batch * inputs.accumulation * inputs.local_devices
        return {
            **found,
            "compute": found["compute"] + min(0.0, late_s),  # without the slowest, less than a mean
            "stragglers": max(0.0, late_s),
            "data": max(0.0, local * inputs.loader_example_s - mean_s),
        }

    def _asynchronous_parts(self, inputs: StepInputs, group: Group) -> Mapping[str, float]:
        """Return the parts of the time in which workers apply as many gradients as there are."""
        num = self.place.num
        workers = self._workers(inputs, group)
        step_s = num / self._throughput(inputs, group).updates_per_s
        computed_s = inputs.accumulation * inputs.pass_s
        rates = (1 / (computed_s * dict(workers.slow).get(idx, 1.0)) for idx in range(num))
        late_s = num / sum(rates) - computed_s
        local = inputs.micro_batch * inputs.accumulation * inputs.local_devices
        return {
            "compute": computed_s,
            "communication": max(0.0, step_s - computed_s - late_s),
            "stragglers": late_s,
            "driver": 0.0,
            "data": max(0.0, local * inputs.loader_example_s - step_s),
        }

    def _throughput(self, inputs: StepInputs, group: Group) -> Throughput:
        num = self.place.num
        updates = min(_MOST_UPDATES, _UPDATES * num)
        return _simulated(self._workers(inputs, group), max(updates, 3 * num))

    def _workers(self, inputs: StepInputs, group: Group) -> Workers:
        """Return the workers; all gradients go through the connection of the server."""
        num_bytes = self.job.num_bytes
        link = required(group.network if group.hosts > 1 else group.inside)
        byte_s = link.beta_s + link.gamma_s
        computed_s = inputs.accumulation * inputs.pass_s
        factor = self.place.slow_device
        if group.slow is not None and group.hosts > 1:  # it sends gradients, and gets weights
            factor += 2 * num_bytes * (group.slow.beta_s - link.beta_s) / computed_s
        return Workers(
            num=self.place.num,
            step_s=computed_s,
            spread_frac=inputs.spread_frac,
            slow=((self.place.num - 1, factor),) if factor != 1 else (),
            message_s=link.alpha_s + num_bytes * link.beta_s / 2,
            server_s=num_bytes * byte_s + inputs.update_s,
        )

    def _sharded_s(self, inputs: StepInputs, found: Mapping[str, float], group: Group) -> float:
        """Return what messages of a sharded step make it longer.

        Weights are fetched in each pass, before the forward and the backward pass: two halves of an
        all-reduce; gradients are scattered once. All travel while others are computed.
        """
        weights = self.job.num_bytes if self.job.size is None else self.job.size.weights
        fetched_s = inputs.accumulation * all_reduce_s("native", group, weights)
        scattered_s = all_reduce_s("native", group, self.job.num_bytes) / 2
        return max(found["communication"], fetched_s + scattered_s - found["compute"])

    def _shared_parts(self, inputs: StepInputs, whole: Group) -> tuple[float, float]:
        """Return the seconds of compute and messages of devices that compute the same examples."""
        size, num, accumulation = self.job.size, self.fit.shared, self.fit.accumulation
        assert size is not None
        is_inside = num < whole.num
        group = replace(whole, hosts=1, network=None, slow=None) if is_inside else whole
        examples = self.fit.micro_batch * num
        if self.fit.kind is Kind.TENSOR:  # each device starts all kernels
            busy_s = accumulation * (inputs.fixed_s + inputs.per_example_s * examples / num)
            sums = max(1, size.num_sums)
            sent_s = tensor_parallel_s(group, size.summed * examples / sums, num_sums=sums)
            whole_s = busy_s + accumulation * sent_s
        else:
            parts = PARTS_OF_A_STAGE * num
            computed_s = accumulation * (parts * inputs.fixed_s + inputs.per_example_s * examples)
            busy_s = computed_s / num
            link = required(group.network if group.hosts > 1 else group.inside)
            whole_s = pipeline_s(
                computed_s,
                num_stages=num,
                num_parts=parts,
                cut_bytes=(size.cut or 0) * examples / parts,
                link=link,
            )
        return busy_s + inputs.update_s / num, whole_s - busy_s


@lru_cache(maxsize=1024)
def _simulated(workers: Workers, num_updates: int) -> Throughput:
    return simulate_workers(workers, num_updates=num_updates)


def _across(group: Group) -> Group:
    """Return one device of each host, whose bytes share the host's network cards."""
    sharing = max(1.0, group.devices / group.cards)
    network, slow = (
        None if link is None else slowed(link, sharing) for link in (group.network, group.slow)
    )
    return Group(hosts=group.hosts, devices=1, inside=None, network=network, slow=slow)

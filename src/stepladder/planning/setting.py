"""A training in a place: how long a step takes there, part by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from stepladder.parallel.divided.choice import PARTS_OF_A_STAGE, SHARE_EXAMPLES, Kind
from stepladder.planning.costs.all_reduce import Group, all_reduce_s, required, slowed
from stepladder.planning.costs.divided import pipeline_s, tensor_parallel_s
from stepladder.planning.hardware.ranges import Case, Range
from stepladder.planning.job import PlannedJob
from stepladder.planning.memory import Fit
from stepladder.planning.place import Place
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
        if self.fit.kind in SHARE_EXAMPLES:
            return self._shared_parts(inputs, group)
        if self.place.is_asynchronous:
            return self._asynchronous_parts(inputs, group)
        found = self._synchronous_parts(inputs)
        return self._sharded_parts(inputs, found, group) if self.fit.kind is Kind.SHARDED else found

    def age(self) -> float | None:
        """Return by how many updates gradients are old, on average; None: they never are."""
        if not self.place.is_asynchronous:
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
        own = float(fit.micro_batch)
        if fit.kind in SHARE_EXAMPLES:  # a device has its part of weights and work
            own /= fit.shared
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
            micro_batch=own,
            accumulation=fit.accumulation,
            spread_frac=job.spread.at(case),
            hides=job.device == "cuda" or place.machine.gpu is not None,
            loader_example_s=job.loader_example_s,
            driver=place.driver,
        )

    def _exchange(self, group: Group) -> Callable[[float], float]:
        """Return the seconds in which gradients are added up, by their bytes."""
        place, name = self.place, self.place.all_reduce
        if self.fit.kind is not Kind.DATA:
            across = group if self.fit.kind is Kind.SHARDED else self._across(group)
            return lambda num_bytes: all_reduce_s("native", across, num_bytes)
        if place.num_backups:
            slow = None if place.num_backups >= place.devices else group.slow
            share = (place.num - place.num_backups - 1) / (place.num - 1)
            served = replace(group, slow=slow)
            return lambda num_bytes: share * all_reduce_s("parameter_server", served, num_bytes)
        return lambda num_bytes: all_reduce_s(name, group, num_bytes)

    def _within(self, whole: Group) -> Group:
        """Return the devices that have one copy of the model together."""
        if self.fit.shared == whole.num:
            return whole
        if whole.devices > 1:
            return replace(whole, hosts=1, devices=self.fit.shared, network=None, slow=None)
        return replace(whole, hosts=self.fit.shared)

    def _across(self, whole: Group) -> Group:
        """Return the copies of one device's part; the parts share the network cards of a host."""
        shared = self.fit.shared
        if shared == whole.num or whole.devices == 1:
            return replace(whole, hosts=max(1, whole.hosts // shared), devices=1)
        sharing = max(1.0, shared / whole.cards)
        network, slow = (
            None if link is None else slowed(link, sharing) for link in (whole.network, whole.slow)
        )
        return replace(whole, devices=whole.devices // shared, network=network, slow=slow, cards=1)

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
        step_s = num / self._throughput(inputs, group).updates_per_s
        computed_s = inputs.accumulation * inputs.pass_s
        rate = (num - 1 + 1 / self.place.slow_device) / computed_s
        late_s = num / rate - computed_s
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
        slow = {self.place.num - 1: self.place.slow_device}
        if group.slow is not None and group.hosts > 1:  # its devices share its cards
            sharing = max(1.0, group.devices / group.cards)
            more = num_bytes * (sharing * group.slow.beta_s - link.beta_s) / computed_s
            for idx in range(self.place.num - group.devices, self.place.num):
                slow[idx] = slow.get(idx, 1.0) + max(0.0, more)
        return Workers(
            num=self.place.num,
            step_s=computed_s,
            spread_frac=inputs.spread_frac,
            slow=tuple(slow.items()),
            message_s=link.alpha_s + num_bytes * link.beta_s / 2,
            server_s=num_bytes * byte_s + inputs.update_s,
        )

    def _sharded_parts(
        self, inputs: StepInputs, found: Mapping[str, float], group: Group
    ) -> Mapping[str, float]:
        """Return the parts of a step with a sharded model.

        Weights are fetched before the forward and before the backward pass, each time half of an
        all-reduce; gradients are scattered once, the other half of one. What is sent in a pass is
        hidden behind that pass: in the last backward pass as much as copies send, which `found`
        has. A device updates its part of the weights.
        """
        weights = self.job.num_bytes if self.job.size is None else self.job.size.weights
        fetch_s = all_reduce_s("native", group, weights) / 2
        backward_s = inputs.backward_frac * inputs.pass_s if inputs.hides else 0.0
        forward_s = inputs.pass_s - backward_s if inputs.hides else 0.0
        more_s = inputs.accumulation * max(0.0, fetch_s - forward_s)
        more_s += (inputs.accumulation - 1) * max(0.0, fetch_s - backward_s)
        return {
            **found,
            "compute": found["compute"] - inputs.update_s * (1 - 1 / self.place.num),
            "communication": found["communication"] + more_s,
        }

    def _shared_parts(self, inputs: StepInputs, whole: Group) -> Mapping[str, float]:
        """Return the parts of a step of devices that compute the same examples.

        All of them wait for a slow one, as each has a part of every example's layers.
        """
        size, num, accumulation = self.job.size, self.fit.shared, self.fit.accumulation
        assert size is not None
        group, examples = self._within(whole), self.fit.micro_batch
        found = step_time(inputs).parts
        bubble_s = 0.0
        if self.fit.kind is Kind.TENSOR:  # each device starts all kernels
            busy_s = accumulation * (inputs.fixed_s + inputs.per_example_s * examples / num)
            sums = max(1, size.num_sums)
            sent_s = tensor_parallel_s(group, size.summed * examples / sums, num_sums=sums)
        else:
            parts = min(PARTS_OF_A_STAGE * num, examples)
            pass_s = parts * inputs.fixed_s + inputs.per_example_s * examples
            busy_s = accumulation * pass_s / num
            bubble_s = busy_s * (num - 1) / parts
            link = required(group.network if group.hosts > 1 else group.inside)
            pipe_s = pipeline_s(
                pass_s,
                num_stages=num,
                num_parts=parts,
                cut_bytes=(size.cut or 0) * examples / parts,
                link=link if group.slow is None else group.slow,
            )
            sent_s = pipe_s - (busy_s + bubble_s) / accumulation
        slower = self.place.slow_device - 1
        return {
            **found,
            "compute": busy_s + inputs.update_s / num,
            "communication": found["communication"] + accumulation * sent_s,
            "stragglers": found["stragglers"] + slower * (busy_s + bubble_s),
            "bubble": bubble_s,
        }


@lru_cache(maxsize=1024)
def _simulated(workers: Workers, num_updates: int) -> Throughput:
    return simulate_workers(workers, num_updates=num_updates)

"""Predict one training on some machines: its time, its price, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from stepladder.config.choices import Precision
from stepladder.parallel.divided.choice import PARTS_OF_A_STAGE, Kind
from stepladder.planning.costs.all_reduce import Group, all_reduce_s, slowed
from stepladder.planning.costs.divided import pipeline_s, tensor_parallel_s
from stepladder.planning.hardware.gpus import Gpu, price_per_hour
from stepladder.planning.hardware.machines import Machine
from stepladder.planning.hardware.ranges import Case, Range
from stepladder.planning.hardware.speed import has_no_bf16, precision_gain, speed_of
from stepladder.planning.job import PlannedJob
from stepladder.planning.memory import Fit, fit_of, largest_batch, missing_words
from stepladder.planning.simulation.failures import Failures, best_interval_s, expected_s
from stepladder.planning.step.step import Driver, StepInputs, step_time
from stepladder.planning.target import more_examples, scaled_lr
from stepladder.records.plan import NETWORK_FACTORS, Bounds, PlanPoint
from stepladder.training.output.wording import rough_time

_HOUR_S: Final = 3600.0
_NAMED: Final = 0.05
"""Share of a step from which a part is named as a limit."""
_BESIDE: Final = 0.2
"""Share of a training from which the work beside its steps is named."""
_SAVE_S: Final = 20.0
_RESTART_S: Final = 300.0
"""Of a checkpoint, and until another machine trains in the place of a lost one; assumed."""
_WORDS: Final = {
    "communication": "communication",
    "stragglers": "waiting for the slowest device",
    "driver": "the driver",
    "data": "waiting for data",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Machines, and how they train together.

    Attributes:
        machine: of which kind; hosts, devices: how many, and devices in use of each.
        batch: examples of a step on all devices.
        all_reduce: name, as in `costs.all_reduce`.
        gpus: the user's list with prices.
        driver: of single-process replication; None: a process for each device.
        precision: of the arithmetic.
        interrupted_every_s: mean seconds after which a machine fails or is taken away; None: never.
    """

    machine: Machine
    hosts: int
    devices: int
    batch: int
    all_reduce: str
    gpus: tuple[Gpu, ...] = ()
    driver: Driver | None = None
    precision: Precision = Precision.FP32
    interrupted_every_s: float | None = None

    @property
    def num(self) -> int:
        """Number of devices in total."""
        return self.hosts * self.devices

    def speed(self, job: PlannedJob) -> Range | None:
        """Return how many times as fast a device computes as that of the measurement."""
        gpu = self.machine.gpu
        gain = precision_gain(job.rates, gpu, measured=job.precision, asked=self.precision)
        device = speed_of(job.rates, gpu, job.precision)
        if gain is None or device is None:
            return None
        rest = replace(device, provenance=max(gain, device, key=_width).provenance)
        return replace(
            rest,
            best=device.best * gain.best,
            likely=device.likely * gain.likely,
            worst=device.worst * gain.worst,
            source=device.source if gain.likely == 1 else f"{device.source}; {gain.source}",
        )

    def group(self, case: Case) -> Group:
        """Return the devices with the cost of their messages."""
        inside = self.machine.inside
        return Group(
            hosts=self.hosts,
            devices=self.devices,
            inside=None if inside is None else inside.link(case),
            network=self.machine.network.link(case),
            cards=self.machine.cards,
        )


def why_not(job: PlannedJob, place: Place) -> str | None:
    """Return why a training is not possible there, with what would make it so; None: it is."""
    where = place_words(place.machine.name, place.hosts, place.devices)
    if place.batch < place.num:
        return (
            f"{where}: batch {place.batch} leaves less than one example for each of {place.num} "
            f"devices; --batch {place.num} or more"
        )
    if place.batch > job.num_train:
        return (
            f"{where}: batch {place.batch:,} is more than the {job.num_train:,} examples of an "
            f"epoch; --batch {job.num_train} or less"
        )
    unknown = _why_no_speed(job, place) or _why_no_end(job, place)
    if unknown is not None:
        return f"{where}: {unknown}"
    limit = memory_limit(job, place.machine)
    own = math.ceil(place.batch / place.num)
    if limit is not None and fit_of(job, own=own, devices=place.num, limit=limit) is None:
        return f"{where}: a step {missing_words(job, devices=place.num, limit=limit)}"
    return None


def _why_no_speed(job: PlannedJob, place: Place) -> str | None:
    if has_no_bf16(place.machine.gpu, place.precision):
        return "it has no arithmetic in bf16; --precision fp16"
    if place.speed(job) is not None:
        return None
    if job.precision is not place.precision:
        return (
            f"what {place.precision} gives cannot be predicted from steps in {job.precision}; "
            "leave out --precision"
        )
    return (
        f"the speed of {job.device_name} is not known, so that of another device cannot be "
        "predicted; --machines this plans for more of the same"
    )


def _why_no_end(job: PlannedJob, place: Place) -> str | None:
    """Return why interruptions leave no time to train."""
    failures = _failures(job, place)
    if failures is None or failures.rate_per_s * (failures.save_s + failures.restart_s) < 1:
        return None
    return (
        f"one of {place.hosts:,} machines is lost every {rough_time(1 / failures.rate_per_s)}, "
        "sooner than another has started; fewer --hosts, or a longer --interrupted-every"
    )


def memory_limit(job: PlannedJob, machine: Machine) -> float | None:
    """Return the bytes of a machine's device; None: not known."""
    return job.memory_bytes if machine.gpu is None else machine.gpu.memory_bytes


def outlook(job: PlannedJob, place: Place) -> PlanPoint:
    """Return the predicted training; `why_not` has returned None."""
    own = math.ceil(place.batch / place.num)
    limit = memory_limit(job, place.machine)
    fit = fit_of(job, own=own, devices=place.num, limit=limit)
    speed = place.speed(job)
    assert fit is not None
    assert speed is not None
    setting = _Setting(job=job, place=place, fit=fit, speed=speed)
    parts = {case: setting.parts(place.group(case), case) for case in Case}
    steps = {case: sum(parts[case].values()) for case in Case}
    num_steps = max(1.0, job.num_train / place.batch)
    more = more_examples(place.batch, job.batch, job.noise_scale)
    beside_s = {case: _beside_s(job, place, speed.at(case), more) for case in Case}
    totals = {
        case: _with_interruptions(
            _epochs(job, case) * more * num_steps * steps[case] + beside_s[case], job, place
        )
        for case in Case
    }
    price = _price(job, place)
    alone_s = setting.alone_s()
    likely = steps[Case.LIKELY]
    per_s = place.batch / likely
    point = PlanPoint(
        machine=place.machine.name,
        hosts=place.hosts,
        devices=place.devices,
        batch=place.batch,
        micro_batch=fit.micro_batch,
        accumulation=fit.accumulation,
        all_reduce=place.all_reduce if place.num > 1 and fit.kind is Kind.DATA else "",
        precision=str(place.precision),
        kind=f"{fit.kind}, checkpointed" if fit.is_checkpointed else str(fit.kind),
        step_s=_bounds(steps),
        epoch_s=_bounds({case: num_steps * seconds for case, seconds in steps.items()}),
        total_s=_bounds(totals),
        epochs=_bounds({case: more * _epochs(job, case) for case in Case}),
        more_examples_frac=more - 1,
        parts_s=parts[Case.LIKELY],
        examples_per_s=per_s,
        efficiency=per_s / place.num * alone_s / fit.micro_batch,
        cost=None
        if price is None
        else _bounds({case: price * seconds / _HOUR_S for case, seconds in totals.items()}),
        memory_bytes=fit.num_bytes,
        memory_limit_bytes=limit,
        network_steps_s=setting.network_steps_s(),
        beside_s=beside_s[Case.LIKELY],
        paid_devices=place.hosts * place.machine.devices,
        lr_factor=(
            scaled_lr(place.batch, job.batch, is_adaptive=False, noise_scale=job.noise_scale),
            scaled_lr(place.batch, job.batch, is_adaptive=True, noise_scale=job.noise_scale),
        ),
        largest_micro_batch=largest_batch(job, limit),
    )
    return replace(point, limit=limit_words(point))


def _width(value: Range) -> float:
    return value.best / value.worst


@dataclass(frozen=True, kw_only=True)
class _Setting:
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

    @property
    def _again(self) -> float:
        """Times of a pass: with checkpointing, the forward pass runs twice."""
        return 2 - self.job.backward_frac if self.fit.is_checkpointed else 1.0

    def parts(self, group: Group, case: Case) -> Mapping[str, float]:
        """Return the seconds of a step by part."""
        job, place, fit, faster = self.job, self.place, self.fit, self.speed.at(case)
        shares = fit.kind in (Kind.TENSOR, Kind.PIPELINE)
        inputs = StepInputs(
            fixed_s=self._again * job.fixed_s.at(case) / faster,
            per_example_s=self._again * job.per_example_s.at(case) / faster,
            backward_frac=job.backward_frac,
            update_s=job.update_s / faster,
            gradients=() if shares else job.gradients,
            all_reduce=_exchange(place, fit.kind, group),
            num_devices=place.num,
            local_devices=place.devices,
            micro_batch=fit.micro_batch,
            accumulation=fit.accumulation,
            spread_frac=job.spread.at(case),
            hides=job.device == "cuda" or place.machine.gpu is not None,
            loader_example_s=job.loader_example_s,
            driver=place.driver,
        )
        found = step_time(inputs).parts
        if fit.kind is Kind.SHARDED:
            return {**found, "communication": self._sharded_s(inputs, found, group)}
        return {**found, **self._shared_parts(inputs, group)} if shares else found

    def _sharded_s(self, inputs: StepInputs, found: Mapping[str, float], group: Group) -> float:
        """Return what messages of a sharded step make it longer.

        Weights are fetched in each pass, before the forward and the backward pass: two halves of an
        all-reduce; gradients are scattered once. All travel while others are computed.
        """
        weights = self.job.num_bytes if self.job.size is None else self.job.size.weights
        fetched_s = inputs.accumulation * all_reduce_s("native", group, weights)
        scattered_s = all_reduce_s("native", group, self.job.num_bytes) / 2
        return max(found["communication"], fetched_s + scattered_s - found["compute"])

    def _shared_parts(self, inputs: StepInputs, group: Group) -> dict[str, float]:
        """Return compute and communication of devices that compute the same examples."""
        size, num, accumulation = self.job.size, self.place.num, self.fit.accumulation
        assert size is not None
        examples = self.place.batch / accumulation
        if self.fit.kind is Kind.TENSOR:  # each device starts all kernels
            busy_s = accumulation * (inputs.fixed_s + inputs.per_example_s * examples / num)
            sums = max(1, size.num_sums)
            sent_s = tensor_parallel_s(group, size.summed * examples / sums, num_sums=sums)
            whole_s = busy_s + accumulation * sent_s
        else:
            parts = PARTS_OF_A_STAGE * num
            computed_s = accumulation * (parts * inputs.fixed_s + inputs.per_example_s * examples)
            busy_s = computed_s / num
            link = group.network if self.place.hosts > 1 else group.inside
            assert link is not None
            whole_s = pipeline_s(
                computed_s,
                num_stages=num,
                num_parts=parts,
                cut_bytes=(size.cut or 0) * examples / parts,
                link=link,
            )
        return {"compute": busy_s + inputs.update_s / num, "communication": whole_s - busy_s}

    def network_steps_s(self) -> tuple[float, ...]:
        """Return the seconds of a step with slower and faster networks."""
        group = self.place.group(Case.LIKELY)
        found = []
        for factor in NETWORK_FACTORS:
            network = None if group.network is None else slowed(group.network, 1 / factor)
            parts = self.parts(replace(group, network=network), Case.LIKELY)
            found.append(sum(parts.values()))
        return tuple(found)


def _exchange(place: Place, kind: Kind, group: Group) -> Callable[[float], float]:
    if kind is Kind.SHARDED:  # gradients are scattered: half of an all-reduce
        return lambda num_bytes: all_reduce_s("native", group, num_bytes) / 2
    return lambda num_bytes: all_reduce_s(place.all_reduce, group, num_bytes)


def _beside_s(job: PlannedJob, place: Place, faster: float, more: float) -> float:
    """Return the seconds of a training beside its steps."""
    start_s = job.start_s if place.num > 1 else 0.0
    validation_s = more * job.validation_s / place.num / faster
    return job.once_s + more * job.checkpoint_s + validation_s + start_s


def _with_interruptions(total_s: float, job: PlannedJob, place: Place) -> float:
    """Return the expected seconds of a training whose machines fail or are taken away."""
    failures = _failures(job, place)
    if failures is None:
        return total_s
    interval_s = min(total_s, best_interval_s(failures))
    return expected_s(total_s, replace(failures, checkpoint_s=max(interval_s, _SAVE_S)))


def _failures(job: PlannedJob, place: Place) -> Failures | None:
    if place.interrupted_every_s is None:
        return None
    return Failures(
        every_s=place.interrupted_every_s,
        machines=place.hosts,
        save_s=_SAVE_S,
        restart_s=_RESTART_S + job.start_s,
    )


def _epochs(job: PlannedJob, case: Case) -> float:
    return float(getattr(job.epochs, case.value))


def _price(job: PlannedJob, place: Place) -> float | None:
    gpu = place.machine.gpu
    name = gpu.name if gpu is not None else _own_name(job)
    devices = place.machine.devices  # a machine is paid for as a whole
    return price_per_hour(place.gpus, name, machines=place.hosts, devices=devices)


def _own_name(job: PlannedJob) -> str:
    return job.device_name if job.device == "cuda" else job.device


def _bounds(values: Mapping[Case, float]) -> Bounds:
    ends = sorted(values.values())  # a larger batch may turn the best case into the worst
    return Bounds(best=ends[0], likely=values[Case.LIKELY], worst=ends[-1])


def limit_words(point: PlanPoint) -> str:
    """Return what limits a training: `512 nodes × 2: 94 % of the step is communication`."""
    step_s = sum(point.parts_s.values())
    losses = {name: point.parts_s[name] / step_s for name in _WORDS if name in point.parts_s}
    name = max(losses, key=losses.__getitem__)
    where = place_words("", point.hosts, point.devices)
    if losses[name] < _NAMED:
        words = f"{100 * point.parts_s['compute'] / step_s:.0f} % of the step is compute"
    else:
        words = f"{100 * losses[name]:.0f} % of the step is {_WORDS[name]}"
    share = point.beside_s / max(point.total_s.likely, 1e-12)
    if share > _BESIDE:
        words += f"; {100 * share:.0f} % of the time is beside the steps"
    if point.accumulation > 1:
        words += f"; memory: {point.accumulation} passes of {point.micro_batch} a device"
    return f"{where}: {words}"


def place_words(machine: str, hosts: int, devices: int) -> str:
    """Return `8 × p3.2xlarge`, or `4 nodes × 2` without a name."""
    if machine:
        return f"{hosts} × {machine}" + (f" with {devices} device{'s' if devices > 1 else ''}")
    return f"{hosts} node{'s' if hosts > 1 else ''} × {devices}"

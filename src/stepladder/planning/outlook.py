"""Predict one training on some machines: its time, its price, and what limits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from stepladder.parallel.divided.choice import SHARE_EXAMPLES, Kind
from stepladder.planning.hardware.gpus import GPUS, OLDER_GPUS, gpu_named, price_per_hour
from stepladder.planning.hardware.machines import Machine
from stepladder.planning.hardware.ranges import Case
from stepladder.planning.hardware.speed import has_no_bf16
from stepladder.planning.job import PlannedJob
from stepladder.planning.memory import Fit, fits_of, largest_batch, missing_words
from stepladder.planning.place import SERVED, Place, place_words
from stepladder.planning.setting import Setting
from stepladder.planning.simulation.failures import Failures, best_interval_s, expected_s
from stepladder.planning.target import more_examples, scaled_lr
from stepladder.records.plan import Bounds, PlanPoint
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
    "bubble": "waiting for other stages",
}


def why_not(job: PlannedJob, place: Place) -> str | None:
    """Return why a training is not possible there, with what would make it so; None: it is."""
    where = place_words(place.machine.name, place.hosts, place.devices)
    shares = bool(place.kinds) and all(kind in SHARE_EXAMPLES for kind in place.kinds)
    if place.batch < place.num and not shares:
        return (
            f"{where}: batch {place.batch} leaves less than one example for each of {place.num} "
            f"devices; --batch {place.num} or more"
        )
    if place.batch > job.num_train:
        return (
            f"{where}: batch {place.batch:,} is more than the {job.num_train:,} examples of an "
            f"epoch; --batch {job.num_train} or less"
        )
    reasons = (why(job, place) for why in (_why_no_speed, _why_no_end, _why_no_fit))
    reason = next((reason for reason in reasons if reason is not None), None)
    return None if reason is None else f"{where}: {reason}"


def _why_no_speed(job: PlannedJob, place: Place) -> str | None:
    gpu = place.machine.gpu or gpu_named((*GPUS, *OLDER_GPUS), job.device_name)
    if has_no_bf16(gpu, place.precision) and place.precision is not job.precision:
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


def _why_no_fit(job: PlannedJob, place: Place) -> str | None:
    """Return why a step does not fit, or is not possible with what was asked for."""
    is_served = place.all_reduce in SERVED
    is_divided = any(kind is not Kind.DATA for kind in place.kinds)
    if is_divided and is_served:
        return f"{place.all_reduce} workers have copies of the model; --parallelism data"
    if is_divided and job.size is None:
        return (
            "how the model can be divided is not known (in YAML: state_mb and activation_mb); "
            "leave out --parallelism"
        )
    if fits(job, place):
        return None
    words = missing_words(
        job,
        devices=place.num,
        limit=memory_limit(job, place.machine),
        local=place.devices,
        kinds=_kinds(place),
        remedy=f"leave out {place.all_reduce}" if is_served else "leave out --parallelism",
    )
    return f"a step {words}"


def _kinds(place: Place) -> tuple[Kind, ...]:
    """Return the kinds that were asked for; workers with a server have copies of the model."""
    return (Kind.DATA,) if place.all_reduce in SERVED else place.kinds or tuple(Kind)


def fits(job: PlannedJob, place: Place) -> list[Fit]:
    """Return the ways in which a step fits there: with copies of the model, if these do."""
    found = fits_of(
        job,
        batch=place.batch,
        own=place.own,
        devices=place.num,
        limit=memory_limit(job, place.machine),
        local=place.devices,
        kinds=_kinds(place),
    )
    copies = [fit for fit in found if fit.kind is Kind.DATA]
    return copies or found


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
    limit = memory_limit(job, place.machine)
    speed = place.speed(job)
    assert speed is not None
    ways = [Setting(job=job, place=place, fit=fit, speed=speed) for fit in fits(job, place)]
    setting = ways[0] if len(ways) == 1 else min(ways, key=Setting.step_s)
    fit = setting.fit
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
        kind=_kind_words(fit, place),
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
        largest_micro_batch=largest_batch(job, limit, fit),
        mean_age=setting.age(),
    )
    return replace(point, limit=limit_words(point))


def _kind_words(fit: Fit, place: Place) -> str:
    """Return how the devices share the work: `tensor parallel on 8, data parallel on 4`."""
    words = str(fit.kind)
    if fit.kind in SHARE_EXAMPLES and fit.shared < place.num:
        words += f" on {fit.shared}, {Kind.DATA} on {place.num // fit.shared}"
    return f"{words}, checkpointed" if fit.is_checkpointed else words


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
    if point.mean_age is not None:
        age = max(1, round(point.mean_age))
        words += f"; gradients are {age:,} update{'s' if age > 1 else ''} old"
    if point.accumulation > 1:
        words += f"; memory: {point.accumulation} passes of {point.micro_batch} a device"
    return f"{where}: {words}"

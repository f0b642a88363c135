"""Search machines, batches and ways of adding up gradients, and recommend one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stepladder.config.choices import Precision
from stepladder.errors import UsageError
from stepladder.planning.costs.all_reduce import ALL_REDUCES
from stepladder.planning.hardware.gpus import Gpu
from stepladder.planning.hardware.machines import THIS, Machine
from stepladder.planning.hardware.ranges import Range
from stepladder.planning.job import PlannedJob, range_input
from stepladder.planning.outlook import Place, outlook, place_words, why_not
from stepladder.planning.step.step import Driver
from stepladder.records.plan import Bounds, Plan, PlanInput, PlanPoint
from stepladder.records.profile import Provenance
from stepladder.training.output.wording import rough_time

HOSTS: Final = (1, 2, 4, 8, 16)
_GIGA: Final = 1e9
_HOUR_S: Final = 3600.0
_BITS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        machines, hosts: kinds of machines, and numbers of them.
        batches: examples of a step over all devices; empty: that of the job.
        all_reduces: names of ways of adding up gradients.
        precision: of the arithmetic; None: that of the measurement.
        interrupted_every_s: mean seconds after which a machine fails or is taken away; None: never.
        deadline_s, budget: upper limits; None: none.
        gpus: the user's list with prices.
        driver: of single-process replication; None: a process for each device.
    """

    machines: tuple[Machine, ...]
    hosts: tuple[int, ...] = HOSTS
    batches: tuple[int, ...] = ()
    all_reduces: tuple[str, ...] = ("native",)
    precision: Precision | None = None
    interrupted_every_s: float | None = None
    deadline_s: float | None = None
    budget: float | None = None
    gpus: tuple[Gpu, ...] = ()
    driver: Driver | None = None


def plan(job: PlannedJob, question: Question) -> Plan:
    """Return all trainings that are possible, the best ones marked, and a recommendation.

    Raises:
        UsageError: if an all-reduce has no formula, or nothing is possible.
    """
    unknown = next((one for one in question.all_reduces if one not in ALL_REDUCES), None)
    if unknown is not None:
        raise UsageError(
            f"there is no all-reduce named {unknown!r}",
            where="--all-reduce",
            fix=f"Type one of: {', '.join(ALL_REDUCES)}.",
        )
    points, refused = [], []
    for place in _places(job, question):
        reason = why_not(job, place)
        if reason is not None:
            refused.append(reason)
        else:
            point = outlook(job, place)
            is_own = bool(point.all_reduce) or place.num == 1
            if is_own or place.all_reduce == question.all_reduces[0]:  # a divided model has its own
                points.append(point)
    if not points:
        raise UsageError(
            f"no training is possible: {refused[0] if refused else 'no machine was named'}",
            where="plan",
            fix="Change the option at its end, or name other --machines.",
        )
    marked = _with_knee(_with_best(points))
    return Plan(
        job=job_words(job),
        now=_now(job, question),
        inputs=tuple(_inputs(job, question)),
        points=tuple(marked),
        refused=tuple(dict.fromkeys(refused)),
        answer=answer_words(marked, question),
        notes=tuple(_notes(job, question, marked)),
        deadline_s=question.deadline_s,
        budget=question.budget,
    )


def _places(job: PlannedJob, question: Question) -> Iterable[Place]:
    """Return one host with 1, 2, 4, … devices, and several hosts with all of theirs."""
    for machine in question.machines:
        for hosts in question.hosts:
            all_of = machine.devices
            powers = (1 << power for power in range(all_of.bit_length()))
            counts = sorted({all_of, *(power for power in powers if power < all_of)})
            for devices in counts if hosts == 1 else (all_of,):
                names = question.all_reduces if hosts * devices > 1 else ("",)
                for batch in question.batches or (job.batch,):
                    for name in names:
                        yield Place(
                            machine=machine,
                            hosts=hosts,
                            devices=devices,
                            batch=batch,
                            all_reduce=name,
                            gpus=question.gpus,
                            driver=question.driver,
                            precision=question.precision or job.precision,
                            interrupted_every_s=question.interrupted_every_s,
                        )


def _now(job: PlannedJob, question: Question) -> PlanPoint | None:
    """Return the training as it was measured, on one device."""
    first = question.machines[0]
    own = replace(first, name=THIS, gpu=None, devices=1, inside=None)
    place = Place(
        machine=own,
        hosts=1,
        devices=1,
        batch=job.batch,
        all_reduce="",
        gpus=question.gpus,
        precision=job.precision,
    )
    return outlook(job, place) if why_not(job, place) is None else None


def price_of(point: PlanPoint, *, is_priced: bool) -> float:
    """Return what counts as the price of a training: money, or hours of the devices paid for."""
    if is_priced and point.cost is not None:
        return point.cost.likely
    return point.paid_devices * point.total_s.likely / _HOUR_S


def _is_priced(points: Sequence[PlanPoint]) -> bool:
    return all(point.cost is not None for point in points)


def _with_best(points: Sequence[PlanPoint]) -> list[PlanPoint]:
    """Mark the points than which no other is faster and cheaper: the Pareto front."""
    is_priced = _is_priced(points)
    prices = [price_of(point, is_priced=is_priced) for point in points]
    times = [point.total_s.likely for point in points]
    order = sorted(range(len(points)), key=lambda idx: (times[idx], prices[idx]))
    lowest, best = math.inf, set()
    for idx in order:
        if prices[idx] < lowest * (1 - 1e-9):
            lowest = prices[idx]
            best.add(idx)
    return [replace(point, is_best=idx in best) for idx, point in enumerate(points)]


def _with_knee(points: Sequence[PlanPoint]) -> list[PlanPoint]:
    """Mark the fastest of the best points to which each step from the cheapest one still pays.

    A step pays if it makes the training faster by a larger factor than dearer: with twice the
    devices, if it is at least 1.41 times as fast.
    """
    is_priced = _is_priced(points)
    front = sorted((one for one in points if one.is_best), key=lambda one: -one.total_s.likely)
    knee = front[0]
    for point in front[1:]:
        faster = knee.total_s.likely / point.total_s.likely
        before, after = (price_of(one, is_priced=is_priced) for one in (knee, point))
        if after > before * faster:
            break
        knee = point
    return [replace(one, is_knee=one is knee) for one in points]


def answer_words(points: Sequence[PlanPoint], question: Question) -> str:
    """Return the recommendation in a sentence."""
    is_priced = _is_priced(points)

    def price(point: PlanPoint) -> float:
        return price_of(point, is_priced=is_priced)

    cheapest_first = sorted(points, key=lambda one: (price(one), one.total_s.likely))
    fastest_first = sorted(points, key=lambda one: (one.total_s.likely, price(one)))
    if question.deadline_s is not None:
        return _within_deadline(cheapest_first, fastest_first[0], question.deadline_s)
    if question.budget is not None:
        return _within_budget([one for one in fastest_first if one.cost], question.budget)
    knee = next(one for one in points if one.is_knee)
    if knee.num == 1:
        return f"one device is enough: {point_words(knee)}"
    return f"more devices stop paying at {point_words(knee)}"


def _within_deadline(
    cheapest_first: Sequence[PlanPoint], fastest: PlanPoint, deadline_s: float
) -> str:
    inside = [one for one in cheapest_first if one.total_s.likely <= deadline_s]
    limit = rough_time(deadline_s)
    if not inside:
        return f"nothing ends within {limit}; the fastest is {point_words(fastest)}"
    sure = [one for one in inside if one.total_s.worst <= deadline_s]
    return f"the cheapest within {limit} is {point_words((sure or inside)[0])}"


def _within_budget(priced: Sequence[PlanPoint], budget: float) -> str:
    """Return the fastest training for a price, of those whose price is known, fastest first."""
    if not priced:
        return "no price of these machines is in the list, so a budget decides nothing"
    inside = [one for one in priced if one.cost and one.cost.likely <= budget]
    if inside:
        return f"the fastest for {budget:g} or less is {point_words(inside[0])}"
    least = min(priced, key=lambda one: one.cost.likely if one.cost else math.inf)
    return f"nothing costs {budget:g} or less; the cheapest is {point_words(least)}"


def point_words(point: PlanPoint) -> str:
    """Return a training in words: where, its time and its price."""
    where = place_words(point.machine, point.hosts, point.devices)
    how = f", {point.all_reduce}" if point.all_reduce else ""
    total = point.total_s
    text = f"{where}, batch {point.batch:,}{how}: {rough_time(total.likely)}"
    if total.worst > 1.02 * total.best:
        text += f" ({rough_time(total.best)} to {rough_time(total.worst)})"
    if point.cost is not None:
        text += f", costs {point.cost.likely:,.3g}"
    return f"{text}; {point.limit.partition(': ')[2]}"


def job_words(job: PlannedJob) -> str:
    """Return what is trained, in words."""
    epochs = job.epochs
    number = f"{epochs.likely:.3g}"
    if epochs.worst > epochs.best:
        number += f" ({epochs.best:.3g} to {epochs.worst:.3g})"
    return (
        f"{job.name}: {job.num_train:,} examples, {number} epochs, batches of {job.batch:,}, "
        f"{job.num_bytes / 1e6:,.3g} MB of gradients; measured on {job.device_name}"
    )


def _inputs(job: PlannedJob, question: Question) -> Iterable[PlanInput]:
    yield range_input("fixed time of a step", "ms", job.fixed_s, 1e3)
    yield range_input("time of an example", "ms", job.per_example_s, 1e3)
    yield range_input("spread of a step over devices", "%", job.spread, 100)
    yield from job.inputs
    read = Provenance.READ
    if job.noise_scale is None:
        unknown = Range.exact(0.0, Provenance.ASSUMED, "not known: larger batches waste nothing")
        yield range_input("gradient noise scale", "examples", unknown)
    else:
        known = Range.exact(job.noise_scale, *job.noise_source)
        yield range_input("gradient noise scale", "examples", known)
    for machine in question.machines:
        precision = question.precision or job.precision
        place = Place(
            machine=machine, hosts=1, devices=1, batch=1, all_reduce="", precision=precision
        )
        speed = place.speed(job)
        if speed is not None:
            yield range_input(f"speed of {machine.name}", "×", speed)
        for connection in (machine.inside, machine.network):
            if connection is not None:
                gbit = connection.bytes_per_s * _BITS / _GIGA
                worst, likely, best = (share * gbit for share in connection.achieved)
                exact = connection.fit is not None
                yield PlanInput(
                    name=f"{machine.name}: {connection.name}",
                    unit="Gbit/s",
                    bounds=Bounds(best=gbit, likely=gbit, worst=gbit)
                    if exact
                    else Bounds(best=best, likely=likely, worst=worst),
                    provenance=connection.provenance,
                    source=connection.source,
                )
        yield PlanInput(
            name=f"{machine.name}: devices",
            unit="",
            bounds=Bounds(best=machine.devices, likely=machine.devices, worst=machine.devices),
            provenance=read,
            source=machine.source,
        )


def _notes(job: PlannedJob, question: Question, points: Sequence[PlanPoint]) -> Iterable[str]:
    unpriced = {point.machine for point in points if point.cost is None}
    if unpriced and not question.gpus:
        yield "no prices: --prices FILE.csv adds them (docs/planner.md has its columns)"
    elif unpriced:
        yield f"no price in the list for {', '.join(sorted(unpriced))}: device hours are compared"
    if question.interrupted_every_s is not None:
        yield (
            "interruptions: 20 s for a checkpoint and 5 min until another machine has started are "
            "assumed"
        )
    if job.noise_scale is None and len({point.batch for point in points} | {job.batch}) > 1:
        yield (
            "the gradient noise scale is not known, so larger batches are taken to need no more "
            "epochs: --noise-scale sets it"
        )
    if job.epochs.worst > job.epochs.best:
        yield "the total is a range mostly because early stopping decides when training ends"
    fast = [p for p in points if p.efficiency > 1.05]
    if fast:
        yield "an efficiency above 100 % is a smaller share of fixed time, not a faster device"
    if job.loader_example_s and any(point.parts_s.get("data", 0.0) > 0 for point in points):
        yield "the loader is that of the profile's machine: other hosts have other cores"

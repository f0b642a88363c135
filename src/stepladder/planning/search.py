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
from stepladder.planning.hardware.speed import speed_of
from stepladder.planning.job import PlannedJob, range_input
from stepladder.planning.outlook import Place, outlook, place_words, why_not
from stepladder.planning.step.step import Driver
from stepladder.records.plan import Bounds, Plan, PlanInput, PlanPoint
from stepladder.records.profile import Provenance
from stepladder.training.output.wording import rough_time

HOSTS: Final = (1, 2, 4, 8, 16)
_GIGA: Final = 1e9
_BITS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        machines, hosts: kinds of machines, and numbers of them.
        batches: examples of a step over all devices; empty: that of the job.
        all_reduces: names of ways of adding up gradients.
        precision: of the arithmetic.
        deadline_s, budget: upper limits; None: none.
        gpus: the user's list with prices.
        driver: of single-process replication; None: a process for each device.
    """

    machines: tuple[Machine, ...]
    hosts: tuple[int, ...] = HOSTS
    batches: tuple[int, ...] = ()
    all_reduces: tuple[str, ...] = ("native",)
    precision: Precision = Precision.FP32
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
            points.append(outlook(job, place))
    if not points:
        raise UsageError(
            f"no training is possible: {refused[0] if refused else 'no machine was named'}",
            where="plan",
            fix="Change what it names, or name other --machines.",
        )
    marked = _with_knee(_with_best(points))
    return Plan(
        job=job_words(job),
        now=_now(job, question),
        inputs=tuple(_inputs(job, question)),
        points=tuple(marked),
        refused=tuple(dict.fromkeys(refused)),
        answer=answer_words(marked, question),
        notes=tuple(_notes(job, marked)),
        deadline_s=question.deadline_s,
        budget=question.budget,
    )


def _places(job: PlannedJob, question: Question) -> Iterable[Place]:
    """Return one host with 1, 2, 4, … devices, and several hosts with all of theirs."""
    for machine in question.machines:
        for hosts in question.hosts:
            all_of = machine.devices
            counts = sorted({all_of, *(1 << power for power in range(all_of.bit_length() - 1))})
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
                            precision=question.precision,
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
        precision=question.precision,
    )
    return outlook(job, place) if why_not(job, place) is None else None


def price_of(point: PlanPoint) -> float:
    """Return what counts as the price of a training: money if it is known, else device hours."""
    if point.cost is not None:
        return point.cost.likely
    return point.num * point.total_s.likely


def _with_best(points: Sequence[PlanPoint]) -> list[PlanPoint]:
    """Mark the points than which no other is faster and cheaper: the Pareto front."""
    is_priced = all(point.cost is not None for point in points)

    def price(point: PlanPoint) -> float:
        return price_of(point) if is_priced else point.num * point.total_s.likely

    order = sorted(
        range(len(points)), key=lambda idx: (points[idx].total_s.likely, price(points[idx]))
    )
    lowest, best = math.inf, set()
    for idx in order:
        if price(points[idx]) < lowest * (1 - 1e-9):
            lowest = price(points[idx])
            best.add(idx)
    return [replace(point, is_best=idx in best) for idx, point in enumerate(points)]


def _with_knee(points: Sequence[PlanPoint]) -> list[PlanPoint]:
    """Mark the best point that is furthest from the line between the ends of the front.

    Time and price are compared by their logarithms: twice as fast for twice as much is a tie.

    Source: Branke et al. 2004, "Finding Knees in Multi-objective Optimization", PPSN VIII.
    """
    front = sorted((one for one in points if one.is_best), key=lambda one: one.total_s.likely)
    if len(front) < 3:
        knee = front[0]
    else:
        places = [
            (math.log(one.total_s.likely), math.log(max(price_of(one), 1e-12))) for one in front
        ]
        (x0, y0), (x1, y1) = places[0], places[-1]
        width, height = (x1 - x0) or 1e-12, (y0 - y1) or 1e-12
        sums = [(x - x0) / width + (y - y1) / height for x, y in places]
        knee = front[sums.index(min(sums))]
    return [replace(one, is_knee=one is knee) for one in points]


def answer_words(points: Sequence[PlanPoint], question: Question) -> str:
    """Return the recommendation in a sentence."""
    cheapest_first = sorted(points, key=lambda one: (price_of(one), one.total_s.likely))
    fastest_first = sorted(points, key=lambda one: (one.total_s.likely, price_of(one)))
    if question.deadline_s is not None:
        inside = [one for one in cheapest_first if one.total_s.likely <= question.deadline_s]
        limit = rough_time(question.deadline_s)
        if not inside:
            return f"nothing ends within {limit}; the fastest is {point_words(fastest_first[0])}"
        sure = [one for one in inside if one.total_s.worst <= question.deadline_s]
        return f"the cheapest within {limit} is {point_words((sure or inside)[0])}"
    if question.budget is not None:
        priced = [one for one in fastest_first if one.cost is not None]
        inside = [one for one in priced if one.cost and one.cost.likely <= question.budget]
        if not inside:
            return (
                f"nothing costs {question.budget:g} or less; the cheapest is "
                f"{point_words(cheapest_first[0])}"
            )
        return f"the fastest for {question.budget:g} or less is {point_words(inside[0])}"
    knee = next(one for one in points if one.is_knee)
    if knee.num == 1:
        return f"one device is enough: {point_words(knee)}"
    return f"more devices stop paying at {point_words(knee)}"


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
        known = Range.exact(job.noise_scale, Provenance.MEASURED, "profile, or --noise-scale")
        yield range_input("gradient noise scale", "examples", known)
    for machine in question.machines:
        speed = speed_of(job.rates, machine.gpu, question.precision)
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


def _notes(job: PlannedJob, points: Sequence[PlanPoint]) -> Iterable[str]:
    if any(point.cost is None for point in points):
        yield "no prices: --prices FILE.csv adds them (docs/planner.md has its columns)"
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

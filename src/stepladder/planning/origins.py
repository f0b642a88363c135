"""The numbers of a plan with their origin, and what else its reader should know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from stepladder.planning.front import comparable
from stepladder.planning.hardware.ranges import Range
from stepladder.planning.job import PlannedJob, range_input
from stepladder.planning.place import ASYNCHRONOUS, Place
from stepladder.planning.question import Question
from stepladder.records.plan import Bounds, PlanInput, PlanPoint
from stepladder.records.profile import Provenance

_MORE_THAN_ALL: Final = 1.05
_GIGA: Final = 1e9
_BITS: Final = 8


def inputs(job: PlannedJob, question: Question) -> Iterable[PlanInput]:
    """Yield each number that a plan uses."""
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
    if question.slow_device != 1:
        slow = Range.exact(question.slow_device, read, "--slow-device")
        yield range_input("time of the slowest device", "×", slow)
    if question.slow_network is not None:
        gbit = question.slow_network.bytes_per_s * _BITS / _GIGA
        yield range_input(
            "network of the slowest machine", "Gbit/s", Range.exact(gbit, read, "--slow-network")
        )
    for machine in question.machines:
        for precision in question.precisions or (job.precision,):
            place = Place(
                machine=machine, hosts=1, devices=1, batch=1, all_reduce="", precision=precision
            )
            speed = place.speed(job)
            if speed is not None:
                yield range_input(f"speed of {machine.name} in {precision}", "×", speed)
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


def notes(job: PlannedJob, question: Question, points: Sequence[PlanPoint]) -> Iterable[str]:
    """Yield what limits a whole plan: prices that are missing, and what is assumed."""
    unpriced = {point.machine for point in points if point.cost is None}
    if unpriced and not question.gpus:
        yield "no prices: --prices FILE.csv adds them (docs/planner.md has its columns)"
    elif unpriced:
        yield f"no price in the list for {', '.join(sorted(unpriced))}: device hours are compared"
    yield from _asked_notes(question, points)
    aged = [point for point in points if point.mean_age is not None]
    if aged:
        isolated = "" if aged[0] in comparable(points) else ", so others are recommended"
        yield (
            f"{ASYNCHRONOUS}: old gradients need more epochs, which are not in these times"
            f"{isolated} (docs/asynchronous.md has measured curves)"
        )
    if {point.precision for point in points} != {job.precision} and job.memory_bytes is not None:
        yield f"memory is that of steps in {job.precision}, also where another precision needs less"
    if job.noise_scale is None and len({point.batch for point in points} | {job.batch}) > 1:
        yield (
            "the gradient noise scale is not known, so larger batches are taken to need no more "
            "epochs: --noise-scale sets it"
        )
    if job.epochs.worst > job.epochs.best:
        yield "the total is a range mostly because early stopping decides when training ends"
    if any(point.efficiency > _MORE_THAN_ALL for point in points):
        yield (
            "an efficiency above 100 % is a smaller share of fixed time, or of the update, not a "
            "faster device"
        )
    if job.loader_example_s and any(point.parts_s.get("data", 0.0) > 0 for point in points):
        yield "the loader is that of the profile's machine: other hosts have other cores"


def _asked_notes(question: Question, points: Sequence[PlanPoint]) -> Iterable[str]:
    if question.interrupted_every_s is not None:
        yield (
            "interruptions: 20 s for a checkpoint and 5 min until another machine has started are "
            "assumed"
        )
    if question.slow_device != 1 and any(point.num > 1 for point in points):
        yield f"one of several devices is taken to be {question.slow_device:g} times as slow"
    if question.slow_network is not None and any(point.hosts > 1 for point in points):
        yield f"one of several machines is taken to have a network of {question.slow_network.name}"

"""Search machines, batches and ways of adding up gradients, and recommend one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from itertools import product

from stepladder.errors import UsageError
from stepladder.parallel.divided.choice import Kind
from stepladder.planning.answer import answer_words, job_words
from stepladder.planning.front import with_best, with_knee
from stepladder.planning.hardware.machines import THIS
from stepladder.planning.job import PlannedJob
from stepladder.planning.origins import inputs, notes
from stepladder.planning.outlook import outlook, why_not
from stepladder.planning.place import EXCHANGES, SERVED, Place
from stepladder.planning.question import Question
from stepladder.records.plan import Plan, PlanPoint


def plan(job: PlannedJob, question: Question) -> Plan:
    """Return all trainings that are possible, the best ones marked, and a recommendation.

    Raises:
        UsageError: if an all-reduce has no formula, or nothing is possible.
    """
    unknown = next((one for one in question.all_reduces if one not in EXCHANGES), None)
    if unknown is not None:
        near = get_close_matches(unknown, EXCHANGES, n=1, cutoff=0.5)
        raise UsageError(
            f"there is no all-reduce named {unknown!r}",
            where="--all-reduce",
            fix=f"{f'Did you mean {near[0]}? ' if near else ''}Type one of: "
            f"{', '.join(EXCHANGES)}.",
        )
    served = [name for name in question.all_reduces if name in SERVED]
    if served and question.driver is not None:
        raise UsageError(
            f"{served[0]} workers are processes of their own, which no driver feeds",
            where="--driver-ms",
            fix=f"Leave out --driver-ms, or {served[0]}.",
        )
    points, refused = [], []
    for place in _places(job, question):
        reason = why_not(job, place)
        if reason is not None:
            refused.append(reason)
        else:
            point = outlook(job, place)
            if point not in points:  # a divided model has exchanges of its own
                points.append(point)
    is_alone = bool(question.kinds) and all(point.num == 1 for point in points)
    if not points or (is_alone and refused):
        raise UsageError(
            f"no training is possible: {refused[0] if refused else 'no machine was named'}",
            where="plan",
            fix="Change the option at its end, or name other --machines.",
        )
    marked = with_knee(with_best(points))
    return Plan(
        job=job_words(job),
        now=_now(job, question),
        inputs=tuple(inputs(job, question)),
        points=tuple(marked),
        refused=tuple(dict.fromkeys(refused)),
        answer=answer_words(marked, question),
        notes=tuple(notes(job, question, marked)),
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
                first = Place(
                    machine=machine,
                    hosts=hosts,
                    devices=devices,
                    batch=job.batch,
                    all_reduce="",
                    gpus=question.gpus,
                    driver=question.driver,
                    interrupted_every_s=question.interrupted_every_s,
                    slow_device=question.slow_device,
                    slow_network=question.slow_network,
                )
                yield from _ways(job, question, first)


def _ways(job: PlannedJob, question: Question, first: Place) -> Iterable[Place]:
    """Return all ways of training on the same machines."""
    is_alone = first.num == 1
    has_others = any(name not in SERVED for name in question.all_reduces)
    kinds: list[tuple[Kind, ...]] = [] if is_alone else [(kind,) for kind in question.kinds]
    for batch, precision, name, kind in product(
        question.batches or (job.batch,),
        question.precisions or (job.precision,),
        ("",) if is_alone else question.all_reduces,
        kinds or [()],
    ):
        if name in SERVED and has_others and kind not in {(), (Kind.DATA,)}:
            continue  # divided models are planned once
        yield replace(first, batch=batch, precision=precision, all_reduce=name, kinds=kind)


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

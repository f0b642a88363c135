"""The recommendation of a plan, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepladder.config.choices import Precision
from stepladder.parallel.divided.choice import Kind, size_words
from stepladder.planning.front import comparable, has_prices, price_of
from stepladder.planning.job import PlannedJob
from stepladder.planning.place import place_words
from stepladder.planning.question import Question
from stepladder.records.plan import PlanPoint
from stepladder.training.output.wording import rough_time


def answer_words(points: Sequence[PlanPoint], question: Question) -> str:
    """Return the recommendation in a sentence."""
    points = comparable(points)
    is_priced = has_prices(points)

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
    own_kind = "" if point.kind == Kind.DATA else point.kind
    precision = "" if point.precision == Precision.FP32 else point.precision
    how = "".join(f", {one}" for one in (point.all_reduce, own_kind, precision) if one)
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
        f"{size_words(job.num_bytes)} of gradients; measured on {job.device_name}"
    )

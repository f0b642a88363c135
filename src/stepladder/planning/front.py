"""The best of the planned trainings: those that no other beats, and the knee."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from stepladder.records.plan import PlanPoint

_HOUR_S: Final = 3600.0


def price_of(point: PlanPoint, *, is_priced: bool) -> float:
    """Return what counts as the price of a training: money, or hours of the devices paid for."""
    if is_priced and point.cost is not None:
        return point.cost.likely
    return point.paid_devices * point.total_s.likely / _HOUR_S


def has_prices(points: Sequence[PlanPoint]) -> bool:
    """Return True if the price of every training is known."""
    return all(point.cost is not None for point in points)


def comparable(points: Sequence[PlanPoint]) -> list[PlanPoint]:
    """Return the points whose time to the end is known: not asynchronous ones.

    How many more epochs old gradients need is not predicted, so they are not compared with others;
    if no other way of training on several devices was planned, all are.
    """
    known = [point for point in points if point.mean_age is None]
    has_others = any(point.num > 1 for point in known) or len(known) == len(points)
    return known if has_others else list(points)


def with_best(points: Sequence[PlanPoint]) -> list[PlanPoint]:
    """Mark the points than which no other is faster and cheaper: the Pareto front."""
    possible = {id(point) for point in comparable(points)}
    is_priced = has_prices(points)
    prices = [price_of(point, is_priced=is_priced) for point in points]
    times = [point.total_s.likely for point in points]
    known = (idx for idx, point in enumerate(points) if id(point) in possible)
    order = sorted(known, key=lambda idx: (times[idx], prices[idx]))
    lowest, best = math.inf, set()
    for idx in order:
        if prices[idx] < lowest * (1 - 1e-9):
            lowest = prices[idx]
            best.add(idx)
    return [replace(point, is_best=idx in best) for idx, point in enumerate(points)]


def with_knee(points: Sequence[PlanPoint]) -> list[PlanPoint]:
    """Mark the fastest of the best points to which each step from the cheapest one still pays.

    A step pays if it makes the training faster by a larger factor than dearer: with twice the
    devices, if it is at least 1.41 times as fast.
    """
    is_priced = has_prices(points)
    front = sorted((one for one in points if one.is_best), key=lambda one: -one.total_s.likely)
    knee = front[0]
    for point in front[1:]:
        faster = knee.total_s.likely / point.total_s.likely
        before, after = (price_of(one, is_priced=is_priced) for one in (knee, point))
        if after > before * faster:
            break
        knee = point
    return [replace(one, is_knee=one is knee) for one in points]

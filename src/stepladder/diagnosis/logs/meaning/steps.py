"""The steps of metrics that were logged without any, which trackers store as step 0."""

from __future__ import annotations

import math
from collections.abc import Iterable

from stepladder.diagnosis.logs.meaning.column_names import split_of

Point = tuple[str, int, float, float]  # metric, step, value, Unix time (s or ms)
_MAX_NAMED = 4
_MIN_VALUES = 3  # two may be one that was logged again


def with_steps(points: Iterable[Point]) -> tuple[list[Point], tuple[str, ...]]:
    """Return points in the order of time, with steps for metrics of which all have the same one.

    If other metrics have steps, the last one of these is used. Otherwise the values are counted; if
    there are more values of training than of evaluations, the last ones before each are used.

    Returns:
        (the points, a note about what was assumed).
    """
    ordered = sorted(points, key=lambda point: point[3])
    steps: dict[str, list[int]] = {}
    for key, step, *_ in ordered:
        steps.setdefault(key, []).append(step)
    stuck = {
        key: len(found)
        for key, found in steps.items()
        if len(found) >= _MIN_VALUES and len({*found}) == 1
    }
    if not stuck:
        return ordered, ()
    has_steps = any(len({*found}) > 1 for found in steps.values())
    held_out = [num for key, num in stuck.items() if split_of(key)[0] in ("val", "test")]
    num_rows = max(held_out or stuck.values())
    count = dict.fromkeys(steps, 0)
    placed: list[Point] = []
    last = 0
    for key, step, value, at in ordered:
        count[key] += 1
        place = step
        if key not in stuck:
            last = max(last, step)
            place = step if has_steps else num_rows
        else:
            place = last if has_steps else math.ceil(count[key] * num_rows / stuck[key])
        placed.append((key, place, value, at))
    named = ", ".join(sorted(stuck)[:_MAX_NAMED]) + (", …" if len(stuck) > _MAX_NAMED else "")
    how = "placed at the last step of the other metrics" if has_steps else "counted"
    return placed, (
        f"all values of {named} have step {steps[min(stuck)][0]}, so they are {how}, in the order "
        "of time; pass the epoch or step to the logger when you log a value",
    )

"""What trainings are too long for a budget, and which budget allows for them."""

from __future__ import annotations

import math
from typing import Final

OUTCOMES_FRAC: Final = 0.2
"""Of the budget, for the trainings of one recipe, and as much for the features of one trunk."""
_ROOM: Final = 1.5  # in a budget that is recommended: part of it is spent by then
_LEAST_S: Final = 0.1
_IN_SECONDS_S: Final = 60
_IN_HOURS_S: Final = 5400
_IN_HOURS_MIN: Final = 120


def too_long(
    num: int, each_s: float, *, features_s: float | None = None, spent_s: float = 0.0
) -> str:
    """Say what is not affordable, and the budget whose share it is.

    Args:
        num: trainings, of `each_s` seconds each.
        features_s: seconds of features from which heads would learn instead; None: there are none.
        spent_s: of the budget, where the share is one of what is left.
    """
    each = _time(each_s)
    trainings = f"{num} trainings of {each} each" if num > 1 else f"a training of {each}"
    needed_s = num * each_s
    if features_s is None or features_s >= needed_s:
        return (
            f"not compared: it would take {trainings}; {_budget(needed_s, spent_s)} allows for it"
        )
    return (
        f"not compared: it would take {trainings}, or {_time(features_s)} of features, from which "
        f"heads learn in little time; {_budget(features_s, spent_s)} allows for these"
    )


def _time(seconds: float) -> str:
    if seconds < _IN_SECONDS_S:
        return f"{seconds:.1f} s" if seconds >= _LEAST_S else f"less than {_LEAST_S} s"
    return f"{seconds / 3600:.1f} h" if seconds > _IN_HOURS_S else f"{seconds / 60:.1f} min"


def _budget(needed_s: float, spent_s: float) -> str:
    minutes = math.ceil((spent_s + _ROOM * needed_s / OUTCOMES_FRAC) / 60)
    return f"--budget {f'{minutes}m' if minutes < _IN_HOURS_MIN else f'{math.ceil(minutes / 60)}h'}"

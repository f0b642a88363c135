"""Whether validation jumps up and down from epoch to epoch while training is smooth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from stepladder.diagnosis.audit.series import Series, loss_series
from stepladder.records.audit import RunLog
from stepladder.records.findings import Finding, Outcome
from stepladder.stats.maxima import expected_max
from stepladder.stats.scatter import scatter

_MIN_LATE = 6  # evaluations after the first third of the training
_FEW = 8  # with fewer of them, jumps must be larger and more regular
_JUMPS = 0.4  # scatter of the validation loss, as a share of its median
_TIMES, _TIMES_OF_FEW = 3.0, 5.0  # the highest late loss over the lowest
_OF_TRAINING = 0.3  # of the first training loss: smaller validation losses may jump
_SMOOTH = 0.15  # scatter of the training loss, as a share of its median
_TURNS, _TURNS_OF_FEW = 0.5, 0.75  # share of the steps after which the loss turns
_POINTS, _POINTS_OF_FEW = 0.1, 0.2  # between the highest and the lowest late accuracy
_CLEAR = 1.5  # times the range that the number of examples explains


def judge_stability(log: RunLog, series: Series, num: int | None) -> Finding | None:
    """Check whether the validation loss jumps; None if it does not, or if that is not clear.

    After the first third of the training, its scatter is above 0.4 of its median, its highest
    value is three times its lowest one, and it turns after half of its steps; the training loss is
    smooth. Where the accuracy is logged, it spans ten points as well. With fewer than eight
    evaluations there, these are five times, 0.75 of the steps and twenty points.
    """
    losses = loss_series(log)
    train = [row.train_loss for row in log.rows if row.train_loss is not None]
    if losses is None or log.resumed_at or not train or not all(map(math.isfinite, train)):
        return None
    first = len(losses.values) // 3
    late, late_train = losses.values[first:], train[len(train) // 3 :]
    if not _jumps(late) or max(late) < _OF_TRAINING * train[0] or not _is_smooth(late_train):
        return None
    shares = series.values[len(series.values) // 3 :] if series.is_fraction else ()
    points = _POINTS if len(late) >= _FEW else _POINTS_OF_FEW
    if shares and max(shares) - min(shares) < points:
        return None
    largest = max(abs(after - before) for before, after in pairwise(late))
    said = (
        f"validation is unstable: its loss jumps up and down between {min(late):.4g} and "
        f"{max(late):.4g} in the last {len(late)} evaluations, by up to {largest:.4g} from one to "
        f"the next, while the training loss goes smoothly from {late_train[0]:.4g} to "
        f"{late_train[-1]:.4g}"
    )
    if shares:
        said += (
            f"; {series.name} is between {series.say(min(shares))} and {series.say(max(shares))}"
        )
    return Finding(
        check="stability",
        outcome=Outcome.WARNED,
        evidence=said + _explained(series, shares, num),
        fix="Lower the learning rate, or let it decay. With batch norm, use larger batches or "
        "longer running averages, and check that validation runs in eval mode and prepares inputs "
        "as training does. If the validation set is small, enlarge it. Until then, no "
        "single epoch says much.",
        numbers={"lowest": min(late), "highest": max(late), "largest_jump": largest},
    )


def _explained(series: Series, shares: Sequence[float], num: int | None) -> str:
    """Return whether the number of examples explains the range of the accuracies, if known."""
    sem = series.sem(median(shares), num) if shares else None
    if sem is None:
        return ""
    span = 2 * expected_max(len(shares)) * sem
    if max(shares) - min(shares) > _CLEAR * span:
        return f"; with {num:,} examples, chance explains no more than {series.say_change(span)}"
    return f"; the set is small: with {num:,} examples, chance gives {series.say_change(span)}"


def _jumps(values: Sequence[float]) -> bool:
    if len(values) < _MIN_LATE or min(values) <= 0:
        return False
    found = scatter(values) or 0.0
    steps = [after - before for before, after in pairwise(values)]
    turns = sum(one * other < 0 for one, other in pairwise(steps))
    is_few = len(values) < _FEW
    is_wide = max(values) > (_TIMES_OF_FEW if is_few else _TIMES) * min(values)
    share = _TURNS_OF_FEW if is_few else _TURNS
    return is_wide and found > _JUMPS * median(values) and turns >= share * (len(steps) - 1)


def _is_smooth(losses: Sequence[float]) -> bool:
    found = scatter(losses)
    return found is not None and found <= _SMOOTH * median(losses)

"""Trainings that diverged or collapsed, with the learning rate that their log names."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepladder.diagnosis.audit.series import Series
from stepladder.records.audit import LogRow, RunLog
from stepladder.records.findings import Finding, Outcome
from stepladder.training.output.wording import percent

_MIN_ROWS = 4
_LAST = 3  # rows at the end
_ABOVE_FIRST = 1.5  # times the first loss: training is worse than before it began
_ABOVE_LOWEST = 2.0
_KEPT = 0.5  # of the best accuracy: less is a collapse
_LEARNT = 0.6  # share of what was learned, of a metric shortly before a collapse
_LEFT = 0.2  # and share of it that is left afterwards, at most
_TRAIN_LEFT = 0.3  # the same of training
_MIN_DROP = 0.15  # share of the best metric
_MIN_RISE = 1.5  # times a loss
_MIN_AFTER = 2  # evaluations
_NEAR_GUESS = 0.03  # share by which an accuracy may differ from 1 / C


def a_tenth(log: RunLog) -> str:
    """Return the advice to train with a tenth of the learning rate, with its value if logged."""
    said = "Train again with a tenth of the learning rate"
    rates = rates_in(log)
    if not rates:
        return f"{said}."
    highest = max(rates)
    was = f"{highest:.4g}" if min(rates) == highest else f"{highest:.4g}, its highest in the log"
    return f"{said} ({highest / 10:.2g} instead of {was})."


def judge_finite(log: RunLog) -> Finding | None:
    """Check whether a loss or an accuracy is NaN or infinite, and name the last loss before."""
    bad = [
        row
        for row in log.rows
        for value in (row.train_loss, row.val_loss, row.val_accuracy, row.train_accuracy)
        if value is not None and not math.isfinite(value)
    ]
    places = [row for row in (log.not_finite, *bad) if row is not None]
    if not places:
        return None
    first = next((row for row in places if (row.epoch, row.step) != (None, None)), places[0])
    place = _place(first) or "a line without an epoch or step"
    return Finding(
        check="finite",
        outcome=Outcome.FAILED,
        evidence=f"a loss or accuracy is NaN or infinite from {place} on, so the values after "
        f"that mean nothing{_last_finite(log)}",
        fix=f"{a_tenth(log)} Or clip the gradients. If that does not help, look for NaN in the "
        "inputs.",
        numbers={"num_bad": len(bad)},
    )


def judge_divergence(log: RunLog, series: Series) -> Finding | None:
    """Check whether the losses rose above where they began, and the held-out metric collapsed.

    The last three training losses are all more than 1.5 times the first one, and twice the lowest;
    the last three evaluations have less than half of the best accuracy, or 1.5 times the first and
    twice the lowest loss.
    """
    rows = [row for row in log.rows if row.train_loss is not None]
    losses = [row.train_loss for row in rows if row.train_loss is not None]
    if log.resumed_at or not _has_exploded(losses) or not _has_collapsed(series):
        return None
    best = series.rows[series.best]
    where = _place(best) or "the best evaluation"
    rates = rates_in(log)
    rate = ""
    if rates:
        rate = f"; the learning rate is {max(rates):.4g}"
        rate += " throughout" if min(rates) == max(rates) else " at most"
    return Finding(
        check="learning_rate",
        outcome=Outcome.WARNED,
        fault="learning_rate_too_high",
        evidence=f"the training diverged: its loss was {losses[0]:.4g} at first and "
        f"{min(losses):.4g} at its lowest, and is {losses[-1]:.4g} at the end, while "
        f"{series.name} went from {series.say(series.values[series.best])} to "
        f"{series.say(series.values[-1])}{rate}",
        fix=f"{a_tenth(log)} Until then, use the checkpoint of {where}.",
        numbers={"first": losses[0], "lowest": min(losses), "last": losses[-1]},
    )


def _last_finite(log: RunLog) -> str:
    """Return the last training loss before the losses are not finite, as a clause."""
    last = log.last_finite
    if last is None or last.train_loss is None or not (where := _place(last)):
        return ""
    return f"; the training loss before was {last.train_loss:.4g}, at {where}"


def rates_in(log: RunLog) -> list[float]:
    """Return the learning rates of a log, in order."""
    found = [row.learning_rate for row in log.rows if row.learning_rate is not None]
    return [rate for rate in found if math.isfinite(rate) and rate > 0]


def _has_exploded(losses: Sequence[float]) -> bool:
    if len(losses) < _MIN_ROWS or not all(map(math.isfinite, losses)):
        return False
    first, lowest = losses[0], min(losses)
    return lowest > 0 and min(losses[-_LAST:]) > max(_ABOVE_FIRST * first, _ABOVE_LOWEST * lowest)


def _has_collapsed(series: Series) -> bool:
    values = series.values
    if len(values) < _MIN_ROWS:
        return False
    last, best = values[-_LAST:], values[series.best]
    if series.is_lower_better:
        return best > 0 and min(last) > max(_ABOVE_FIRST * values[0], _ABOVE_LOWEST * best)
    return series.is_fraction and max(last) < _KEPT * best


def _place(row: LogRow) -> str:
    if row.epoch is not None:
        return f"epoch {row.epoch:g}"
    return "" if row.step is None else f"step {row.step:,}"


def judge_collapse(log: RunLog, series: Series) -> Finding | None:
    """Check whether a training lost at once what it had learned, and did not recover.

    From one evaluation on, the metric and the training loss keep less than a fifth of their
    progress until the end, at least two evaluations; shortly before, they had more than 0.6 of it.
    """
    first = _first_after(series.values, is_lower_better=series.is_lower_better)
    if first is None or log.resumed_at:
        return None
    name, train, is_lower_better = _beside(series)
    if len(train) < len(series.values) or not _is_lost(
        train, first, left=_TRAIN_LEFT, is_lower_better=is_lower_better
    ):
        return None
    after = series.values[first:]
    is_lower = series.is_lower_better
    if _share_left(series.values, first - 1, is_lower_better=is_lower) < _LEARNT:
        first -= 1  # it took two evaluations
    where = _place(series.rows[first]) or f"evaluation {first + 1}"
    best = _place(series.rows[series.best]) or "the best evaluation"
    level = round(len(after) / sum(after)) if series.is_share and sum(after) > 0 else 0
    is_guess = level > 1 and abs(sum(after) / len(after) * level - 1) < _NEAR_GUESS
    both = train[first - 1], train[-len(after)]
    before, then = (f"{one:.4g}" if is_lower_better else percent(one) for one in both)
    went = "rose" if is_lower else "fell"
    return Finding(
        check="learning_rate",
        outcome=Outcome.WARNED,
        fault="learning_rate_too_high",
        evidence=f"the training diverged at {where}: the {name} went from "
        f"{before} to {then}, {series.name} {went} from "
        f"{series.say(series.values[first - 1])} to "
        f"{series.say(after[0])}, and neither recovered in the {len(after)} evaluations until the "
        f"end" + (f"; that is guessing among {level} classes" if is_guess else ""),
        fix=f"Use the checkpoint of {best}. {a_tenth(log)} Or resume from "
        f"a checkpoint before {where} with that rate, and clip the gradients. With mixed "
        "precision, check for overflows there.",
        numbers={"first_after": first, "best": series.values[series.best], "last": after[-1]},
    )


def _beside(series: Series) -> tuple[str, list[float], bool]:
    """Return the training loss at the evaluations, if lower is better, and what it is.

    Or else the training accuracy; or else the validation loss beside another metric.
    """
    for name, what in (
        ("train_loss", "training loss"),
        ("train_accuracy", "training accuracy"),
        ("val_loss", "validation loss"),
    ):
        values = [value for row in series.rows if (value := getattr(row, name)) is not None]
        if len(values) == len(series.rows) and name != series.name:
            return what, values, name.endswith("loss")
    return "", [], True


def _first_after(values: Sequence[float], *, is_lower_better: bool) -> int | None:
    """Return the first evaluation after a collapse; None without one."""
    for first in range(_MIN_ROWS - 1, len(values) - _MIN_AFTER + 1):
        if _is_lost(values, first, left=_LEFT, is_lower_better=is_lower_better):
            return first
    return None


def _is_lost(values: Sequence[float], first: int, *, left: float, is_lower_better: bool) -> bool:
    """Return True if values kept until an evaluation what they had gained, and lost it there."""
    if not all(map(math.isfinite, values)):
        return False
    best = min(values[:first]) if is_lower_better else max(values[:first])
    before, after = (
        [_share_left(values, idx, is_lower_better=is_lower_better) for idx in part]
        for part in (range(first - 2, first), range(first, len(values)))
    )
    if max(before) < _LEARNT or max(after) > left:
        return False
    if is_lower_better:
        return min(values[first:]) >= _MIN_RISE * best
    return best - max(values[first:]) >= _MIN_DROP * abs(best)


def _share_left(values: Sequence[float], idx: int, *, is_lower_better: bool) -> float:
    """Return the share of the largest gain so far that is left at an evaluation."""
    best = min(values[: idx + 1]) if is_lower_better else max(values[: idx + 1])
    gained = best - values[0]
    return (values[idx] - values[0]) / gained if gained else 0.0

"""Trainings that diverged, with the learning rate that their log names."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepladder.diagnosis.audit.series import Series
from stepladder.records.audit import LogRow, RunLog
from stepladder.records.findings import Finding, Outcome

_MIN_ROWS = 4
_LAST = 3  # rows at the end
_ABOVE_FIRST = 1.5  # times the first loss: training is worse than before it began
_ABOVE_LOWEST = 2.0
_KEPT = 0.5  # of the best accuracy: less is a collapse


def a_tenth(log: RunLog) -> str:
    """Return the advice to train with a tenth of the learning rate, with its value if logged."""
    said = "Train again with a tenth of the learning rate"
    rates = rates_in(log)
    if not rates:
        return f"{said}."
    highest = max(rates)
    was = f"{highest:.4g}" if min(rates) == highest else f"{highest:.4g}, its highest in the log"
    return f"{said} ({highest / 10:.2g} instead of {was})."


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

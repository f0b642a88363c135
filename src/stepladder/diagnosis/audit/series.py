"""The held-out metric that a logged training is judged by, and its noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.diagnosis.fit.curves import Curves, Point
from stepladder.diagnosis.logs.meaning.column_names import is_lower_better
from stepladder.records.audit import CUT_SHORT, STILL_RUNNING, LogRow, RunLog
from stepladder.stats import binomial_sem
from stepladder.stats.scatter import scatter
from stepladder.training.output.wording import percent

ACCURACY, LOSS = "val_accuracy", "val_loss"
_ROUNDING = 1e-9  # share of a value
_ALMOST_ALL = 0.9995  # would be 100.0 %
_BY_HAND = "signal"  # the stop reason of an interrupted run of ours
_UNENDED = {
    STILL_RUNNING: "it is still running",
    CUT_SHORT: "it was interrupted",
    _BY_HAND: "it was interrupted",
}


@dataclass(frozen=True, kw_only=True)
class Series:
    """The evaluations of one metric.

    Attributes:
        name: of the metric.
        rows: the evaluations in which it is finite.
        values: the metric in each, as logged.
        is_lower_better: lower is better.
        is_share: it is a share of examples, so that its noise follows from their number.
        is_fraction: it lies in [0, 1] and is printed in percent; a share, or a metric such as F1.
    """

    name: str
    rows: tuple[LogRow, ...]
    values: tuple[float, ...]
    is_lower_better: bool
    is_share: bool
    is_fraction: bool

    @property
    def best(self) -> int:
        """Return the index of the first best value."""
        sign = 1 if self.is_lower_better else -1
        return min(range(len(self.values)), key=lambda idx: sign * self.values[idx])

    @property
    def is_constant(self) -> bool:
        """Return whether there are several values, all equal."""
        return len(self.values) > 1 and min(self.values) == max(self.values)

    def gain(self, before: float, after: float) -> float:
        """Return by how much one value is better than another; below 0 is worse."""
        return before - after if self.is_lower_better else after - before

    def sem(self, value: float, num: int | None) -> float | None:
        """Return the standard error of a value, from the number of held-out examples.

        A share of 0 or 1 is moved by half an example. For a loss it is the logged one, if any.
        """
        if self.is_share and num:
            return binomial_sem(min(max(value, 0.5 / num), 1 - 0.5 / num), num)
        if self.name == LOSS:
            logged = [row.val_loss_sem for row in self.rows if row.val_loss == value]
            return next((sem for sem in logged if sem is not None and math.isfinite(sem)), None)
        return None

    def jitter(self) -> float | None:
        """Return the standard deviation of the jumps between evaluations.

        What only the rounding of floats leaves of a straight line is 0.
        """
        late = self.values[len(self.values) // 3 :]
        found = scatter(late if len(late) >= 6 else self.values)
        if found is None:
            return None
        return found if found > _ROUNDING * max(map(abs, self.values)) else 0.0

    def step_noise(self, num: int | None) -> float | None:
        """Return the standard deviation, due to chance, of a difference between two evaluations.

        Most examples are judged the same each time: the curve's own jumps are a better estimate
        than the number of examples, which is used if there are too few evaluations.
        """
        jitter = self.jitter()
        if jitter is not None:
            one_example = 1 / num if self.is_share and num else 0.0
            return max(math.sqrt(2) * jitter, one_example)
        return self.sem(self.values[self.best], num)

    def say(self, value: float) -> str:
        """Format a value."""
        return share_words(value) if self.is_fraction else f"{value:.4g}"

    def say_change(self, value: float) -> str:
        """Format a difference."""
        return f"{100 * abs(value):.2g} points" if self.is_fraction else f"{abs(value):.2g}"


def share_words(value: float) -> str:
    """Format a share in percent: 0.99994 is 99.99 %, not 100.0 %."""
    return percent(value, 2 if _ALMOST_ALL <= value < 1 else 1)


def choose_series(log: RunLog) -> Series | None:
    """Choose the metric to judge a training by: the requested one, accuracy, then loss."""
    if log.score_name is not None:
        found = _series(
            log.score_name,
            log.rows,
            [row.score for row in log.rows],
            is_share=log.is_score_share,
            is_fraction=log.is_score_fraction,
        )
        if found is not None:
            return found
    accuracy = _series(ACCURACY, log.rows, [row.val_accuracy for row in log.rows], is_share=True)
    return accuracy or loss_series(log)


def loss_series(log: RunLog) -> Series | None:
    """Return the held-out losses."""
    return _series(LOSS, log.rows, [row.val_loss for row in log.rows], is_share=False)


def _series(
    name: str,
    rows: Sequence[LogRow],
    values: Sequence[float | None],
    *,
    is_share: bool,
    is_fraction: bool = False,
) -> Series | None:
    kept = [
        (row, value)
        for row, value in zip(rows, values, strict=True)
        if value is not None and math.isfinite(value)
    ]
    if not kept:
        return None
    return Series(
        name=name,
        rows=tuple(row for row, _ in kept),
        values=tuple(value for _, value in kept),
        is_lower_better=not is_share and is_lower_better(name),
        is_share=is_share,
        is_fraction=is_share or is_fraction,
    )


def why_unended(log: RunLog) -> str:
    """Return why a training has not ended as planned; empty if it has, or if unknown."""
    if log.ended_by is not None:
        return "it ended with an error"
    return _UNENDED.get(log.stop_reason or "", "")


def curves_of(log: RunLog, num_val: int | None) -> Curves:
    """Return a log as curves for judging the fit; nothing in it is on equal terms."""
    is_diverged = log.not_finite is not None or any(
        value is not None and not math.isfinite(value)
        for row in log.rows
        for value in (row.train_loss, row.val_loss)
    )
    is_stopped = log.stop_reason is not None and not why_unended(log)
    is_short = log.epochs is not None and log.max_epochs is not None and log.epochs < log.max_epochs
    judged = choose_series(log)
    score = judged if judged is not None and judged.name == log.score_name else None
    is_score = score is not None and score.is_fraction and not score.is_lower_better
    return Curves(
        points=tuple(
            Point(
                step=row.step if row.step is not None else idx + 1,
                epoch=row.epoch,
                train_loss=row.train_loss,
                train_accuracy=row.train_accuracy,
                val_loss=row.val_loss,
                val_loss_sem=row.val_loss_sem,
                val_accuracy=row.val_accuracy,
                val_score=row.score if is_score else None,
            )
            for idx, row in enumerate(log.rows)
        ),
        num_val=num_val,
        is_running=bool(why_unended(log)) or (is_short and not is_stopped),
        is_whole=is_stopped or (log.max_epochs is not None and not is_short),
        is_diverged=is_diverged,
        score_name=log.score_name if is_score else None,
        score_noise=score.step_noise(num_val) if score is not None and is_score else None,
    )

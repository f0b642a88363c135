"""Whether the learning rate that a log names is too low: the losses stay near guessing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from stepladder.diagnosis.audit.divergence import rates_in
from stepladder.diagnosis.audit.series import Series, why_unended
from stepladder.records.audit import RunLog
from stepladder.records.findings import Finding, Outcome
from stepladder.training.output.wording import percent

_MIN_ROWS = 4
_LOW = 1e-4  # above it, other causes are as likely
_NEAR_GUESS = 0.02  # share of ln C by which the first losses differ from it
_LEFT = 0.9  # of ln C: the loss has hardly fallen
_OFF_CHANCE = 0.5  # share of 1 / C by which the first accuracy differs from it
_STEADY = 0.75  # share of the steps of a loss that go down
_SECOND_HALF = 0.3  # share of the fall that comes in the second half: it has not settled
_SETTLED = 0.1  # share of change in the learning rate: more is a warm-up that has not ended


@dataclass(frozen=True, kw_only=True)
class LowRate:
    """A learning rate so low that the losses stay near that of guessing.

    Attributes:
        rate: the highest one in the log.
        num_classes: whose loss of guessing the training began at.
        said: what was seen.
    """

    rate: float
    num_classes: int
    said: str

    @property
    def finding(self) -> Finding:
        """Return it as a finding."""
        return Finding(
            check="learning_rate",
            outcome=Outcome.WARNED,
            fault="learning_rate_too_low",
            evidence=self.said,
            fix=f"Train again with 10 to 100 times the learning rate ({10 * self.rate:.2g} to "
            f"{100 * self.rate:.2g}). If the weights should be pretrained, check that they were "
            "loaded.",
            numbers={"learning_rate": self.rate, "num_classes": self.num_classes},
        )


def low_rate(log: RunLog, series: Series) -> LowRate | None:
    """Return a learning rate that is too low to learn in the given time; None if it is not known.

    The learning rate is 1e-4 or less throughout and no longer rises. The losses began at ln C and
    the accuracy at 1 / C, for the same C; all losses fall steadily, in the second half of the
    training as well, but at most by a tenth of ln C.
    """
    rates = rates_in(log)
    if not rates or not 0 < max(rates) <= _LOW or _is_warming_up(rates) or why_unended(log):
        return None
    train = [row.train_loss for row in log.rows if row.train_loss is not None]
    held_out = [row.val_loss for row in log.rows if row.val_loss is not None]
    shares = [row.val_accuracy for row in log.rows if row.val_accuracy is not None]
    if not _creeps(train) or (held_out and not _creeps(held_out)) or len(shares) < _MIN_ROWS:
        return None
    guessed = round(math.exp(train[0])) if 0 < train[0] < math.log(1e5) else 0
    if guessed < 2 or abs(shares[0] * guessed - 1) > _OFF_CHANCE:
        return None
    guess = math.log(guessed)
    ends = [losses[-1] for losses in (train, held_out) if losses]
    if abs(train[0] - guess) > _NEAR_GUESS * guess or min(ends) < _LEFT * guess:
        return None
    steady = " throughout" if min(rates) == max(rates) else " at most"
    said = (
        f"the model hardly learns: in {len(train)} evaluations the training loss fell from "
        f"{train[0]:.4g} to {train[-1]:.4g}, {percent(1 - train[-1] / train[0])}; guessing among "
        f"{guessed} classes gives ln {guessed} = {guess:.4g}. {series.name} is "
        f"{series.say(series.values[-1])}. The learning rate is {max(rates):.4g}{steady}"
    )
    return LowRate(rate=max(rates), num_classes=guessed, said=said)


def _creeps(losses: Sequence[float]) -> bool:
    """Return whether losses fall steadily, in their second half as well."""
    if len(losses) < _MIN_ROWS or not all(map(math.isfinite, losses)):
        return False
    fell = fmean([later < earlier for earlier, later in pairwise(losses)])
    fall, late = losses[0] - losses[-1], losses[len(losses) // 2] - losses[-1]
    return fell >= _STEADY and late > _SECOND_HALF * fall > 0


def _is_warming_up(rates: Sequence[float]) -> bool:
    half = rates[len(rates) // 2]
    return rates[-1] > (1 + _SETTLED) * half

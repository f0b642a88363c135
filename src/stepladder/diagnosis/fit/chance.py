"""Whether a training stayed at the level of guessing: it learned nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from stepladder.diagnosis.fit.curves import Curves
from stepladder.stats import binomial_sem
from stepladder.training.output.wording import percent

MIN_EVALUATIONS = 4
MAX_LOSS_OFF = 0.03  # of ln C: no loss of the training is further from it
_MAX_FIRST_OFF = 0.15  # above ln C: a mean over the first epoch, which began with random outputs
_MAX_OFF = 0.03  # of an accuracy from 1 / C, at most
_MAX_OFF_SHARE = 0.25  # and of 1 / C
_CLEAR = 2.5  # standard errors
_AGREES = 1e-3  # share of a loss
_USUAL = (2, 3, 4, 5, 10, 20, 100, 1000)  # classes
_MAX_LOSS_OFF_ALONE = 0.01  # of ln C: without an accuracy


@dataclass(frozen=True, kw_only=True)
class Chance:
    """The level of guessing.

    Attributes:
        num_classes: of equal size.
    """

    num_classes: int

    @property
    def accuracy(self) -> float:
        """The accuracy of guessing."""
        return 1 / self.num_classes

    @property
    def said(self) -> str:
        """The level in words."""
        loss = math.log(self.num_classes)
        return (
            f"the losses stay at ln {self.num_classes} = {loss:.4g} and the accuracies at "
            f"{percent(self.accuracy)}, those of guessing among {self.num_classes} classes"
        )


def at_chance(curves: Curves) -> Chance | None:
    """Return the level of guessing if a training stayed there throughout, else None.

    All losses are near ln C, and the mean accuracy is near 1 / C for the same C: an accuracy alone
    may be that by coincidence. The first training loss may be higher.
    """
    points = curves.points
    losses = [v for p in points for v in (p.train_loss, p.val_loss) if v is not None]
    held_out = [p.val_accuracy for p in points if p.val_accuracy is not None]
    trained = [p.train_accuracy for p in points if p.train_accuracy is not None]
    if len(held_out) < MIN_EVALUATIONS or not losses or not all(map(math.isfinite, losses)):
        return None
    typical = median(losses)
    if not 0 < typical < math.log(1e6):
        return None
    num = curves.num_classes or _num_classes(typical, fmean(held_out))
    if num < 2:
        return None
    guess = math.log(num)
    first = points[0].train_loss
    if len(losses) > 1 and first is not None and guess < first < (1 + _MAX_FIRST_OFF) * guess:
        losses.remove(first)
    if max(abs(loss - guess) for loss in losses) > MAX_LOSS_OFF * guess:
        return None
    is_near = _is_near(held_out, num, curves.num_val) and _is_near(trained, num, None)
    return Chance(num_classes=num) if is_near else None


def named_guess(curves: Curves) -> str:
    """Return the number of classes whose guessing gives the losses of a log without accuracies.

    Empty unless all are near ln C, for one of the usual C, and hardly change.
    """
    points = curves.points
    losses = [v for p in points for v in (p.train_loss, p.val_loss) if v is not None]
    has_metric = any(p.val_accuracy is not None or p.train_accuracy is not None for p in points)
    if has_metric or len(losses) < 2 * MIN_EVALUATIONS or not all(map(math.isfinite, losses)):
        return ""
    for num in _USUAL:
        guess = math.log(num)
        if all(abs(loss - guess) <= _MAX_LOSS_OFF_ALONE * guess for loss in losses[1:]):
            return (
                f"if the loss is a cross-entropy of {num} classes, it stays that of guessing, "
                f"ln {num} = {guess:.4g}"
            )
    return ""


def _num_classes(loss: float, accuracy: float) -> int:
    """Return the number of classes whose guessing gives a loss; by the accuracy, if both agree."""
    by_accuracy = round(1 / accuracy) if accuracy > 0 else 0
    if by_accuracy > 1 and abs(math.log(by_accuracy) - loss) <= _AGREES * loss:
        return by_accuracy
    return round(math.exp(loss))


def _is_near(shares: Sequence[float], num_classes: int, num_examples: int | None) -> bool:
    """Return whether the mean of some accuracies is that of guessing."""
    if not shares:
        return True
    chance = 1 / num_classes
    most = min(_MAX_OFF, _MAX_OFF_SHARE * chance)
    if num_examples:
        most = max(most, _CLEAR * binomial_sem(chance, num_examples))
    return abs(fmean(shares) - chance) <= most

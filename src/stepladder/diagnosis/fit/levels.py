"""Training error, and how much higher the validation error is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from stepladder.diagnosis.fit.curves import Curves, Point
from stepladder.records.files import Json
from stepladder.training.output.wording import percent

GAP_NOISE = 2.0


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Errors at the end of training.

    Attributes:
        train_error, val_error: error rates, in [0, 1]; None if unknown.
        train_loss, val_loss: mean losses; None if unknown.
        guess_loss: loss of guessing: ln C, or else the first training loss that was logged.
        is_guess_assumed: whether it is the latter.
        is_equal: training was measured under the terms of validation.
        target_error: share of examples that cannot be predicted correctly.
        floor: standard error of the validation error; None if unknown.
    """

    train_error: float | None = None
    val_error: float | None = None
    train_loss: float | None = None
    val_loss: float | None = None
    guess_loss: float | None = None
    is_guess_assumed: bool = False
    is_equal: bool = False
    target_error: float = 0.0
    floor: float | None = None

    @property
    def is_known(self) -> bool:
        """Return whether anything is known about training."""
        return self.train_error is not None or self._train_share() is not None

    @property
    def is_gap_larger(self) -> bool:
        """Return whether the gap to validation is larger than the training error.

        Only the part of the gap that exceeds its noise counts.
        """
        if self.train_error is not None and self.val_error is not None:
            noise = GAP_NOISE * (self.floor or 0.0)
            gap = self.val_error - self.train_error
            return gap > max(noise, self.train_error - self.target_error)
        if self.train_loss is not None and self.val_loss is not None:
            return self.val_loss - self.train_loss > self.train_loss
        return False

    @property
    def has_gap(self) -> bool:
        """Return whether validation is worse than training by more than chance."""
        if self.train_error is not None and self.val_error is not None:
            return self.val_error - self.train_error > GAP_NOISE * (self.floor or 0.0)
        if self.train_loss is not None and self.val_loss is not None:
            return self.val_loss > 1.5 * self.train_loss
        return False

    def is_training_poor(self, min_error: float, min_share: float) -> bool:
        """Return True if much of the training data is not learned: by error, else by loss."""
        if self.train_error is not None:
            return self.train_error - self.target_error > min_error
        share = self._train_share()
        return share is not None and share > min_share

    def sentences(self) -> tuple[str, ...]:
        """Return the levels as a sentence, with their terms."""
        terms = "in eval mode, without augmentation" if self.is_equal else "as logged"
        if self.train_error is not None:
            said = f"training error {percent(self.train_error)} ({terms})"
            if self.val_error is not None:
                said += f", validation error {percent(self.val_error)}"
                said += f" ± {percent(self.floor)}" if self.floor is not None else ""
            return (said,)
        if self.train_loss is None:
            return ()
        said = f"training loss {self.train_loss:.4g} ({terms})"
        if self.guess_loss is not None:
            what = "first logged loss" if self.is_guess_assumed else "loss of guessing"
            said += f", {what} {self.guess_loss:.4g}"
        if self.val_loss is not None:
            said += f", validation loss {self.val_loss:.4g}"
        return (said,)

    def numbers(self) -> dict[str, Json]:
        """Return the levels by name."""
        return {
            "train_error": self.train_error,
            "val_error": self.val_error,
            "train_loss": self.train_loss,
            "val_loss": self.val_loss,
            "guess_loss": self.guess_loss,
            "is_equal": self.is_equal,
            "target_error": self.target_error,
        }

    def _train_share(self) -> float | None:
        if self.train_loss is None or not self.guess_loss or self.guess_loss <= 0:
            return None
        return self.train_loss / self.guess_loss


def levels_of(curves: Curves) -> Levels:
    """Return the errors at the end of the curves.

    A training value as logged is averaged over the epoch, when the weights were worse, as of half
    an epoch earlier; it is compared with the mean of the validations before and after.
    """
    guess, is_assumed = guess_loss(curves)
    equal = _equal(curves)
    found = equal if equal is not None else _as_logged(curves)
    return Levels(
        **found,
        guess_loss=guess,
        is_guess_assumed=is_assumed,
        is_equal=equal is not None,
        target_error=curves.target_error,
        floor=curves.accuracy_floor(),
    )


def guess_loss(curves: Curves) -> tuple[float | None, bool]:
    """Return the loss of a model that guesses, and whether it had to be assumed."""
    if curves.num_classes is not None and curves.num_classes > 1:
        return math.log(curves.num_classes), False
    losses = [loss for _, loss in curves.train_windows]
    losses = losses or [p.train_loss for p in curves.points if p.train_loss is not None]
    return (losses[0], True) if losses and losses[0] > 0 else (None, True)


def _equal(curves: Curves) -> dict[str, float | None] | None:
    points = [
        p
        for p in curves.points
        if p.equal_train_loss is not None or p.equal_train_accuracy is not None
    ]
    if not points:
        return None
    last = points[-1]
    return {
        "train_error": _error(last.equal_train_accuracy),
        "val_error": _error(last.val_accuracy),
        "train_loss": last.equal_train_loss,
        "val_loss": last.val_loss,
    }


def _as_logged(curves: Curves) -> dict[str, float | None]:
    return {
        "train_error": _error(_last(curves, lambda p: p.train_accuracy)),
        "val_error": _error(_half_earlier(curves, lambda p: p.val_accuracy)),
        "train_loss": _last(curves, lambda p: p.train_loss),
        "val_loss": _half_earlier(curves, lambda p: p.val_loss),
    }


def _last(curves: Curves, value: Callable[[Point], float | None]) -> float | None:
    found = [got for point in curves.points if (got := value(point)) is not None]
    return found[-1] if found else None


def _half_earlier(curves: Curves, value: Callable[[Point], float | None]) -> float | None:
    found = [got for point in curves.points if (got := value(point)) is not None]
    return sum(found[-2:]) / len(found[-2:]) if found else None


def _error(accuracy: float | None) -> float | None:
    return None if accuracy is None else 1 - accuracy

"""Training error, and how much higher the validation error is, of the weights that are saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepladder.diagnosis.fit.curves import Curves, Point
from stepladder.records.files import Json
from stepladder.training.output.wording import percent

GAP_NOISE = 2.0
_LIMIT = 0.1  # of the gap between two error rates
_LIMIT_IF_LEARNT = 0.07
_HIGH_TRAIN_ERROR = 0.2
_LEARNT_TRAIN_ERROR = 0.1
_POOR_SHARE = 1 / 3  # of the error of guessing: more left, as logged, is much
_VERY_POOR_SHARE = 0.5
_NEGLIGIBLE = 0.02  # of the loss of guessing
_ABOVE = 1.25  # times validation: less is also the lag of a mean over an epoch


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Errors of the weights that are saved: the best ones, or the last ones.

    Attributes:
        train_error, val_error: error rates, in [0, 1]; None if unknown.
        train_loss, val_loss: mean losses; None if unknown.
        guess_loss: loss of guessing: ln C, or else the first training loss that was logged.
        is_guess_assumed: whether it is the latter.
        is_equal: training was measured under the terms of validation.
        is_val_mean: val_error and val_loss are means of two evaluations.
        target_error: share of examples that cannot be predicted correctly.
        floor: standard error of the validation error; None if unknown.
        loss_floor: standard error of the validation loss; None if unknown.
        metric_error: 1 minus the metric on validation, such as accuracy or F1; None if unknown.
        guess_error: error rate of guessing: 1 - 1 / C, or 1 if the classes are unknown.
        of: whose they are, if not of the last weights: "of the saved weights, of epoch 7".
    """

    train_error: float | None = None
    val_error: float | None = None
    train_loss: float | None = None
    val_loss: float | None = None
    guess_loss: float | None = None
    is_guess_assumed: bool = False
    is_equal: bool = False
    is_val_mean: bool = False
    target_error: float = 0.0
    floor: float | None = None
    loss_floor: float | None = None
    metric_error: float | None = None
    guess_error: float = 1.0
    of: str = ""

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
    def gap(self) -> float | None:
        """The validation error above the training error, or above what nobody can avoid."""
        if self.train_error is None or self.val_error is None:
            return None
        return self.val_error - max(self.train_error, self.target_error)

    @property
    def gap_limit(self) -> float:
        """The gap above which a training is called overfit, in [0, 1].

        It rises with the training error from one published limit to the other, so that trainings
        that are nearly equal are judged alike.

        Source: Zhang et al. 2021, "AutoTrainer: An Automatic DNN Training Problem Detection and
        Repair System": 0.1, and 0.07 for a training accuracy above 0.9.
        """
        train_error = 1.0 if self.train_error is None else self.train_error
        span = _HIGH_TRAIN_ERROR - _LEARNT_TRAIN_ERROR
        share = min(max((train_error - _LEARNT_TRAIN_ERROR) / span, 0.0), 1.0)
        return _LIMIT_IF_LEARNT + share * (_LIMIT - _LIMIT_IF_LEARNT)

    def is_gap_large(self, *, is_clear: bool = False) -> bool:
        """Return True if the gap to validation alone shows overfitting.

        It exceeds its noise, and the published limit. For losses, that of validation is more than
        twice that of training, and the gap is not negligible compared with guessing, nor is the
        metric on validation so high that no training error could be that much lower.

        Args:
            is_clear: by more than the noise.
        """
        gap = self.gap
        if gap is not None:
            noise = GAP_NOISE * (self.floor or 0.0)
            if is_clear:
                return gap - noise > self.gap_limit
            return gap > max(noise, self.gap_limit)
        return self.is_loss_gap_large and not self.is_metric_high

    @property
    def is_metric_high(self) -> bool:
        """Return whether so few validation examples are wrong that a gap must be small."""
        return self.metric_error is not None and self.metric_error <= _LIMIT_IF_LEARNT

    @property
    def is_loss_gap_large(self) -> bool:
        """Return whether the losses alone, without errors of training, show a large gap."""
        if self.train_error is not None or self.train_loss is None or self.val_loss is None:
            return False
        above = self.val_loss - self.train_loss
        noise = GAP_NOISE * (self.loss_floor or 0.0)
        least = _NEGLIGIBLE * (self.guess_loss or 0.0)
        return 0 < self.train_loss < above and above > max(noise, least)

    @property
    def is_training_above(self) -> bool:
        """Return whether training, as logged, is a quarter worse than validation, beyond chance.

        Augmentation, dropout, label smoothing or the mean over an epoch cause that. How well the
        training examples are learned is then unknown, but hardly less well than validation.
        """
        if self.is_equal:
            return False
        if self.train_error is not None and self.val_error is not None:
            noise = GAP_NOISE * (self.floor or 0.0)
            return self.train_error > max(self.val_error + noise, _ABOVE * self.val_error)
        if self.train_error is None and self.train_loss is not None and self.val_loss is not None:
            noise = GAP_NOISE * (self.loss_floor or 0.0)
            return self.train_loss > max(self.val_loss + noise, _ABOVE * self.val_loss)
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
        """Return True if much of the training data is not learned: by error, else by loss.

        The error that a task allows is unknown. On equal terms, `target_error` is used; as
        logged, an error is high only in relation to that of guessing, and a loss only to that of
        guessing if the classes are known. Where training as logged is above validation, validation
        is the bound, and a high metric on it excludes poor training.

        Args:
            min_error: of training on equal terms, above `target_error`.
            min_share: of the loss of guessing.
        """
        if self.is_training_above and self.is_metric_high:
            return False
        error = self.bounded_train_error
        if error is not None:
            least = min_error if self.is_equal else _POOR_SHARE * self.guess_error
            return error - self.target_error > least
        if not self.is_equal and self.is_metric_good:
            return False
        return not self.is_guess_assumed and self.is_loss_left(min_share)

    @property
    def is_metric_good(self) -> bool:
        """Return whether few validation examples are wrong, so that few of training can be."""
        limit = self.target_error + _POOR_SHARE * self.guess_error
        return self.metric_error is not None and self.metric_error <= limit

    @property
    def is_very_poor(self) -> bool:
        """Return whether at least half of the error of guessing is left on training examples."""
        error = self.bounded_train_error
        return error is None or error - self.target_error > _VERY_POOR_SHARE * self.guess_error

    def is_loss_left(self, min_share: float) -> bool:
        """Return True if more than a share of the loss of guessing is left in training."""
        share = self._train_share()
        if share is not None and self.is_training_above and self.val_loss is not None:
            share = min(share, self.val_loss / (self.guess_loss or 1.0))
        return share is not None and share > min_share

    @property
    def bounded_train_error(self) -> float | None:
        """The training error, or that of validation where training as logged is above it."""
        is_bounded = self.train_error is not None and self.is_training_above
        return self.val_error if is_bounded else self.train_error

    def sentences(self) -> tuple[str, ...]:
        """Return the levels as a sentence, with their terms."""
        terms = "in eval mode, without augmentation" if self.is_equal else "as logged"
        terms += self.of and f"; {self.of}"
        if self.train_error is not None:
            said = f"training error {percent(self.train_error)} ({terms})"
            if self.val_error is not None:
                said += f", validation error {percent(self.val_error)}"
                said += f" ± {percent(self.floor)}" if self.floor is not None else ""
                said += self._mean_words()
            return (said,)
        if self.train_loss is None:
            return ()
        said = f"training loss {self.train_loss:.4g} ({terms})"
        if self.guess_loss is not None:
            what = "first logged loss" if self.is_guess_assumed else "loss of guessing"
            said += f", {what} {self.guess_loss:.4g}"
        if self.val_loss is not None:
            said += f", validation loss {self.val_loss:.4g}{self._mean_words()}"
        return (said,)

    def _mean_words(self) -> str:
        if not self.is_val_mean:
            return ""
        return f" (mean of {'that and the one before' if self.of else 'the last two evaluations'})"

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
    """Return the errors of the saved weights: those of the best validation, or of the last one.

    A training value as logged is averaged over the epoch, when the weights were worse, as of half
    an epoch earlier; it is compared with the mean of the validations before and after.
    """
    guess, is_assumed = guess_loss(curves)
    saved = curves.saved()
    points = _until_last_validation(curves.points)
    if saved is not None:
        points = tuple(point for point in points if point.step <= saved.step)
    equal = _equal(points, saved)
    found = equal if equal is not None else _as_logged(points)
    loss_errors = [point.val_loss_sem for point in points if point.val_loss_sem is not None]
    return Levels(
        **found,
        guess_loss=guess,
        is_guess_assumed=is_assumed,
        is_equal=equal is not None,
        is_val_mean=equal is None and _is_mean(points, by_error=found["train_error"] is not None),
        target_error=curves.target_error,
        floor=curves.accuracy_floor(),
        loss_floor=loss_errors[-1] if loss_errors else None,
        metric_error=_error(_half_earlier(points, curves.metric)),
        guess_error=1.0 if not curves.num_classes else 1 - 1 / curves.num_classes,
        of="" if saved is None else f"of the saved weights, of {place(saved.epoch, saved.step)}",
    )


def _until_last_validation(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points without a training after the last validation: it is not compared."""
    last = [
        idx
        for idx, point in enumerate(points)
        if point.val_loss is not None or point.val_accuracy is not None
    ]
    return tuple(points[: last[-1] + 1] if last else points)


def place(epoch: float | None, step: int) -> str:
    """Return where an evaluation is: `epoch 7`, or `step 1,200` if the epoch is unknown."""
    return f"step {step:,}" if epoch is None else f"epoch {epoch:.4g}"


def guess_loss(curves: Curves) -> tuple[float | None, bool]:
    """Return the loss of a model that guesses, and whether it had to be assumed."""
    if curves.num_classes is not None and curves.num_classes > 1:
        return math.log(curves.num_classes), False
    losses = [loss for _, loss in curves.train_windows]
    losses = losses or [p.train_loss for p in curves.points if p.train_loss is not None]
    return (losses[0], True) if losses and losses[0] > 0 else (None, True)


def _equal(points: Sequence[Point], saved: Point | None) -> dict[str, float | None] | None:
    measured = [
        point
        for point in points
        if point.equal_train_loss is not None or point.equal_train_accuracy is not None
    ]
    if not measured or (saved is not None and measured[-1].step != saved.step):
        return None
    last = measured[-1]
    return {
        "train_error": _error(last.equal_train_accuracy),
        "val_error": _error(last.val_accuracy),
        "train_loss": last.equal_train_loss,
        "val_loss": last.val_loss,
    }


def _as_logged(points: Sequence[Point]) -> dict[str, float | None]:
    return {
        "train_error": _error(_last(points, lambda p: p.train_accuracy)),
        "val_error": _error(_half_earlier(points, lambda p: p.val_accuracy)),
        "train_loss": _last(points, lambda p: p.train_loss),
        "val_loss": _half_earlier(points, lambda p: p.val_loss),
    }


def _last(points: Sequence[Point], value: Callable[[Point], float | None]) -> float | None:
    found = [got for point in points if (got := value(point)) is not None]
    return found[-1] if found else None


def _is_mean(points: Sequence[Point], *, by_error: bool) -> bool:
    """Return whether the validation that training is compared with is not a single evaluation."""
    shown = _half_earlier(points, lambda p: p.val_accuracy if by_error else p.val_loss)
    return shown != _last(points, lambda p: p.val_accuracy if by_error else p.val_loss)


def _half_earlier(points: Sequence[Point], value: Callable[[Point], float | None]) -> float | None:
    found = [got for point in points if (got := value(point)) is not None]
    return sum(found[-2:]) / len(found[-2:]) if found else None


def _error(accuracy: float | None) -> float | None:
    return None if accuracy is None else 1 - accuracy

"""Underfitting, good fit, overfitting or unknown: what the curves show, and how certainly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from stepladder.diagnosis.fit.chance import at_chance
from stepladder.diagnosis.fit.curves import MIN_PATIENCE, Curves
from stepladder.diagnosis.fit.high_learning_rate import learning_rate_too_high
from stepladder.diagnosis.fit.levels import Levels, levels_of, place
from stepladder.records.diagnosis import Confidence, Fit, FitKind
from stepladder.records.files import Json
from stepladder.training.output.wording import percent

RISE = 2.0  # times its noise: smaller changes are ignored
CLEAR_RISE = 4.0
MIN_EVALUATIONS = 4  # fewer show neither a trend nor their noise
MIN_TRAIN_ERROR = 0.05  # a higher training error on equal terms is never called a good fit
MIN_TRAIN_SHARE = 0.5  # the same for the loss, as a share of the loss of guessing
MIN_FALL = 0.002  # share by which validation must fall to count as improving
TRAIN_FALL = 0.01  # share by which a training loss of unknown noise must fall
LEARNT_SHARE = 0.02  # of the loss of guessing: the loss can hardly fall further
_OVERCONFIDENT = "the model is overconfident where it is wrong, not wrong more often"


def judge_fit(curves: Curves) -> Fit:
    """Judge how well a model fits its data, from its curves and their noise.

    Overfitting is either of two: validation rose above its minimum by more than twice its noise,
    for `patience` evaluations, or in each of them and at the end by more than that, while training
    continued to improve; or the error of the saved weights on validation exceeds that on training
    by more than its noise and a published limit (`Levels.gap_limit`). A rise after the weights that
    were saved does not concern them: if they have learnt the training data and have no such gap,
    they fit well. A loss that rises while accuracy rises, or stays as high as a gap below the limit
    requires, is overconfidence; so is a gap of losses alone beside such an accuracy. Where another
    metric is judged, such as F1, it takes the place of accuracy. A learning rate that is too high
    looks like underfitting, and is checked first.

    Source: Godbole et al. 2023, "Deep Learning Tuning Playbook", "Is any training run exhibiting
    problematic overfitting?"; Guo et al. 2017, "On Calibration of Modern Neural Networks", 3,
    arXiv:1706.04599.
    """
    seen = _Seen.of(curves)
    for rule in _RULES:
        fit = rule(seen)
        if fit is not None:
            return fit
    confidence = seen.trust(is_far=not seen.is_improving)  # the fit may still change
    said = "validation has not become worse"
    left = seen.left_words()
    confidence = Confidence.WEAK if left else confidence
    if seen.levels.is_training_above:
        said += f"; {seen.above_words()}, which is no sign of underfitting by itself"
    if seen.is_last_worse:
        last, lowest = seen.values[-1], min(seen.values)
        said = (
            f"the last validation {seen.unit} ({seen.say(last)}) is above the lowest "
            f"({seen.say(lowest)}) by more than twice the noise of a difference "
            f"({seen.say(seen.end_limit)}), but the {seen.curves.patience} before it do not show "
            "a trend"
        )
    if seen.levels.is_loss_gap_large and seen.levels.is_metric_high:
        return seen.fit(
            FitKind.GOOD_FIT,
            confidence,
            f"the loss is far higher on validation than on training, but {seen.metric_words()}: "
            f"{_OVERCONFIDENT}",
            is_overconfident=True,
        )
    if seen.rise_after_saved is not None:
        said = f"{seen.rise_after_saved}; the saved weights are from before that"
    return seen.fit(FitKind.GOOD_FIT, confidence, said, *seen.small_gap_words(), *left)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """The numbers that all rules use.

    Attributes:
        values, course: what is judged, lower is better, raw and smoothed.
        best: index of the minimum of the course, for trends; the best validation itself is that of
            the run (`Curves.best`).
        noise: of a difference between two evaluations; None if unknown.
        levels: errors of training and validation, of the saved weights.
    """

    curves: Curves
    values: list[float]
    course: list[float]
    best: int
    noise: float | None
    levels: Levels

    @classmethod
    def of(cls, curves: Curves) -> _Seen:
        values, course = curves.values(), curves.course()
        best = min(range(len(course)), key=course.__getitem__, default=0)
        return cls(
            curves=curves,
            values=values,
            course=course,
            best=best,
            noise=curves.noise(),
            levels=levels_of(curves),
        )

    @property
    def rise(self) -> float:
        """Return by how much the last evaluations all exceed the minimum, at least."""
        after = self.course[self.best + 1 :]
        if len(after) < self.curves.patience:
            return 0.0
        return min(after[-self.curves.patience :]) - self.course[self.best]

    @property
    def is_improving(self) -> bool:
        """Return whether the last evaluations are below the earlier ones by more than the noise.

        Both their mean and their minimum are compared: one value of a steep start raises a mean.
        """
        # in a short curve more of them would include its steep start
        k = min(self.curves.patience, max(2, len(self.values) // 3), len(self.values) // 2)
        if k < 1 or self.noise is None or self.best < len(self.course) - 2:
            return False
        late, early = self.values[-k:], self.values[-2 * k : -k]
        fall = min((sum(early) - sum(late)) / k, min(early) - min(late))
        # the same examples each time: averaging over evaluations does not reduce that noise
        least = max(RISE * self.noise, MIN_FALL * abs(sum(early)) / k)
        return bool(fall > least)

    @property
    def may_not_be_poor(self) -> bool:
        """Return whether few evaluations are not enough to show that training is poor at its end.

        They are incomplete, or are compared with the first training loss: an average over an epoch
        in which much was already learned.
        """
        curves, levels = self.curves, self.levels
        is_assumed = levels.train_error is None and levels.is_guess_assumed
        return curves.is_running or not curves.is_whole or is_assumed

    @property
    def end_limit(self) -> float:
        """Return by how much the last evaluation may exceed the lowest by chance: twice the noise.

        Both are single evaluations; the minimum of the course is a mean of some.
        """
        return RISE * math.sqrt(2) * (self.noise or 0.0)

    @property
    def is_last_worse(self) -> bool:
        """Return whether the last evaluation exceeds the lowest by more than the noise."""
        is_known = self.noise is not None and bool(self.values)
        return is_known and self.values[-1] - min(self.values) > self.end_limit

    @property
    def is_climbing(self) -> bool:
        """Return whether validation rose in each of the last evaluations, beyond the noise.

        Of curves without a trend but with independent noise, at most 2.5 % do so.
        """
        k = self.curves.patience
        after = self.values[self.lowest :]
        if len(after) <= k or not self.is_last_worse:
            return False
        return all(earlier < later for earlier, later in pairwise(after[-k - 1 :]))

    @property
    def lowest(self) -> int:
        """Return the index of the lowest value, not smoothed."""
        return min(range(len(self.values)), key=self.values.__getitem__, default=0)

    @property
    def is_level_high(self) -> bool:
        """Return whether all of the last evaluations are above the minimum by more than noise."""
        return self.noise is not None and self.rise > RISE * self.noise

    @property
    def has_risen(self) -> bool:
        """Return whether validation rose after its minimum by more than the noise."""
        return self.is_level_high or self.is_climbing

    @property
    def rise_after_saved(self) -> str | None:
        """Return how validation rose after the weights that were saved; None: it did not."""
        return self.rise_words() if self.has_risen and self.curves.saved() is not None else None

    def rise_words(self) -> str:
        """Describe the rise, after the best validation."""
        best = self.curves.best()
        assert best is not None
        if not self.is_level_high:
            return (
                f"validation {self.unit} rose after {place(best.epoch, best.step)}: in each of its "
                f"last {self.curves.patience} evaluations, to {self.say(self.values[-1])} from "
                f"{self.say(self.values[self.lowest])}; twice the noise of a difference is "
                f"{self.say(self.end_limit)}"
            )
        lowest, smooth = self.say(min(self.values)), self.say(self.course[self.best])
        if lowest != smooth:
            lowest += f"; {smooth} smoothed, as they are"
        return (
            f"validation {self.unit} rose after {place(best.epoch, best.step)}: its last "
            f"{self.curves.patience} evaluations are {self.say(self.rise)} or more above its "
            f"lowest ({lowest}); twice the noise is {self.say(RISE * (self.noise or 0.0))}"
        )

    @property
    def is_poor(self) -> bool:
        """Return whether much of the training data is not learned."""
        return self.levels.is_training_poor(MIN_TRAIN_ERROR, MIN_TRAIN_SHARE)

    @property
    def is_gap_named(self) -> bool:
        """Return whether the gap to validation is large; where training is poor, the larger part.

        Where both are high, the larger part is named. A training error as logged that is not very
        high may be that of the task: the gap is named.
        """
        levels = self.levels
        if not self.is_poor or not (levels.is_equal or levels.is_very_poor):
            return levels.is_gap_large()
        return levels.is_gap_larger and levels.has_gap

    @property
    def metric_name(self) -> str:
        """Return the name of the metric beside the loss."""
        return self.curves.score_name or "accuracy"

    def metric_words(self) -> str:
        """Return the metric on validation at the end, in words."""
        error = self.levels.metric_error
        return "" if error is None else f"{self.metric_name} on validation is {percent(1 - error)}"

    def above_words(self) -> str:
        """Describe a training that is, as logged, worse than validation."""
        what = "loss" if self.levels.train_error is None else "error"
        return (
            f"the training {what} as logged is above that of validation, as with augmentation, "
            "dropout or label smoothing in training only, or as a mean over the epoch"
        )

    def small_gap_words(self) -> tuple[str, ...]:
        """Describe a gap to validation that exceeds its noise but is not called overfitting."""
        levels = self.levels
        if levels.gap is None or not levels.has_gap or levels.gap < 0.5 * levels.gap_limit:
            return ()
        return (
            f"the gap between training and validation, {100 * levels.gap:.1f} points, is below the "
            f"{100 * levels.gap_limit:.2g} from which on it is called overfitting",
        )

    def left_words(self) -> tuple[str, ...]:
        """Describe a training error as logged that may be too high, or that of the task."""
        levels = self.levels
        error = levels.bounded_train_error
        if error is None or levels.is_equal or levels.is_training_above:
            return ()
        if error - levels.target_error <= MIN_TRAIN_ERROR:
            return ()
        return (
            "a log does not show whether a larger model or other learning rates could lower the "
            "training error",
        )

    @property
    def unit(self) -> str:
        return "loss" if self.curves.has_loss else "error"

    def say(self, value: float) -> str:
        return f"{value:.4g}" if self.curves.has_loss else percent(value)

    def trust(self, *, is_far: bool) -> Confidence:
        """Return the confidence in a statement: from its terms, and its distance from the noise."""
        if not self.levels.is_known or self.noise is None or len(self.values) < MIN_EVALUATIONS:
            return Confidence.WEAK
        return Confidence.SURE if is_far and self.levels.is_equal else Confidence.LIKELY

    def fit(self, kind: FitKind, confidence: Confidence, *evidence: str, **flags: bool) -> Fit:
        points, best = self.curves.judged(), self.curves.best()
        is_named = self.has_risen or self.levels.of
        said = list(evidence)
        if best is not None and best.step != points[-1].step and not is_named:
            what = "best validation"
            if self.curves.has_loss and self.curves.best_step is None:
                what = "lowest validation loss"
            said.append(f"its {what} was at {place(best.epoch, best.step)}")
        is_improving = self.is_improving
        is_lowest = is_improving and self.values[-1] == min(self.values)
        if is_lowest and kind is not FitKind.NOT_YET_KNOWN:
            said.append(f"validation {self.unit} was still falling at the end")
        return Fit(
            kind=kind,
            confidence=confidence,
            is_still_improving=is_improving,
            best_step=best.step if best else None,
            best_epoch=best.epoch if best else None,
            evidence=tuple(said) + self.levels.sentences(),
            numbers=self._numbers(),
            **flags,
        )

    def _numbers(self) -> dict[str, Json]:
        numbers: dict[str, Json] = {
            "num_evaluations": len(self.values),
            "noise": self.noise,
            "patience": self.curves.patience,
            "num_val": self.curves.num_val,
            "accuracy_floor": self.curves.accuracy_floor(),
        }
        if self.values:
            numbers |= {"best": self.course[self.best], "last": self.values[-1], "rise": self.rise}
        return numbers | self.levels.numbers()


def _not_finite(seen: _Seen) -> Fit | None:
    if not seen.curves.is_diverged:
        return None
    if seen.curves.diverged_step == 0:
        said = (
            "the loss was not finite before the first step: an input, a target or the loss itself "
        )
        said += "is broken, and no learning rate fixes that"
        return seen.fit(FitKind.NOT_YET_KNOWN, Confidence.LIKELY, said)
    said = "the loss became non-finite: the learning rate is too high, or an input is broken"
    return seen.fit(FitKind.NOT_YET_KNOWN, Confidence.LIKELY, said, is_learning_rate_too_high=True)


def _too_high(seen: _Seen) -> Fit | None:
    sign = learning_rate_too_high(seen.curves)
    if sign is None:
        return None
    confidence = Confidence.LIKELY if sign.is_clear else Confidence.WEAK
    return seen.fit(FitKind.UNDERFIT, confidence, sign.said, is_learning_rate_too_high=True)


def _learned_nothing(seen: _Seen) -> Fit | None:
    chance = at_chance(seen.curves)
    if chance is None:
        return None
    said = f"the model learned nothing: {chance.said}"
    return replace(
        seen.fit(FitKind.UNDERFIT, Confidence.LIKELY, said),
        is_still_improving=False,
        best_step=None,
        best_epoch=None,
        evidence=(said, *seen.levels.sentences()),
    )


def _no_validation(seen: _Seen) -> Fit | None:
    if seen.values:
        return None
    said = "there is no validation data: overfitting cannot be detected"
    if seen.levels.is_training_poor(MIN_TRAIN_ERROR, MIN_TRAIN_SHARE):
        return seen.fit(FitKind.UNDERFIT, Confidence.WEAK, said)
    return seen.fit(FitKind.NOT_YET_KNOWN, Confidence.WEAK, said)


def _overfit(seen: _Seen) -> Fit | None:
    if seen.noise is None or not seen.has_risen:
        return None
    fall, rose = _training_fall(seen), seen.rise_words()
    if fall is None:
        said = "the cause is unknown: it is not known whether training continued to improve"
        return seen.fit(FitKind.NOT_YET_KNOWN, Confidence.WEAK, rose, said)
    if not fall.is_falling:
        return _no_fall(seen, rose, fall)
    accuracy = _accuracy_change(seen)
    is_sure = accuracy is not None and accuracy.is_rising
    is_high = accuracy is not None and not accuracy.is_falling and seen.levels.is_metric_high
    is_right = accuracy is not None and (accuracy.is_still_rising or is_high)
    if accuracy is not None and is_right and not seen.levels.is_gap_large():
        said = f"{accuracy.said}: {_OVERCONFIDENT}"
        confidence = seen.trust(is_far=accuracy.is_clear)
        return seen.fit(FitKind.GOOD_FIT, confidence, rose, fall.said, said, is_overconfident=True)
    if _is_saved_before(seen):
        return None
    said_all = (rose, fall.said, *((accuracy.said,) if accuracy else ()))
    if is_sure:
        said_all += ("it is overconfident, too: accuracy rose while the loss rose",)
    is_far = seen.rise > CLEAR_RISE * seen.noise
    confidence = seen.trust(is_far=is_far)
    return seen.fit(FitKind.OVERFIT, confidence, *said_all, is_overconfident=is_sure)


def _no_fall(seen: _Seen, rose: str, fall: _Change) -> Fit | None:
    """Judge a rise of validation while training did not improve; a large gap is named later."""
    if not fall.is_rising and seen.is_gap_named:
        return None
    said = f"{fall.said}: this is not overfitting, but training that became unstable"
    return seen.fit(FitKind.NOT_YET_KNOWN, Confidence.LIKELY, rose, said)


def _is_saved_before(seen: _Seen) -> bool:
    """Return whether the saved weights fit well, as those of a later epoch no longer would."""
    levels = seen.levels
    return (
        seen.curves.saved() is not None
        and levels.is_known
        and not levels.is_training_poor(MIN_TRAIN_ERROR, MIN_TRAIN_SHARE)
        and not levels.is_gap_large()
    )


def _underfit(seen: _Seen) -> Fit | None:
    levels = seen.levels
    if not levels.is_training_poor(MIN_TRAIN_ERROR, MIN_TRAIN_SHARE):
        return None
    is_past_best = seen.best < len(seen.values) - 1 - MIN_PATIENCE
    if levels.is_gap_larger or seen.is_gap_named or (levels.has_gap and is_past_best):
        return None  # more training would widen the gap
    if levels.is_training_above:
        return None  # not known to be poor
    if len(seen.values) < MIN_EVALUATIONS and seen.may_not_be_poor:
        return None  # too few evaluations
    if seen.curves.is_running and seen.is_improving:
        said = "training is poor so far, and has not ended"
        return seen.fit(FitKind.NOT_YET_KNOWN, Confidence.WEAK, said)
    if levels.train_error is None:
        what = "the first one that was logged" if levels.is_guess_assumed else "that of guessing"
        said = f"the training loss is still more than half of {what}, and validation's is "
        said += "higher" if levels.has_gap else "not much higher"
    else:
        said = "it is wrong on many training examples"
        said += ", and on more" if levels.has_gap else ", and on about as many"
        said += " validation examples"
    confidence = seen.trust(is_far=not levels.has_gap)
    if not levels.is_equal and not levels.is_very_poor:
        confidence = Confidence.WEAK
    return seen.fit(FitKind.UNDERFIT, confidence, said)


def _too_few(seen: _Seen) -> Fit | None:
    n = len(seen.values)
    if n < MIN_EVALUATIONS:
        num = sum(not point.is_remeasured for point in seen.curves.judged())
        said = f"{num} evaluation{' shows' if num == 1 else 's show'} no trend: 4 or more do"
    elif seen.noise is None:
        said = "the noise of validation is unknown: pass the number of validation examples"
    elif seen.curves.is_running and seen.is_improving:
        said = f"validation {seen.unit} is still falling, and training has not ended"
    elif not seen.levels.is_known:
        said = "the training accuracy is unknown"
    else:
        return None
    return seen.fit(FitKind.NOT_YET_KNOWN, Confidence.WEAK, said)


def _large_gap(seen: _Seen) -> Fit | None:
    """Judge the saved weights by how much worse they are on validation than on training."""
    levels, is_poor = seen.levels, seen.is_poor
    if not seen.is_gap_named:
        return None
    # a third-party log does not record which weights were saved
    of = "of the saved weights" if levels.of else "at the end"
    said = f"the loss {of} is far higher on validation than on training"
    if not levels.is_equal:
        said += (
            ", if both are the same loss (not with label smoothing, mixup, class weights or a sum "
            "over batches in only one of them)"
        )
    if levels.gap is not None:
        limit = "that is the larger part of it"
        if not is_poor or not levels.is_gap_larger:
            limit = f"more than {100 * levels.gap_limit:.2g} is overfitting"
        said = (
            f"the error {of} is {100 * levels.gap:.1f} percentage points higher on "
            f"validation than on training: {limit}"
        )
    is_far = not is_poor and levels.is_gap_large(is_clear=True)
    return seen.fit(FitKind.OVERFIT, seen.trust(is_far=is_far), said)


def _poor(seen: _Seen) -> Fit | None:
    """Never call a high training error a good fit; validation was at its best long before."""
    if not seen.is_poor:
        return _unknown_share(seen)
    if seen.levels.is_training_above:
        said = (
            f"{seen.above_words()}: it does not show how well the training examples are learned. "
            "Evaluate some of them in eval mode, without augmentation"
        )
        return seen.fit(FitKind.NOT_YET_KNOWN, Confidence.WEAK, said)
    said = "it is wrong on many training examples and on more validation examples"
    if seen.levels.train_error is None:
        said = "the training loss is still high, and validation's is higher"
    said += ", and training longer would only widen that gap"
    return seen.fit(FitKind.UNDERFIT, seen.trust(is_far=False), said, is_past_best=True)


def _unknown_share(seen: _Seen) -> Fit | None:
    """Judge a training loss without the loss of guessing and without a metric on validation.

    More than half of the first loss that was logged is much, or little: it may be that of a
    pretrained model, or of a task such as language, whose loss has a floor.
    """
    levels = seen.levels
    is_bounded = levels.is_metric_good or levels.is_training_above
    if levels.train_error is not None or not levels.is_guess_assumed or is_bounded:
        return None
    if not levels.is_loss_left(MIN_TRAIN_SHARE):
        return None
    said = (
        "validation has not become worse, but the training loss is still more than half of the "
        "first one that was logged, and the log does not show how low it could be"
    )
    return seen.fit(FitKind.NOT_YET_KNOWN, Confidence.WEAK, said)


_RULES: tuple[Callable[[_Seen], Fit | None], ...] = (
    _not_finite,
    _too_high,
    _learned_nothing,
    _no_validation,
    _overfit,
    _underfit,
    _too_few,
    _large_gap,
    _poor,
)


@dataclass(frozen=True, kw_only=True)
class _Change:
    """The change of a second curve between the best evaluation and the end."""

    said: str
    is_falling: bool = False
    is_rising: bool = False
    is_still_rising: bool = False
    is_clear: bool = False


def _training_fall(seen: _Seen) -> _Change | None:
    """Compare the training loss at validation's best with that at the end; None if unknown."""
    points = seen.curves.judged()
    best = seen.best if seen.is_level_high else seen.lowest
    after = points[best:]
    for name, terms in (("equal_train_loss", "on equal terms"), ("train_loss", "as logged")):
        losses = [value for point in after if (value := getattr(point, name)) is not None]
        if len(losses) < 2:
            continue
        first, last = losses[0], sum(losses[-2:]) / 2 if len(losses) > 3 else losses[-1]
        guess = seen.levels.guess_loss
        is_learnt = guess is not None and last < LEARNT_SHARE * guess
        is_falling = last < first * (1 - TRAIN_FALL) if first > 0 else last < first
        went = "fell" if last < first else "went"
        said = f"training loss ({terms}) {went} from {first:.4g} to {last:.4g} meanwhile"
        is_rising = last > first * (1 + TRAIN_FALL) and not is_learnt
        return _Change(said=said, is_falling=is_falling or is_learnt, is_rising=is_rising)
    if not seen.curves.has_loss:
        shares = [p.train_accuracy for p in after if p.train_accuracy is not None]
        if len(shares) >= 2:
            said = f"training accuracy went from {percent(shares[0])} to {percent(shares[-1])}"
            return _Change(said=said, is_falling=shares[-1] >= shares[0])
    return None


def _accuracy_change(seen: _Seen) -> _Change | None:
    """Compare the metric at the end with that near the minimum of the loss; None if unknown."""
    if not seen.curves.has_loss:
        return None
    points, curves = seen.curves.judged(), seen.curves
    k = curves.patience
    then = _known([curves.metric(p) for p in points[max(0, seen.best - 1) : seen.best + 2]])
    now = _known([curves.metric(p) for p in points[-k:]])
    if not then or not now:
        return None
    change = fmean(now) - fmean(then)
    first, last = percent(fmean(then)), percent(fmean(now))
    if first == last:  # less than what is printed is neither a rise nor a fall
        return _Change(said=f"{seen.metric_name} stayed at {last} meanwhile")
    floor = None if curves.score_name else curves.accuracy_floor()
    size = f" (one standard error of an accuracy is {percent(floor)})" if floor else ""
    said = f"{seen.metric_name} went from {first} to {last} meanwhile{size}"
    noise = max(curves.metric_noise() or 0.0, 1e-9)  # less on the same examples
    after = _known([curves.metric(p) for p in points[seen.best + 1 :]])
    third = max(1, len(after) // 3)
    is_higher = change > noise
    since = sum(after[-third:]) / third - sum(after[:third]) / third
    return _Change(
        said=said,
        is_falling=change < -noise,
        is_rising=is_higher,
        is_still_rising=is_higher and since > noise,
        is_clear=change > RISE * noise,
    )


def _known(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]

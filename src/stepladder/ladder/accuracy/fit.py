"""How well a recipe fits: its training error, and the generalisation gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import Final

import numpy as np

from stepladder.ladder.limits.guard import TrialFailed
from stepladder.ladder.summary.wording import loss_decimals
from stepladder.records.climb import FitErrors
from stepladder.records.ladder import Outcome
from stepladder.rungs.contract import Against, Rung
from stepladder.stats import binomial_sem, mean_estimate, t_quantile

_CONFIDENCE: Final = 0.95
_Z: Final = NormalDist().inv_cdf(_CONFIDENCE)
_MIN_PAIRS: Final = 2


def fit_errors(outcomes: Sequence[Outcome], *, target: float = 0.0) -> FitErrors:
    """Measure training and held-out error, from trainings that were evaluated on both.

    As fractions of examples; without classes, as losses. Each has the larger of two standard
    errors: that over the examples, and that over the trainings.

    Args:
        target: lowest error that can be reached.

    Raises:
        TrialFailed: if no training was evaluated on both.
    """
    found = [one for one in outcomes if one.why_not is None and one.rows]
    if not found:
        failed = next((one.why_not for one in outcomes if one.why_not), None)
        raise TrialFailed(
            failed
            or "there are no held-out examples (no validation split) on which to compare models"
        )
    has_classes = all(one.hits is not None for one in found)
    learnt = [_learnt(one, has_classes=has_classes) for one in found]
    training = [value for value in learnt if value is not None]
    if len(training) < len(found):
        raise TrialFailed("the error on training examples was not measured")
    held_out = [_held_out(one, has_classes=has_classes) for one in found]
    num = len({row for one in found for row in one.rows})
    training_sem, held_out_sem = (
        max(_sem_of_trainings(values), _sem_of_examples(values, found, num, is_share=has_classes))
        for values in (training, held_out)
    )
    return FitErrors(
        training=fmean(training),
        held_out=fmean(held_out),
        training_sem=training_sem,
        gap_sem=math.hypot(training_sem, held_out_sem),
        target=target,
        num_held_out=num,
        is_loss=not has_classes,
    )


def larger_part(fit: FitErrors) -> Against | None:
    """Return the larger part of the held-out error; None: neither is above its noise.

    The parts are the training error above the target, and the generalisation gap.

    Source: Ng 2018, "Machine Learning Yearning", 20 to 27 (avoidable bias and variance).
    """
    excess, gap = fit.training - fit.target, fit.held_out - fit.training
    if excess <= _Z * fit.training_sem and gap <= _Z * fit.gap_sem:
        return None
    return Against.TRAINING if excess >= gap else Against.GAP


def why_not_by_fit(rung: Rung, fit: FitErrors) -> str | None:
    """Return why a rung is no remedy for this fit, or None.

    If the training error is the larger part, neither regularisation nor more data lowers it.
    """
    part, words = larger_part(fit), fit_words(fit)
    if part is None:
        return f"no error above the noise: {words}"
    if rung.against is None or rung.against is part:
        return None
    if part is Against.TRAINING:
        return f"the training error is the larger part, and this does not lower it: {words}"
    return f"the training error is the smaller part: {words}"


def fit_words(fit: FitErrors) -> str:
    """Return both errors: `12.0 % on training examples, 31.4 % held out`."""
    training, held_out = error_words(fit, fit.training), error_words(fit, fit.held_out)
    return f"{training} on training examples, {held_out} held out"


def error_words(fit: FitErrors, value: float) -> str:
    """Format one error of a fit: `12.0 %`, or `a loss of 0.412`."""
    if fit.is_loss:
        return f"a loss of {value:.{loss_decimals(fit.held_out)}f}"
    return f"{100 * value:.1f} %"


def learns_more(before: Sequence[Outcome], after: Sequence[Outcome]) -> bool:
    """Return True if the training error falls by more than the noise between trainings.

    Uses the one-sided 95 % t bound on the mean difference, paired by seed and fold.
    """
    of = {(one.seed, one.fold): one for one in before if one.why_not is None}
    pairs = [(of[one.seed, one.fold], one) for one in after if (one.seed, one.fold) in of]
    falls: list[float] = []
    for old, new in pairs:
        has_classes = old.train_accuracy is not None and new.train_accuracy is not None
        values = [_learnt(one, has_classes=has_classes) for one in (old, new)]
        if new.why_not is not None or values[0] is None or values[1] is None:
            return False
        falls.append(values[0] - values[1])
    if len(falls) < _MIN_PAIRS:
        return False
    change = mean_estimate(falls)
    return change.mean - t_quantile(_CONFIDENCE, len(falls) - 1) * change.sem > 0


def _learnt(outcome: Outcome, *, has_classes: bool) -> float | None:
    if not has_classes:
        return outcome.train_loss
    return None if outcome.train_accuracy is None else 1 - outcome.train_accuracy


def _held_out(outcome: Outcome, *, has_classes: bool) -> float:
    if has_classes and outcome.hits is not None:
        return 1 - fmean(outcome.hits)
    return fmean(outcome.losses)


def _sem_of_trainings(values: Sequence[float]) -> float:
    return mean_estimate(values).sem if len(values) > 1 else 0.0


def _sem_of_examples(
    values: Sequence[float], outcomes: Sequence[Outcome], num: int, *, is_share: bool
) -> float:
    """Return the standard error over examples; a training loss is assumed to spread as held out."""
    if is_share:
        return binomial_sem(fmean(values), num)
    losses = np.concatenate([np.asarray(one.losses) for one in outcomes])
    return float(losses.std()) / math.sqrt(num)

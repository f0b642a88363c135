"""How well a logged model fits, in words, with advice that agrees with the other findings."""

from __future__ import annotations

from dataclasses import replace

from stepladder.diagnosis.audit.divergence import a_tenth, rates_in
from stepladder.diagnosis.audit.length import is_improving, is_past_best
from stepladder.diagnosis.audit.series import Series
from stepladder.diagnosis.fit.chance import Chance, named_guess
from stepladder.diagnosis.fit.curves import Curves
from stepladder.records.audit import RunLog
from stepladder.records.diagnosis import Confidence, Fit, FitKind
from stepladder.records.findings import Finding, Outcome
from stepladder.training.output.wording import percent

_FIT_WORDS = {
    FitKind.UNDERFIT: "underfit",
    FitKind.GOOD_FIT: "good fit",
    FitKind.OVERFIT: "overfit",
    FitKind.NOT_YET_KNOWN: "not yet known",
}
_FIT_FIXES = {  # of a training that was still improving, that was past its best, of any other one
    FitKind.UNDERFIT: (
        "Train longer. If that is not enough, try other learning rates or a larger model.",
        "Do not train longer: keep the best weights, and try other learning rates or a larger "
        "model.",
        "Try other learning rates or a larger model.",
    ),
    FitKind.OVERFIT: (
        "Add data, augmentation, dropout or weight decay.",
        "Stop earlier, or add data, augmentation, dropout or weight decay.",
        "Stop earlier, or add data, augmentation, dropout or weight decay.",
    ),
}


def fit_finding(fit: Fit, length: Finding | None) -> Finding:
    """Return how well the model fits; the advice agrees with that on the length of training."""
    is_so_far = fit.kind is FitKind.GOOD_FIT and length is not None and is_improving(length)
    is_bad = fit.kind in _FIT_FIXES and not fit.is_learning_rate_too_high
    outcomes = {FitKind.GOOD_FIT: Outcome.PASSED, FitKind.NOT_YET_KNOWN: Outcome.COULD_NOT_RUN}
    word = _FIT_WORDS[fit.kind] + (" so far" if is_so_far else "")
    said = "; ".join((word, *fit.evidence))
    return Finding(
        check="fit",
        outcome=outcomes.get(fit.kind, Outcome.WARNED),
        evidence=said,
        fix=_fit_fix(fit, length) if is_bad else "",
        numbers={"kind": fit.kind.value, "confidence": fit.confidence.value},
    )


def fit_at_chance(fit: Fit, log: RunLog) -> Finding:
    """Return that a model learned nothing, with the learning rates that did not help."""
    rates = rates_in(log)
    tried = f" than {min(rates):.4g} to {max(rates):.4g}" if rates else ""
    if rates and min(rates) == max(rates):
        tried = f" than {rates[0]:.4g}"
    return replace(
        fit_finding(fit, None),
        fix=""
        if fit.is_learning_rate_too_high
        else "Check whether inputs and labels belong together, and whether the model can learn a "
        f"single batch by heart. If it can, try other learning rates{tried}.",
    )


def no_epoch_is_best(series: Series, chance: Chance) -> Finding:
    """Return that all evaluations are at the level of guessing."""
    num = len(series.values)
    return Finding(
        check="length",
        outcome=Outcome.WARNED,
        evidence=f"{series.name} is that of guessing ({percent(chance.accuracy)}) at all {num} "
        "evaluations, up to noise: no epoch is better than the others, except by chance",
        fix="Do not choose an epoch or weights by these results.",
        numbers={"num_evaluations": num, "chance": chance.accuracy},
    )


def no_curve(log: RunLog, series: Series) -> Finding:
    """Return that only a metric such as F1 was logged, with what is known of the losses."""
    missing = "no total loss, of training or of validation, and no accuracy"
    if any(row.train_loss is not None for row in log.rows):
        missing = "a loss of training only"
    return Finding(
        check="fit",
        outcome=Outcome.COULD_NOT_RUN,
        evidence=f"not yet known; {series.name} alone does not show overfitting, and the log has "
        f"{missing}",
    )


def with_guess(judged: Finding, curves: Curves) -> Finding:
    """Return the finding, with a remark if a loss without an accuracy stays that of guessing."""
    said = named_guess(curves)
    if not said or judged.outcome is Outcome.PASSED:
        return judged
    fix = (
        "If it is, check whether the model can learn a single batch by heart, and then try other "
        "learning rates."
    )
    return replace(judged, evidence=f"{judged.evidence}; {said}", fix=fix)


def with_losses(judged: Finding, log: RunLog) -> Finding:
    """Return the finding, with a remark if the log has no loss."""
    if any(loss is not None for row in log.rows for loss in (row.train_loss, row.val_loss)):
        return judged
    said = f"{judged.evidence}; the log has no total loss, of training or of validation"
    return replace(judged, evidence=said)


def unfit_after(diverged: Finding) -> Finding:
    """Return that the fit at the end of a training that diverged is not judged."""
    return _not_judged(
        "the training diverged: its last weights show neither underfitting nor overfitting",
        see=diverged,
    )


def unfit_beside(stuck: Finding) -> Finding:
    """Return that the fit is not judged, because validation loss and accuracy contradict."""
    return _not_judged("the validation loss contradicts the accuracy", see=stuck)


def _not_judged(because: str, *, see: Finding) -> Finding:
    return Finding(
        check="fit",
        outcome=Outcome.COULD_NOT_RUN,
        evidence=f"not judged, because {because}; see {see.check}",
        numbers={"kind": FitKind.NOT_YET_KNOWN.value, "confidence": Confidence.LIKELY.value},
    )


def fit_if_unstable(judged: Finding, stability: Finding | None) -> Finding:
    """Return the finding with a remark if validation jumps, as the fit is that of its end."""
    if stability is None or judged.outcome is not Outcome.WARNED:
        return judged
    return replace(
        judged,
        evidence=f"{judged.evidence}; validation jumps so much that this may be due to the last "
        f"evaluations only, see {stability.check}",
        fix="Make validation stable first, then judge the fit again.",
    )


def high_rate(log: RunLog, fit: Fit) -> Finding | None:
    """Return that the learning rate looks too high, if the fit says so."""
    if not fit.is_learning_rate_too_high:
        return None
    return Finding(
        check="learning_rate",
        outcome=Outcome.WARNED,
        fault="learning_rate_too_high",
        evidence=fit.evidence[0]
        if fit.evidence
        else "the training loss stays high, and jumps up and down",
        fix=a_tenth(log),
    )


def _fit_fix(fit: Fit, length: Finding | None) -> str:
    still, past, other = _FIT_FIXES[fit.kind]
    is_judged = length is not None and length.outcome in (Outcome.WARNED, Outcome.PASSED)
    if fit.is_past_best or (length is not None and is_past_best(length)):
        return past
    if is_judged:
        assert length is not None
        return still if is_improving(length) else other
    return still if fit.kind is FitKind.UNDERFIT else other

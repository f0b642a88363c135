"""diagnosis.json: how well a run fits its data, what would help, and what its machine did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.records.files import Json


class FitKind(StrEnum):
    """How well a model fits its data.

    UNDERFIT: it is wrong on much of what it was shown.
    GOOD_FIT: it learnt what it was shown, and held-out data has not become worse.
    OVERFIT: held-out data became worse while training went on improving.
    NOT_YET_KNOWN: the curves do not tell.
    """

    UNDERFIT = "underfit"
    GOOD_FIT = "good_fit"
    OVERFIT = "overfit"
    NOT_YET_KNOWN = "not_yet_known"


class Confidence(StrEnum):
    """How far a statement can be trusted.

    SURE: far outside the noise, on equal terms.
    LIKELY: outside the noise.
    WEAK: something that it needs was not measured, or had to be assumed.
    """

    SURE = "sure"
    LIKELY = "likely"
    WEAK = "weak"


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What the curves of a run say.

    Attributes:
        kind: the finding.
        confidence: how far to trust it.
        is_overconfident: validation loss rose while accuracy went on rising: probabilities became
            too sure, not wrong more often.
        is_learning_rate_too_high: training stays poor and its loss jumps, or is no number.
        is_still_improving: validation was still becoming better at the end.
        best_step, best_epoch: where validation was best; None: there is no validation.
        evidence: sentences with their numbers.
        numbers: the same for programs, by name.
    """

    kind: FitKind
    confidence: Confidence
    is_overconfident: bool = False
    is_learning_rate_too_high: bool = False
    is_still_improving: bool = False
    best_step: int | None = None
    best_epoch: float | None = None
    evidence: tuple[str, ...] = ()
    numbers: Mapping[str, Json] = field(default_factory=dict)

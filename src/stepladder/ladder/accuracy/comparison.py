"""Compare held-out results before and after a change, paired by example, seed and fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stepladder.config.recipe import Recipe
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.guard import TrialFailed
from stepladder.records.ladder import Interval, Outcome
from stepladder.records.profile import Provenance
from stepladder.stats import Pairs, paired_change

_CONFIDENCE: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of full trainings of two recipes.

    Attributes:
        accuracy, loss: change from before to after; None: not known.
        loss_before: mean held-out loss before.
        num_held_out: number of held-out examples.
        before, after: accuracy of each training, paired by position.
        gap_before, gap_after: generalisation gap (see `Verdict`).
        num_seeds: trainings of each recipe.
        why_not: why there is no result; None: there is one.
        is_replayed: whether only heads were trained, on features.
    """

    accuracy: Interval | None = None
    loss: Interval | None = None
    loss_before: float | None = None
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    gap_before: float | None = None
    gap_after: float | None = None
    num_held_out: int = 0
    num_seeds: int = 0
    why_not: str | None = None
    is_replayed: bool = False


def compare(
    lab: Lab,
    before: Recipe,
    after: Recipe,
    *,
    along: Sequence[Recipe] = (),
    confidence: float = _CONFIDENCE,
) -> Comparison:
    """Train both recipes in full and compare their held-out results.

    Args:
        along: recipes that may be asked for next and differ only in how they stop; the same
            trainings cover them.
        confidence: one-sided, of each bound.

    Raises:
        TrialFailed: if a training after the change fails and the one before does not.
    """
    found_before = lab.outcomes(before, also=(after, *along))
    found_after = found_before
    if found_before.why_not is None:
        found_after = lab.outcomes(after)
    why_not = found_before.why_not or found_after.why_not
    if why_not is not None:
        return Comparison(why_not=why_not)
    return compare_outcomes(lab, found_before.found, found_after.found, confidence=confidence)


def compare_outcomes(
    lab: Lab,
    before: Sequence[Outcome],
    after: Sequence[Outcome],
    *,
    confidence: float = _CONFIDENCE,
) -> Comparison:
    """Compare trainings of two recipes, paired by position; a pair has the same held-out examples.

    Raises:
        TrialFailed: if a training after the change fails and the one before does not.
    """
    pairs = _sound_pairs(before, after)
    failed = next((one.why_not for one in before if one.why_not), None)
    if not pairs and failed is not None:
        return Comparison(why_not=f"every training {failed}, also before the change")
    if not pairs or not any(one.rows for one, _ in pairs):
        return Comparison(
            why_not="there are no held-out examples (no validation split) on which to compare "
            "models"
        )
    losses = [_pairs(one, other, one.losses, other.losses) for one, other in pairs]
    hits = [
        _pairs(one, other, one.hits, other.hits)
        for one, other in pairs
        if one.hits is not None and other.hits is not None
    ]
    how: dict[str, Any] = {"groups": lab.groups(), "draw_seed": lab.seed, "confidence": confidence}
    return Comparison(
        accuracy=paired_change(hits, is_share=True, **how) if len(hits) == len(pairs) else None,
        loss=paired_change(losses, **how),
        loss_before=float(np.mean(np.concatenate([pair.before for pair in losses]))),
        before=tuple(float(pair.before.mean()) for pair in hits),
        after=tuple(float(pair.after.mean()) for pair in hits),
        gap_before=_gap([one for one, _ in pairs]),
        gap_after=_gap([other for _, other in pairs]),
        num_held_out=len(np.unique(np.concatenate([pair.rows for pair in losses]))),
        num_seeds=len(pairs),
        is_replayed=pairs[0][1].provenance is Provenance.REPLAYED,
    )


def _gap(outcomes: Sequence[Outcome]) -> float | None:
    """Return the mean generalisation gap of trainings, or None if it is not known for all."""
    gaps = []
    for outcome in outcomes:
        if outcome.train_accuracy is not None and outcome.hits:
            gaps.append(outcome.train_accuracy - sum(outcome.hits) / len(outcome.hits))
        elif outcome.train_loss is not None and outcome.hits is None:
            gaps.append(float(np.mean(outcome.losses)) - outcome.train_loss)
    return float(np.mean(gaps)) if gaps and len(gaps) == len(outcomes) else None


def _sound_pairs(
    before: Sequence[Outcome], after: Sequence[Outcome]
) -> list[tuple[Outcome, Outcome]]:
    """Pair outcomes of the same seed and fold; raise TrialFailed if only later ones fail."""
    pairs = list(zip(before, after, strict=False))  # a budget may allow fewer of one
    broken = [other.why_not for one, other in pairs if other.why_not and not one.why_not]
    if broken:
        raise TrialFailed(f"{broken[0]} in {len(broken)} of {len(pairs)} trainings")
    return [(one, other) for one, other in pairs if not one.why_not and not other.why_not]


def _pairs(
    before: Outcome, after: Outcome, old: tuple[float, ...], new: tuple[float, ...]
) -> Pairs:
    if before.rows != after.rows:
        raise ValueError("the outcomes were evaluated on different examples")
    return Pairs(
        rows=np.array(before.rows, np.int64),
        before=np.array(old, np.float64),
        after=np.array(new, np.float64),
    )

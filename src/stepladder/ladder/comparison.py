"""Held-out examples before and after, paired by example, seed and fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stepladder.config.recipe import Recipe
from stepladder.ladder.guard import TrialFailed
from stepladder.ladder.lab import Lab
from stepladder.records.ladder import Interval, Outcome
from stepladder.records.profile import Provenance
from stepladder.stats import Pairs, paired_change

_CONFIDENCE: Final = {"only": 0.95, "first": 0.995, "last": 0.955}
"""Of each bound. Two looks are right together in 95 %; the first ends what is plain, and the last
keeps most of the resolution (as the bounds of O'Brien and Fleming 1979 do)."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What trainings to the end say of two recipes.

    Attributes:
        accuracy, loss: change from before to after; None: not known.
        loss_before: mean held-out loss before.
        num_held_out: examples behind it.
        num_seeds: trainings of each.
        why_not: why nothing is known; None: it is.
        is_replayed: whether heads learnt from features.
    """

    accuracy: Interval | None = None
    loss: Interval | None = None
    loss_before: float | None = None
    num_held_out: int = 0
    num_seeds: int = 0
    why_not: str | None = None
    is_replayed: bool = False


def compare(
    lab: Lab,
    before: Recipe,
    after: Recipe,
    *,
    is_decided: Callable[[Comparison], bool] = lambda _: True,
) -> Comparison:
    """Train both to their ends and compare what they get right.

    A first look over some of the trainings that are possible; where it decides nothing, a last one
    over all. Both together are right in 95 %.

    Args:
        is_decided: whether a comparison decides.

    Raises:
        TrialFailed: if a training after the change fails where the one before does not.
    """
    num_first = min(lab.num_first(before), lab.num_first(after))
    if num_first >= min(lab.num_possible(before), lab.num_possible(after)):
        return _look(lab, before, after, num_seeds=num_first, confidence=_CONFIDENCE["only"])
    first = _look(lab, before, after, num_seeds=num_first, confidence=_CONFIDENCE["first"])
    if first.why_not is not None or is_decided(first):
        return first
    last = _look(lab, before, after, num_seeds=None, confidence=_CONFIDENCE["last"])
    return first if last.why_not is not None else last


def _look(
    lab: Lab, before: Recipe, after: Recipe, *, num_seeds: int | None, confidence: float
) -> Comparison:
    found_before = lab.outcomes(before, num_seeds=num_seeds)
    found_after = found_before
    if found_before.why_not is None:
        found_after = lab.outcomes(after, num_seeds=num_seeds)
    why_not = found_before.why_not or found_after.why_not
    if why_not is not None:
        return Comparison(why_not=why_not)
    return compare_outcomes(lab, found_before.found, found_after.found, confidence=confidence)


def compare_outcomes(
    lab: Lab, before: Sequence[Outcome], after: Sequence[Outcome], *, confidence: float = 0.95
) -> Comparison:
    """Compare trainings of two recipes, paired in order; each pair held out the same examples.

    Raises:
        TrialFailed: if a training after fails where the one before does not.
    """
    pairs = _sound_pairs(before, after)
    if not pairs or not any(one.rows for one, _ in pairs):
        return Comparison(why_not="there are no held-out examples to judge by")
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
        num_held_out=len(np.unique(np.concatenate([pair.rows for pair in losses]))),
        num_seeds=len(pairs),
        is_replayed=pairs[0][1].provenance is Provenance.REPLAYED,
    )


def _sound_pairs(
    before: Sequence[Outcome], after: Sequence[Outcome]
) -> list[tuple[Outcome, Outcome]]:
    """Pair outcomes of one seed and fold; refuse where only the later ones fail."""
    pairs = list(zip(before, after, strict=False))  # a budget may allow fewer of one
    broken = [other.why_not for one, other in pairs if other.why_not and not one.why_not]
    if broken:
        raise TrialFailed(f"{broken[0]} in {len(broken)} of {len(pairs)} trainings")
    return [(one, other) for one, other in pairs if not one.why_not and not other.why_not]


def _pairs(
    before: Outcome, after: Outcome, old: tuple[float, ...], new: tuple[float, ...]
) -> Pairs:
    if before.rows != after.rows:
        raise ValueError("the outcomes were judged on other examples")
    return Pairs(
        rows=np.array(before.rows, np.int64),
        before=np.array(old, np.float64),
        after=np.array(new, np.float64),
    )

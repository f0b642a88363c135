"""Advice for one step: the next thing to do, its predicted gain, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.config.options import LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Aim, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs import RUNGS
from stepladder.rungs.contract import Rung


@dataclass(frozen=True, kw_only=True)
class Considered:
    """A rung that was thought about.

    Attributes:
        prediction: None where the rung refuses.
        reason: why it is not the next thing to do; empty for the one that is.
    """

    rung: str
    level: int
    prediction: Prediction | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to do next.

    Attributes:
        next: the first rung in climbing order whose predicted gain is enough; None: nothing is.
        largest: the rung with the largest predicted gain, where it is another.
        others: every other rung, in climbing order, each with the reason.
        beyond: rungs that can be predicted but not tried here, such as other hardware.
    """

    next: Considered | None
    largest: Considered | None
    others: tuple[Considered, ...]
    beyond: tuple[Considered, ...]


def advise_on(
    profile: Profile, recipe: Recipe, options: LadderConfig, *, rungs: tuple[Rung, ...] = RUNGS
) -> Advice:
    """Choose the next rung by the profile alone; nothing is tried."""
    candidates: list[Considered] = []
    others: list[Considered] = []
    beyond: list[Considered] = []
    least = 1 + options.min_gain
    for rung in rungs:
        refusal = rung.why_not(profile, recipe)
        if refusal is not None:
            others.append(_considered(rung, None, refusal))
            continue
        prediction = rung.predict(profile, recipe)
        if rung.is_prediction_only:
            beyond.append(_considered(rung, prediction, prediction.note))
        elif rung.aim is Aim.TIME and prediction.gain >= least:
            candidates.append(_considered(rung, prediction, ""))
        elif rung.aim is Aim.TIME:
            reason = f"predicted {prediction.gain:.2f}×, below {least:.2f}×"
            others.append(_considered(rung, prediction, reason))
        else:
            others.append(_considered(rung, prediction, f"for {rung.aim}: {prediction.note}"))
    first = candidates[0] if candidates else None
    best = max(candidates, key=_gain, default=None)
    waiting = [
        Considered(rung=c.rung, level=c.level, prediction=c.prediction, reason="comes after")
        for c in candidates[1:]
    ]
    return Advice(
        next=first,
        largest=best if best is not first else None,
        others=tuple(sorted([*others, *waiting], key=lambda c: c.level)),
        beyond=tuple(beyond),
    )


def _considered(rung: Rung, prediction: Prediction | None, reason: str) -> Considered:
    return Considered(rung=rung.name, level=rung.level, prediction=prediction, reason=reason)


def _gain(considered: Considered) -> float:
    return considered.prediction.gain if considered.prediction else 0.0

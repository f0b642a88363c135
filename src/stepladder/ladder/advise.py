"""Advice: the next rung to try, its predicted gain, and why not the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from stepladder.config.options import LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.ladder.limits.feasibility import why_not_here
from stepladder.ladder.limits.guard import TrialFailed, faults_told
from stepladder.ladder.paired_rungs import with_enabled
from stepladder.ladder.summary.wording import (
    epoch_range_words,
    gain,
    gain_range,
    range_source,
    time_range,
)
from stepladder.ladder.timing.epoch_range import predict_over_seeds, time_bounds_s
from stepladder.ladder.trial import Change, change_between
from stepladder.records import Json
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import EpochRange, Profile
from stepladder.rungs.contract import Rung
from stepladder.training.output.wording import byte_rate, duration, percent, rough_time

_CLEAR_GAIN: Final = 1.1
"""Predicted gain from which a rung that costs no accuracy is advised before any that may."""
_CHANCE: Final = 0.5
"""Weight of a rung that is judged on held-out examples: about half of these are kept."""


@dataclass(frozen=True, kw_only=True)
class Considered:
    """A rung that was considered.

    Attributes:
        prediction: None if the rung cannot be tried.
        reason: why it is not the next rung to try; empty for the one that is.
        may_cost: whether it may change what is learnt, so that it is judged on held-out examples.
        flags: command-line options that apply it by hand; empty if no option does.
    """

    rung: str
    level: int
    prediction: Prediction | None
    reason: str
    may_cost: bool = False
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to do next.

    Attributes:
        next: the rung to try; None: none is predicted to pay off. Of the rungs that do not change
            what is learnt the one with the largest predicted gain, if that is 1.1 or more; else the
            one with the largest ln(gain), which counts half for rungs judged on held-out examples.
        largest: the rung with the largest predicted gain, if it is not `next`; it is judged on
            held-out examples.
        others: every other rung, in climbing order, each with the reason.
        besides: rungs for accuracy or memory, which are not tried for speed.
        beyond: rungs that can be predicted but not tried here, such as other hardware.
        now_s: time to a trained model as the job is now; with early stopping for the mean length.
        epochs: epochs until early stopping ends it, over seeds; None: they are fixed.
        now_low_s, now_high_s: the time at the ends of this range; now_s if they are fixed.
    """

    next: Considered | None
    largest: Considered | None
    others: tuple[Considered, ...]
    besides: tuple[Considered, ...]
    beyond: tuple[Considered, ...]
    now_s: float
    now_low_s: float
    now_high_s: float
    epochs: EpochRange | None = None


def advise_on(
    profile: Profile, recipe: Recipe, options: LadderConfig, *, rungs: tuple[Rung, ...]
) -> Advice:
    """Choose the next rung from the profile alone, without trying any."""
    candidates: list[Considered] = []
    others: list[Considered] = []
    besides: list[Considered] = []
    beyond: list[Considered] = []
    least = 1 + options.min_gain
    for rung in rungs:
        judged, prediction, refusal = _predicted(rung, profile, recipe, options)
        if prediction is None:
            others.append(_considered(rung, None, refusal))
        elif rung.is_prediction_only:
            beyond.append(_considered(rung, prediction, prediction.note))
        elif judged.aim is Aim.TIME and prediction.gain_at_price >= least:
            candidates.append(_candidate(judged, profile, recipe, prediction))
        elif judged.aim is Aim.TIME:
            reason = _below(prediction, least)
            others.append(_considered(rung, prediction, reason))
        else:
            besides.append(_considered(rung, prediction, f"{rung.aim}: {prediction.note}"))
    first = _most_promising(candidates)
    best = max(candidates, key=gain_of, default=None)
    low_s, high_s = time_bounds_s(profile)
    waiting = [replace(c, reason=_later(c)) for c in candidates if c is not first]
    return Advice(
        next=first,
        largest=best if best is not first else None,
        others=tuple(sorted([*others, *waiting], key=lambda c: c.level)),
        besides=tuple(besides),
        beyond=tuple(beyond),
        now_s=profile.time.total_s,
        epochs=profile.epoch_range,
        now_low_s=low_s,
        now_high_s=high_s,
    )


def _predicted(
    rung: Rung, profile: Profile, recipe: Recipe, options: LadderConfig
) -> tuple[Rung, Prediction | None, str]:
    """Return a rung as it would be tried, and its prediction or why it cannot be tried.

    An error in its code counts as a reason.
    """
    try:
        with faults_told("error in the rung:"):
            refusal = why_not_here(rung, profile, recipe, options)
            if refusal is None:
                judged = with_enabled(rung, profile, recipe) if rung.is_enabler else rung
                found = predict_over_seeds(lambda one: judged.predict(one, recipe), profile)
                return judged, found, ""
    except TrialFailed as failure:
        refusal = failure.what
    return rung, None, refusal


def _candidate(rung: Rung, profile: Profile, recipe: Recipe, prediction: Prediction) -> Considered:
    """Return a rung that is predicted to pay off, with the options that apply it by hand.

    If its code raises, there are no options, and it counts as one that may cost accuracy.
    """
    change: Change = {}
    may_cost = True
    with suppress(TrialFailed), faults_told("error in the rung:"):
        after = rung.apply(profile, recipe)
        may_cost = rung.exactness_of(after) is Exactness.STATISTICAL
        change = change_between(recipe, after)
    considered = _considered(rung, prediction, "")
    return replace(considered, may_cost=may_cost, flags=flags_of(change))


def _below(prediction: Prediction, least: float) -> str:
    """Return that a rung does not pay off; as a range if its gain depends on early stopping."""
    if prediction.gain >= least:  # but it costs more
        return f"predicted {gain_range(prediction)}: {prediction.note}"
    ends = (prediction.gain_low, prediction.gain_high)
    low, high = (gain(prediction.gain if end is None else end, 2) for end in ends)
    said = high if low == high else f"{low.removesuffix('×')} to {high}"
    return f"predicted {said}, below {gain(least, 2)}"


def _most_promising(candidates: Sequence[Considered]) -> Considered | None:
    """Choose the next rung; of equal ones, the first in climbing order."""
    free = [one for one in candidates if not one.may_cost and gain_of(one) >= _CLEAR_GAIN]
    return max(free or candidates, key=_worth, default=None)


def _worth(one: Considered) -> float:
    return math.log(max(gain_of(one), 1.0)) * (_CHANCE if one.may_cost else 1.0)


def _later(one: Considered) -> str:
    because = ", as it may cost accuracy" if one.may_cost else ""
    assert one.prediction is not None
    return f"predicted {gain_range(one.prediction)}: try later{because}"


def _considered(rung: Rung, prediction: Prediction | None, reason: str) -> Considered:
    return Considered(rung=rung.name, level=rung.level, prediction=prediction, reason=reason)


def flags_of(change: Change) -> tuple[str, ...]:
    """Return the command-line options that apply a change, one per changed value."""
    return tuple(_flag(key, value) for key, (_, value) in change.items())


def _flag(key: str, value: Json) -> str:
    """Return an option as the command line takes it: `--batch.lr 0.008`, `--stopping.no-early`."""
    group, dot, name = key.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return f"--{group}{dot}{name}" if value else f"--{group}{dot}no-{name}"
    return f"--{group}{dot}{name} {'none' if value is None else value}"


def gain_of(considered: Considered) -> float:
    """Return the predicted gain; 0 where there is no prediction."""
    return considered.prediction.gain if considered.prediction else 0.0


def advice_text(advice: Advice, profile: Profile) -> str:
    """Return the advice as text: the next rung, the largest gain, then why not the others."""
    lines = [_now(advice), *_of_reading(profile), ""]
    if advice.next is None:
        lines.append("next: none of the rungs that can be tried here is predicted to pay off.")
    else:
        lines.append(f"next: {_said(advice.next)}")
        by_hand = " To apply it by hand, add:" if advice.next.flags else ""
        lines.append(f"  `stepladder climb` tries it and keeps it if it pays off.{by_hand}")
        lines += [f"    {flag}" for flag in advice.next.flags]
    if advice.largest is not None:
        lines.append(f"larger gain, but it may cost accuracy: {_said(advice.largest)}")
    for title, group in (
        ("why not the others:", advice.others),
        ("for accuracy or memory, not for speed:", advice.besides),
    ):
        width = max((len(c.rung) for c in group), default=0)
        lines += ["", title] if group else []
        lines += [f"  {c.level:>2} {c.rung:<{width}}  {c.reason}" for c in group]
    if advice.beyond:
        lines += ["", "not on this machine:"]
        lines += [f"  {c.level:>2} {_said(c)}" for c in advice.beyond]
    return "\n".join(lines)


def _now(advice: Advice) -> str:
    """Return the time to a trained model; with early stopping, epochs and time as ranges."""
    if advice.epochs is None:
        return f"now: {duration(advice.now_s)} to a trained model"
    times = time_range(advice.now_low_s, advice.now_high_s)
    return (
        f"now: {epoch_range_words(advice.epochs)}, {times} to a trained model "
        f"({range_source(advice.epochs)})"
    )


def _of_reading(profile: Profile) -> list[str]:
    """Return a line on the time of reading, as far as it was measured."""
    fetch_s, decode_s = profile.loader_fetch_s, profile.loader_decode_s
    if fetch_s is None:
        return []
    said = f"reading: one thread fetches an example in {rough_time(fetch_s)}"
    if profile.fetch_bytes_per_s:
        said += f" ({byte_rate(profile.fetch_bytes_per_s)})"
    if decode_s:
        said += f" and decodes it in {rough_time(decode_s)}"
    if profile.link_bytes_per_s:
        said += f"; files are downloaded at {byte_rate(profile.link_bytes_per_s)}"
    if profile.cache_hit_frac is not None:
        said += f"; cache hit rate {percent(profile.cache_hit_frac, 0)}"
    return [said]


def _said(considered: Considered) -> str:
    prediction = considered.prediction
    assert prediction is not None
    words = f"{considered.rung}: predicted {gain_range(prediction)}{_after(prediction)}"
    note = f"; {prediction.note}" if prediction.note else ""
    return f"{words} ({prediction.provenance}{note})"


def _after(prediction: Prediction) -> str:
    """Return the predicted time, as a range if it depends on when early stopping ends training."""
    if prediction.low_s is not None and prediction.high_s is not None:
        return f", to {time_range(prediction.low_s, prediction.high_s)}"
    return f", to {duration(prediction.time.total_s)}" if prediction.time is not None else ""

"""Gradients that are cleared at the wrong time, or never."""

from __future__ import annotations

from stepladder.checks.evidence.growth import NUM_CALLS, is_growing, norms_in_words
from stepladder.records.findings import Severity
from stepladder.records.watch import Clearing
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen import Seen

_MIN_STEPS = 3  # that were looked at, before a gradient's absence means something
_FIX = "Call optimizer.zero_grad() once for each step, before backward."


def missing_zero_grad(seen: Seen) -> Answer:
    """Follows a gradient from step to step: the same tensor, changed by backward alone."""
    probed = seen.clearing
    stepped = [o for o in seen.optimizers if o.num_uncleared + o.num_cleared > 0]
    for one in stepped:
        share = one.num_uncleared / (one.num_uncleared + one.num_cleared)
        if one.is_uncleared_proven and one.num_uncleared >= _MIN_STEPS and share >= 0.5:
            return Found(
                evidence=f"at {one.num_uncleared} of {one.num_uncleared + one.num_cleared} steps "
                f"of {one.kind} that were followed, the gradients of the step before were still "
                f"there, bit by bit, as backward added to them{_measured(probed)}",
                fix=_FIX,
                where=one.stepped_at,
                numbers={
                    "num_uncleared": one.num_uncleared,
                    "num_cleared": one.num_cleared,
                    **({"norms": [*probed.norms]} if probed is not None and probed.norms else {}),
                },
            )
    found = None if probed is None else _proven(probed)
    if found is not None:
        return found
    if not stepped and probed is None:
        return Unseen("fewer than two steps of an optimiser were seen")
    if not stepped and probed is not None:
        told = f"between {probed.num_looked - probed.num_uncleared} of {probed.num_looked} steps"
        return Sound(f"gradients did not stay what they were {told}{_measured(probed)}")
    total = sum(one.num_cleared for one in stepped)
    text = f"gradients were cleared before {total} of the steps that could be followed"
    return Sound(f"{text}{_measured(probed)}")


def _proven(probed: Clearing) -> Found | None:
    """Judge what the probe saw of every weight, where looking on alone proved nothing."""
    is_seen_often = probed.num_uncleared >= _MIN_STEPS
    is_proven = is_growing(probed.norms) if probed.norms else is_seen_often
    if not probed.uncleared or not is_proven:
        return None
    num, of = len(probed.uncleared), probed.num_weights
    which = "" if num == of else f" of {num} of {of} weights, such as {probed.uncleared[0]},"
    is_certain = num == of and probed.num_uncleared >= 2
    return Found(
        evidence=f"between {probed.num_uncleared} of {probed.num_looked} pairs of steps of "
        f"{probed.optimizer} that were looked at, the gradients{which} stayed what they were, and "
        f"backward added to them{_measured(probed)}",
        fix=_FIX if num == of else "Clear the gradients of all weights: optimizer.zero_grad().",
        where=probed.stepped_at,
        numbers={
            "num_uncleared": probed.num_uncleared,
            "num_looked": probed.num_looked,
            "num_weights": num,
            "norms": [*probed.norms],
        },
        severity=None if is_certain else Severity.WARNING,  # once may be meant
    )


def _measured(probed: Clearing | None) -> str:
    """Give the probe's numbers, as the end of a sentence."""
    if probed is None or not probed.norms:
        return ""
    loss = "" if probed.loss is not None else " of a weighted mean of the outputs"
    return (
        f"; on a copy with weights held, the norm of one batch's gradient{loss} goes "
        f"{norms_in_words(probed.norms)} in {NUM_CALLS} calls"
    )


def zero_grad_before_step(seen: Seen) -> Answer:
    """Sees gradients cleared after backward and none left at the step, each time."""
    looked = [o for o in seen.optimizers if o.num_looked]
    if not looked:
        return Unseen("no step of an optimiser was seen")
    for one in looked:
        if one.num_looked >= _MIN_STEPS and one.num_cleared_late == one.num_looked:
            return Found(
                evidence=f"at {one.num_looked} of {one.num_looked} steps that were looked at, "
                f"{one.kind} found no gradient: they were cleared between backward and the step",
                fix="Move zero_grad() in front of backward, or behind the step.",
                where=one.cleared_late_at or one.stepped_at,
                numbers={"num_steps": one.num_steps},
            )
    if all(one.num_empty == one.num_looked for one in looked):
        return Unseen("no step with a gradient was looked at")
    return Sound("gradients were there at the steps")

"""Faults in gradient clipping: at the wrong time, or in nearly every step."""

from __future__ import annotations

from math import inf, isfinite
from statistics import median

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.seen import Seen
from stepladder.watching.seen.steps import ClippingSeen

_ALWAYS = 0.9  # of the steps: clipping is meant for the rare ones (Sculley's rule of thumb)
_MIN_STEPS = 30
_MIN_SHARES = 5  # steps at which clipping by value was measured
_MOST = 0.5  # of a gradient's numbers
_MIN_UNUSED = 5  # calls that no step used
_MIN_CUT = 0.05  # of the norms are above the limit: otherwise clipping changes little, and it warns
_OUTLIER = 10.0  # times the median norm: clipping has a reason, whatever the limit
_FAR = 10.0  # times the limit: a smaller median norm only makes all steps about as long
_NO_LIMIT = 1e6  # clipping that only measures the norm


def clipping_without_effect(seen: Seen) -> Answer:
    """Follows a gradient from clipping to the next step, which may have no use for it.

    Clipping after a step counts if the gradient is cleared before the next backward.
    """
    followed = [c for c in seen.clippings if c.num_late + c.num_early + c.num_in_time]
    if not followed:
        return Unseen("no clipping of gradients was followed")
    if any(c.num_in_time for c in followed):
        return Sound("gradients are clipped between backward and the step")
    for one in followed:
        function = "clip_grad_norm_" if one.norms else "clip_grad_value_"
        fix = f"Call {function} after loss.backward() and before optimizer.step()."
        share, cut = _cut(one)
        if one.num_late >= _MIN_UNUSED and share > 0:
            return Found(
                evidence="gradients are clipped only after optimizer.step() has used them, and "
                f"cleared before the next backward, at all of {one.num_late} calls that were "
                f"followed: no step used the limit of {one.limit:g}{cut}",
                fix=fix,
                where=one.where,
                severity=None if share >= _MIN_CUT else Severity.WARNING,
                numbers={"num_late": one.num_late, "limit": one.limit},
            )
        if one.num_early >= _MIN_UNUSED and not one.num_late and one.limit < _NO_LIMIT:
            return Found(
                evidence=f"at all of {one.num_early} calls that were followed, gradients are "
                "clipped before backward computes them: there is nothing to clip, and steps use "
                "gradients of any size",
                fix=fix,
                where=one.where,
                severity=Severity.WARNING,
                numbers={"num_early": one.num_early, "limit": one.limit},
            )
    return Sound("clipping at the wrong time changed no gradient by much")


def _cut(one: ClippingSeen) -> tuple[float, str]:
    """Return how often a limit was exceeded, as a share and in words; 0 if that is unknown."""
    if one.norms:
        share = sum(not norm <= one.limit for norm in one.norms) / len(one.norms)  # NaN as well
        usual = median(norm if isfinite(norm) else inf for norm in one.norms)
        middle = f"median {usual:.3g}" if isfinite(usual) else "most are not finite"
        text = f", which {100 * share:.2g} % of the norms exceed ({middle})"
    else:
        share = median(one.shares) if one.shares else 0.0
        text = f", which {100 * share:.2g} % of the gradient's entries exceed"
    return share, text


def _is_unused(one: ClippingSeen) -> bool:
    return one.num_late + one.num_early >= _MIN_UNUSED and not one.num_in_time


def clipping_always_active(seen: Seen) -> Answer:
    """Compares the gradient norms before clipping with the limit, over all steps.

    It is only a note if some gradients are far larger than most, which clipping is meant for, or if
    most are not far above the limit: many recipes give all steps the same length in this way.
    """
    used = [c for c in seen.clippings if not _is_unused(c)]
    by_value = [c for c in used if len(c.shares) >= _MIN_SHARES]
    for one in by_value:
        share = median(one.shares)
        if share > _MOST:
            return Found(
                evidence=f"clipping by value to {one.limit:g} cut {100 * share:.0f} % of the "
                f"gradient's entries (median of {len(one.shares)} inspected steps): little but "
                "their signs is left",
                fix="Clip by norm, or set the limit to a few times the usual size of the "
                "gradient's entries.",
                where=one.where,
                severity=None if one.is_own else Severity.INFO,
                numbers={"share": share},
            )
    known = [c for c in used if len(c.norms) >= _MIN_STEPS]
    if not known and by_value:
        return Sound("clipping by value leaves most of the gradient unchanged")
    if not known:
        return Unseen(f"gradients were clipped by norm in fewer than {_MIN_STEPS} steps")
    for one in known:
        active = sum(norm > one.limit for norm in one.norms) / len(one.norms)
        usual, largest = median(one.norms), max(one.norms)
        if active > _ALWAYS:
            has_outliers, is_far = largest > _OUTLIER * usual, usual >= _FAR * one.limit
            tail = f", and the largest {largest:.3g}" if has_outliers else ""
            return Found(
                evidence=f"gradients were clipped to {one.limit:g} in {100 * active:.0f} % of "
                f"{len(one.norms)} steps; their median norm is {usual:.3g}{tail}",
                fix=f"Clip at a few times the median norm, such as {3 * usual:.2g}, or lower the "
                "learning rate instead.",
                where=one.where,
                # a trainer's default, or protection against batches that would decide everything
                severity=None if is_far and one.is_own and not has_outliers else Severity.INFO,
                numbers={"active": active, "median_norm": usual},
            )
    return Sound("clipping is active in few steps")

"""Faults in the divergence of a variational autoencoder."""

from __future__ import annotations

from math import isclose, log

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.losses import GaussianSeen
from stepladder.watching.seen.seen import Seen

_MIN_CALLS = 2  # inspected calls of backward
_EXCHANGED = (0.5, 2.0)  # the logarithm of a variance in one place, of a deviation in the other
_TOLERANCE = 0.02
_FORMULAS = (
    "With the logarithm of the variance, it is -0.5 * (1 + log_var - mu**2 - log_var.exp()); with "
    "that of the standard deviation, -0.5 * (1 + 2 * log_std - mu**2 - (2 * log_std).exp()). Both "
    "are added to the reconstruction's loss."
)


def divergence_wrong(seen: Seen) -> Answer:
    """Reads the factors of u, exp(u) and v² in the loss's graph, for the same u.

    A divergence from the standard normal distribution has its minimum at variance 1 and mean 0.
    Priors of other variances are not reported, unless the variance would be twice or half of 1.
    """
    calls = [(call, call.gaussian) for call in seen.backward_calls if call.gaussian is not None]
    if len(calls) < _MIN_CALLS:
        return Unseen("no inspected loss has the terms of a Gaussian divergence")
    call, one = calls[-1]
    problem = _problem(one)
    if problem is None:
        return Sound("the Gaussian divergence in the loss has its minimum where it should be")
    return Found(
        evidence=f"the loss has {_words(one)}, as a Gaussian divergence of shape {one.shape} has, "
        f"but {problem}",
        fix=_FORMULAS,
        where=call.where,
        numbers={
            "linear": one.linear,
            "power": one.power,
            "exponent": one.exponent,
            "square": one.square,
        },
    )


def _problem(one: GaussianSeen) -> str | None:
    slope = one.power * one.exponent
    if slope < 0 < one.linear and one.square < 0:
        return "it is subtracted: training makes the KL divergence larger, without a limit"
    if one.linear * slope > 0:
        return "the first two have the same sign, so it has no minimum: it can become negative"
    if slope < 0 < one.linear:
        return "the first two have the wrong signs: training moves the variance away from 1"
    if one.square < 0:
        return "the square is subtracted, so training moves the means away from 0"
    ratio = -one.linear / slope
    is_balanced = isclose(one.square, one.exponent, rel_tol=_TOLERANCE)
    if is_balanced and any(isclose(ratio, other, rel_tol=_TOLERANCE) for other in _EXCHANGED):
        at = log(ratio) / one.power
        return (
            f"its minimum is at u = {at:.2g} instead of 0, and it can become negative: u is the "
            "logarithm of the variance in one of them and of the standard deviation in the other"
        )
    return None


def _words(one: GaussianSeen) -> str:
    power = "" if one.power == 1 else f"{one.power:g} "
    base = max(abs(one.linear), 1e-12)
    linear, exponent, square = (value / base for value in (one.linear, one.exponent, one.square))
    return f"the terms {linear:+.3g} u, {exponent:+.3g} exp({power}u) and {square:+.3g} v²"

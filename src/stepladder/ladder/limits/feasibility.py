"""Why a rung cannot be tried: its own reason, nothing enabled, too little disk or time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stepladder.config.options import LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.ladder.paired_rungs import why_nothing_enabled
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.training.output.wording import rough_time

_LEAST_FRAC: Final = 0.02  # of the budget: with less left, no trial starts
_MOST_TRAININGS: Final = 50  # that have to repay a trial
_SHORT_TRIAL_S: Final = 10.0  # is always made
_WHOLE: Final[Mapping[str, str]] = {"compile": "compiling", "store": "decoding all pictures"}
"""One-time work that a trial does in full; of other kinds it times a part."""


def why_not_here(rung: Rung, profile: Profile, recipe: Recipe, options: LadderConfig) -> str | None:
    """Return why a rung cannot be tried, or None."""
    refusal = rung.why_not(profile, recipe)
    if refusal is None and rung.is_enabler:
        refusal = why_nothing_enabled(rung, profile, recipe)
    if refusal is not None:
        return refusal
    needed, allowed = rung.disk_bytes(profile, recipe), options.max_cache_bytes
    if needed <= allowed:
        return None
    return f"needs {_size(needed)} of disk; ladder.max_cache_bytes allows {_size(allowed)}"


def why_no_time(
    left_s: float,
    options: LadderConfig,
    profile: Profile | None = None,
    prediction: Prediction | None = None,
) -> str | None:
    """Return why there is no time for a trial of any rung, or of this one; None: there is.

    Args:
        left_s: seconds left of the budget; infinite without a budget.
        profile, prediction: of the rung; None: for any rung.
    """
    limit_s = options.budget_s
    if left_s <= 0:
        return "the budget ran out"
    if limit_s is not None and left_s < _LEAST_FRAC * limit_s:
        return f"only {rough_time(left_s)} of the budget left, too little for a trial"
    if profile is None or prediction is None or prediction.time is None:
        return None
    for name, words in _WHOLE.items():
        now_s = profile.time.one_time_s.get(name, 0.0)
        more_s = prediction.time.one_time_s.get(name, 0.0) - now_s
        if more_s > left_s:
            took = rough_time(more_s)
            return f"{words} takes {took}, but only {rough_time(left_s)} of the budget are left"
    return None


def why_too_long(trial_s: float, prediction: Prediction, training_s: float) -> str | None:
    """Return why a trial takes too long for what it may save, or None.

    A short job is not worth minutes for a few percent: a trial is skipped if it takes longer than
    what the prediction would save in 50 trainings.

    Args:
        trial_s: seconds that a trial takes.
        training_s: seconds that a training takes now.
    """
    saved_s = max(0.0, training_s * (1 - 1 / prediction.gain))
    if trial_s < _SHORT_TRIAL_S or trial_s <= _MOST_TRAININGS * saved_s:
        return None
    return (
        f"predicted {prediction.gain:.2f}×, {rough_time(saved_s)} of {rough_time(training_s)}: a "
        f"trial takes about {rough_time(trial_s)}, more than that saves in {_MOST_TRAININGS} "
        "trainings (--ladder.try-all tries it)"
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"

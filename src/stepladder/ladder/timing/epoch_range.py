"""How many epochs early stopping leaves, and the times and gains that depend on it, as ranges.

Two trainings that differ only by the seed stop at different epochs. One function makes the range,
for `advise`, `climb` and the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from stepladder.config.recipe import StoppingConfig
from stepladder.records.climb import Baseline
from stepladder.records.ladder import Prediction
from stepladder.records.profile import EpochRange, Profile, Provenance, TrainingTime
from stepladder.rungs.formulas import checkpoints_s
from stepladder.stats import MIN_DRAWS, next_draw_bounds

_TINY: Final = 1e-9


def epoch_range(
    epochs: Sequence[float],
    stopping: StoppingConfig,
    *,
    most: float,
    steps_per_epoch: float,
    provenance: Provenance,
) -> EpochRange:
    """Return the 10th to 90th percentile of the epochs of the next training.

    Args:
        epochs: of replays, one per seed. With fewer than two, the range is from the first epoch at
            which patience can run out to `most`.
        most: epochs at which the schedule ends training.
        provenance: of the replays.
    """
    every = _every_epochs(stopping, steps_per_epoch)
    least = min(most, (1 + stopping.patience) * every)
    if len(epochs) < MIN_DRAWS:
        return EpochRange(
            low=least, high=most, mean=most, num_seeds=0, provenance=Provenance.ASSUMED
        )
    low, high = next_draw_bounds(epochs)
    return EpochRange(
        low=max(min(least, *epochs), every * math.floor(low / every + _TINY)),
        high=min(most, max(high, every * math.ceil(high / every - _TINY))),
        mean=fmean(epochs),
        num_seeds=len(epochs),
        provenance=provenance,
    )


def _every_epochs(stopping: StoppingConfig, steps_per_epoch: float) -> float:
    """Return the epochs between validations."""
    if stopping.validate_every_steps is None:
        return float(stopping.validate_every_epochs)
    return stopping.validate_every_steps / max(steps_per_epoch, _TINY)


def profiles_at_ends(profile: Profile) -> tuple[Profile, Profile] | None:
    """Return the profile with the fewest and with the most epochs of its range.

    Of its own epochs if it stops early, else of those at which its curve would have been stopped.

    Returns:
        None if neither is a range.
    """
    own, curve = profile.epoch_range, profile.curve
    stops = curve.stops if curve is not None else None
    if own is not None:
        first, second = (
            replace(profile, time=time_of_epochs(profile, epochs)) for epochs in (own.low, own.high)
        )
        return first, second
    if curve is None or stops is None:
        return None
    first, second = (
        replace(profile, curve=replace(curve, epochs_to_stop=epochs))
        for epochs in (stops.low, stops.high)
    )
    return first, second


def time_of_epochs(profile: Profile, epochs: float) -> TrainingTime:
    """Return the time of a profile with another number of epochs, and validations to match."""
    now = profile.time
    share = epochs / now.epochs if now.epochs > 0 else 1.0
    time = replace(now, epochs=epochs, num_validations=now.num_validations * share)
    saves_s = checkpoints_s(now, loop_s=time.loop_s, save_s=profile.save_s)
    return replace(time, checkpoint_s=saves_s)


def time_bounds_s(profile: Profile) -> tuple[float, float]:
    """Return the shortest and the longest time to a trained model; the same if it is fixed."""
    ends = profiles_at_ends(profile) if profile.epoch_range is not None else None
    first, last = ends or (profile, profile)
    return first.time.total_s, last.time.total_s


def predict_over_seeds(predict: Callable[[Profile], Prediction], profile: Profile) -> Prediction:
    """Return a prediction with the range that its gain has over seeds.

    Both ends of the range of epochs are predicted like the mean: before and after are paired, as
    one seed ends both at about the same epoch.
    """
    found, ends = predict(profile), profiles_at_ends(profile)
    if ends is None:
        return found
    at_ends = [predict(end) for end in ends]
    gains = [one.gain for one in (found, *at_ends)]
    times = [one.time.total_s for one in (found, *at_ends) if one.time is not None]
    return replace(
        found,
        gain_low=min(gains),
        gain_high=max(gains),
        low_s=min(times) if times else None,
        high_s=max(times) if times else None,
    )


def with_bounds(baseline: Baseline, profile: Profile) -> Baseline:
    """Return a baseline with its time at both ends of its range of epochs."""
    found, epochs = baseline.epoch_range, baseline.epochs
    if found is None or not epochs:
        return replace(baseline, epoch_range=None, low_s=None, high_s=None)
    low_s, high_s = (
        scaled_s(baseline.total_s, time=profile.time, share=end / epochs)
        for end in (found.low, found.high)
    )
    return replace(baseline, low_s=low_s, high_s=high_s)


def scaled_s(total_s: float, *, time: TrainingTime, share: float) -> float:
    """Return a time to a trained model with a share of its epochs; one-time work stays."""
    one_time_s = min(total_s, sum(time.one_time_s.values()))
    return one_time_s + share * (total_s - one_time_s)

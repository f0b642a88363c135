"""Which of a rung's variants to try: its gain, weighed by the chance that the verdict keeps it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from stepladder.config.recipe import Recipe
from stepladder.ladder.comparison import Comparison, compare_outcomes
from stepladder.ladder.guard import TrialFailed, Watchdog
from stepladder.ladder.lab import Lab
from stepladder.ladder.learning import execution_key, learning_key
from stepladder.ladder.stacked import differ_in_their_end
from stepladder.records.ladder import Interval, Outcome
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung

_LEAST_LOG_GAIN: Final = 1e-3
_DEVIATIONS: Final = NormalDist().inv_cdf(0.95) / math.sqrt(2)
"""From the estimate to a one-sided 95 % bound, where both a probe and a trial spread."""


def choose_variant(
    lab: Lab, rung: Rung, profile: Profile, before: Recipe, *, watchdog: Watchdog
) -> Recipe:
    """Choose among a rung's variants by training them, with seeds that no trial uses.

    The one with the largest ln(gain) times the chance that a verdict keeps it. Variants are tried
    group by group: those that take the same time for a step are one group, and the rung gives the
    fastest group first. It ends where the next group could not be worth more if it were kept for
    certain. The first variant where a probe takes too long, or where all fail.
    """
    variants = rung.variants(profile, before)
    if len(variants) == 1:
        return variants[0]
    if all(_ends_otherwise(before, variant) for variant in variants):
        return _choose_end(lab, profile, before, variants, watchdog=watchdog)
    watchdog.expect(lab.forecast_s(before))
    now = lab.outcomes(before).found
    if not now:
        return variants[0]
    probe = _Probe(lab=lab, profile=profile, before=before, now=now)
    best: tuple[float, Recipe] | None = None
    for _, group in itertools.groupby(variants, execution_key):
        members = list(group)
        if best is not None and best[0] >= probe.log_gain(members[0], now):
            break
        for variant in members:
            watchdog.expect(lab.forecast_s(variant))
            outcomes = lab.probe(variant)
            if not outcomes:
                return variants[0]
            with suppress(TrialFailed):
                worth = probe.worth(variant, outcomes)
                best = (worth, variant) if best is None or worth > best[0] else best
    return variants[0] if best is None else best[1]


def _ends_otherwise(before: Recipe, variant: Recipe) -> bool:
    return differ_in_their_end(learning_key(before), learning_key(variant))


def _choose_end(
    lab: Lab, profile: Profile, before: Recipe, variants: Sequence[Recipe], *, watchdog: Watchdog
) -> Recipe:
    """Choose among ways to end the same training; the first one where one does not tell of all."""
    watchdog.expect(2 * lab.forecast_s(before))
    found = lab.probe_ends(before, variants)
    if not found:
        return variants[0]
    probe = _Probe(lab=lab, profile=profile, before=before, now=found[0])
    best: tuple[float, Recipe] | None = None
    least = math.log1p(lab.job.ladder.min_gain)
    for variant, outcomes in zip(variants, found[1:], strict=True):
        if probe.log_gain(variant, outcomes) < least:
            continue  # what saves nothing would be told in place of what costs too much
        with suppress(TrialFailed):
            worth = probe.worth(variant, outcomes)
            best = (worth, variant) if best is None or worth > best[0] else best
    return variants[0] if best is None else best[1]


@dataclass(frozen=True, kw_only=True)
class _Probe:
    """Compares variants with the recipe before.

    Attributes:
        now: trainings of the recipe before.
    """

    lab: Lab
    profile: Profile
    before: Recipe
    now: Sequence[Outcome]

    def worth(self, variant: Recipe, outcomes: Sequence[Outcome]) -> float:
        """Give ln(gain) times the chance to be kept, by as many trainings before.

        Raises:
            TrialFailed: if trainings fail, or nothing is judged.
        """
        comparison = compare_outcomes(self.lab, self.now[: len(outcomes)], outcomes)
        max_loss = self.lab.job.ladder.max_accuracy_loss
        return chance_to_be_kept(quality_of(comparison), max_loss) * self.log_gain(
            variant, outcomes
        )

    def log_gain(self, variant: Recipe, outcomes: Sequence[Outcome]) -> float:
        """Give the log of how many times faster a model is trained, by its steps and validations.

        A little more than 0 where it is no faster: then the chance alone decides.
        """
        now_s = self._train_s(self.before, self.now)
        rest_s = max(0.0, self.profile.time.total_s - now_s)
        after_s = rest_s + self._train_s(variant, outcomes)
        return max(_LEAST_LOG_GAIN, math.log((rest_s + now_s) / after_s))

    def _train_s(self, recipe: Recipe, outcomes: Sequence[Outcome]) -> float:
        """Give the time of steps, by t(b) = a + c b, and validations that trainings took."""
        batch = recipe.batch.global_batch_size
        fixed_s, per_example_s = self.profile.step_fixed_s, self.profile.step_per_example_s
        step_s = self.profile.time.step_s
        if fixed_s is not None and per_example_s is not None:
            step_s = fixed_s + per_example_s * batch
        epochs = float(np.mean([outcome.epochs for outcome in outcomes]))
        num_validations = float(np.mean([outcome.num_validations for outcome in outcomes]))
        validations_s = num_validations * self.profile.time.validation_s
        return max(1e-9, epochs * self.lab.num_train(recipe) / batch * step_s + validations_s)


def quality_of(comparison: Comparison) -> Interval:
    """Give the change of the accuracy; without classes the fall of the loss, as a share of it.

    Raises:
        TrialFailed: if nothing is judged.
    """
    if comparison.accuracy is not None:
        return comparison.accuracy
    change = comparison.loss
    if change is not None and comparison.loss_before:
        size = abs(comparison.loss_before)
        return Interval(
            estimate=-change.estimate / size, low=-change.high / size, high=-change.low / size
        )
    raise TrialFailed(comparison.why_not or "nothing was judged")


def chance_to_be_kept(quality: Interval, max_loss: float) -> float:
    """Guess how likely a trial's lower bound is to stay above what may be lost.

    The trial's estimate is taken to spread around the probe's as that does around the truth, and
    its interval to be as wide.
    """
    half = (quality.high - quality.low) / 2
    room = quality.estimate - half + max_loss
    if half == 0:
        return float(room >= 0)
    return NormalDist().cdf(room * _DEVIATIONS / half)

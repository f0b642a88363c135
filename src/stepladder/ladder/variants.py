"""Choose which variant of a rung to try: by gain times the chance that it is kept."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np

from stepladder.config.recipe import Recipe
from stepladder.ladder.accuracy.comparison import Comparison, compare_outcomes
from stepladder.ladder.keys import execution_key, learning_key
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.guard import TrialFailed, Watchdog
from stepladder.ladder.trainings.stacked import differ_in_their_end
from stepladder.records.ladder import Aim, Interval, Outcome
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Against, Rung

_LEAST_LOG_GAIN: Final = 1e-3
_DEVIATIONS: Final = NormalDist().inv_cdf(0.95) / math.sqrt(2)
"""Distance from the estimate to a one-sided 95 % bound, if both a probe and a trial are noisy."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which variant to try, and which one after it if the first costs too much accuracy.

    Attributes:
        second: finds the second variant, or returns None if no safer one would pay off; None: there
            is no second one.
        along: further variants that the trainings before the change cover.
    """

    first: Recipe
    second: Callable[[], Recipe | None] | None = None
    along: tuple[Recipe, ...] = ()


def choose_variant(
    lab: Lab, rung: Rung, profile: Profile, before: Recipe, *, watchdog: Watchdog
) -> Choice:
    """Choose a variant of a rung by training the variants, with seeds that no trial uses.

    The first choice has the largest ln(gain) times the chance of being kept; the second choice is
    the best by the same rule among those with a better chance or less gain. Variants are tried in
    groups with the same time per step, the fastest group first. The search ends when the next group
    could not be better even if it were certain to be kept. If a probe takes too long or all fail,
    the rung's first variant is chosen. For accuracy, the most accurate variant is chosen.
    """
    variants = rung.variants(profile, before)
    if rung.aim is Aim.ACCURACY or len(variants) == 1:
        return _choose_best(lab, rung, before, variants, watchdog=watchdog)
    if all(_ends_otherwise(before, variant) for variant in variants):
        return _choose_end(lab, profile, before, variants, watchdog=watchdog)
    watchdog.expect(lab.forecast_s(before))
    now = lab.outcomes(before).found
    if not now:
        return Choice(first=variants[0])
    probe = _Probe(lab=lab, profile=profile, before=before, now=now)
    groups = deque(list(group) for _, group in itertools.groupby(variants, execution_key))
    judged: list[_Judged] = []
    while groups and not (judged and _best(judged).worth >= probe.log_gain(groups[0][0], now)):
        found = _judge(probe, groups.popleft(), watchdog)
        if found is None:
            return Choice(first=variants[0])
        judged += found
    if not judged:
        return Choice(first=variants[0])
    best = _best(judged)

    def second() -> Recipe | None:
        while groups:
            judged.extend(_judge(probe, groups.popleft(), watchdog) or ())
        return _safer(judged, best, lab)

    return Choice(first=best.variant, second=second)


def _choose_best(
    lab: Lab, rung: Rung, before: Recipe, variants: Sequence[Recipe], *, watchdog: Watchdog
) -> Choice:
    """Choose the most accurate variant on held-out examples; the first if a probe takes too long.

    For rungs against a high training error, the held-out loss decides: it distinguishes far smaller
    steps, and such a model is not over-confident yet.
    """
    if len(variants) == 1:
        return Choice(first=variants[0])
    watchdog.expect(lab.forecast_s(before))
    now = lab.outcomes(before).found
    judged: list[tuple[float, Recipe]] = []
    for variant in variants if now else ():
        watchdog.expect(lab.forecast_s(variant))
        outcomes = lab.probe(variant, is_thorough=True)
        if not outcomes:
            return Choice(first=variants[0])
        with suppress(TrialFailed):
            comparison = compare_outcomes(lab, now[: len(outcomes)], outcomes)
            if rung.against is Against.TRAINING:
                comparison = replace(comparison, accuracy=None)
            judged.append((quality_of(comparison).estimate, variant))
    if not judged:
        return Choice(first=variants[0])
    return Choice(first=max(judged, key=lambda one: one[0])[1])


def _ends_otherwise(before: Recipe, variant: Recipe) -> bool:
    return differ_in_their_end(learning_key(before), learning_key(variant))


def _choose_end(
    lab: Lab, profile: Profile, before: Recipe, variants: Sequence[Recipe], *, watchdog: Watchdog
) -> Choice:
    """Choose among ways to stop the same training; the first if one training cannot cover all."""
    watchdog.expect(2 * lab.forecast_s(before))
    found = lab.probe_ends(before, variants)
    if not found:
        return Choice(first=variants[0])
    probe = _Probe(lab=lab, profile=profile, before=before, now=found[0])
    judged: list[_Judged] = []
    for variant, outcomes in zip(variants, found[1:], strict=True):
        with suppress(TrialFailed):
            judged.append(probe.judge(variant, outcomes))
    # a variant that saves nothing would hide the reason that others cost too much
    judged = [one for one in judged if _pays(one, lab)]
    if not judged:
        return Choice(first=variants[0])
    best = _best(judged)
    safer = _safer(judged, best, lab)
    if safer is None:
        return Choice(first=best.variant)
    return Choice(first=best.variant, second=lambda: safer, along=(safer,))


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """Result of a probe of a variant.

    Attributes:
        chance: probability that it is kept.
    """

    variant: Recipe
    log_gain: float
    chance: float

    @property
    def worth(self) -> float:
        return self.log_gain * self.chance


def _best(judged: Sequence[_Judged]) -> _Judged:
    return max(judged, key=lambda one: one.worth)


def _pays(one: _Judged, lab: Lab) -> bool:
    return one.log_gain >= math.log1p(lab.job.ladder.min_gain)


def _safer(judged: Sequence[_Judged], best: _Judged, lab: Lab) -> Recipe | None:
    """Return the best variant among those with a better chance or a smaller gain; or None.

    A smaller gain means a smaller change, such as a smaller batch, and the estimated chances may be
    wrong.
    """
    safer = [
        one
        for one in judged
        if (one.chance > best.chance or one.log_gain < best.log_gain) and _pays(one, lab)
    ]
    return _best(safer).variant if safer else None


def _judge(probe: _Probe, variants: Sequence[Recipe], watchdog: Watchdog) -> list[_Judged] | None:
    """Probe variants; None if one would take too long."""
    judged = []
    for variant in variants:
        watchdog.expect(probe.lab.forecast_s(variant))
        outcomes = probe.lab.probe(variant)
        if not outcomes:
            return None
        with suppress(TrialFailed):
            judged.append(probe.judge(variant, outcomes))
    return judged


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

    def judge(self, variant: Recipe, outcomes: Sequence[Outcome]) -> _Judged:
        """Compare a variant's trainings with as many before.

        Raises:
            TrialFailed: if trainings fail, or nothing is evaluated.
        """
        comparison = compare_outcomes(self.lab, self.now[: len(outcomes)], outcomes)
        max_loss = self.lab.job.ladder.max_accuracy_loss
        return _Judged(
            variant=variant,
            log_gain=self.log_gain(variant, outcomes),
            chance=chance_to_be_kept(quality_of(comparison), max_loss),
        )

    def log_gain(self, variant: Recipe, outcomes: Sequence[Outcome]) -> float:
        """Return the log of the speed-up, from the time of steps and validations.

        If it is not faster, a small positive value, so that the chance alone decides.
        """
        now_s = self._train_s(self.before, self.now)
        rest_s = max(0.0, self.profile.time.total_s - now_s)
        after_s = rest_s + self._train_s(variant, outcomes)
        return max(_LEAST_LOG_GAIN, math.log((rest_s + now_s) / after_s))

    def _train_s(self, recipe: Recipe, outcomes: Sequence[Outcome]) -> float:
        """Return the mean time of trainings: steps, by t(b) = a + c b, and validations."""
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
    """Return the change of the accuracy; without classes, the relative fall of the loss.

    Raises:
        TrialFailed: if nothing was evaluated.
    """
    if comparison.accuracy is not None:
        return comparison.accuracy
    change = comparison.loss
    if change is not None and comparison.loss_before:
        size = abs(comparison.loss_before)
        return Interval(
            estimate=-change.estimate / size, low=-change.high / size, high=-change.low / size
        )
    raise TrialFailed(comparison.why_not or "no training was evaluated on held-out examples")


def chance_to_be_kept(quality: Interval, max_loss: float) -> float:
    """Estimate the probability that a trial's lower bound stays within the allowed loss.

    Assumes that the trial has the same noise as the probe, and an interval of the same width.
    """
    half = (quality.high - quality.low) / 2
    room = quality.estimate - half + max_loss
    if half == 0:
        return float(room >= 0)
    return NormalDist().cdf(room * _DEVIATIONS / half)

"""The climb for accuracy: try remedies for the measured fit, and keep those that help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from stepladder.config.recipe import Recipe
from stepladder.ladder.accuracy.fit import (
    error_words,
    fit_errors,
    fit_words,
    larger_part,
    learns_more,
    why_not_by_fit,
)
from stepladder.ladder.climb import Climb
from stepladder.ladder.keys import learning_key
from stepladder.ladder.limits.guard import TrialFailed, Watchdog, faults_told, guarded
from stepladder.ladder.trial import TrialResult, apply_change
from stepladder.records.climb import FitErrors
from stepladder.records.ladder import Aim, Decision, Trial
from stepladder.rungs.contract import Against, Rung

_PARTS: Final = {
    Against.TRAINING: "the training error is the larger part",
    Against.GAP: "the generalisation gap is the larger part",
    None: "neither is above the noise of so few examples",
}


@dataclass(kw_only=True)
class AccuracyClimb(Climb):
    """A climb over remedies.

    Which remedies are tried depends on the fit: trainings are evaluated on held-out examples and on
    as many training examples. If the training error is the larger part, neither regularisation nor
    more data is tried; if it is the smaller part, nothing that makes fitting easier.
    """

    aim: ClassVar[Aim] = Aim.ACCURACY

    _fits: dict[Recipe, FitErrors | str] = field(default_factory=dict)

    def fit_of(self, recipe: Recipe) -> FitErrors | None:
        """Return the errors of a recipe; None if the budget does not allow full trainings."""
        found = self._fit(recipe)
        return None if isinstance(found, str) else found

    def why_not(self, rung: Rung) -> str | None:
        """Return why a rung cannot be tried or is no remedy for the current fit, or None."""
        refusal = super().why_not(rung)
        if refusal is not None:
            return refusal
        found = self._fit(self.recipe)
        return found if isinstance(found, str) else why_not_by_fit(rung, found)

    def worth_another_look(self) -> list[Rung]:
        """List the rungs that were no remedy for an earlier fit and may be one now."""
        not_here = Decision.NOT_HERE
        refused = {trial.rung for trial in self.trials if trial.verdict.decision is not_here}
        return [
            rung
            for rung in self.rungs
            if rung.name in refused and not rung.is_prediction_only and self.is_due(rung)
        ]

    def may_lose(self, trial: Trial) -> bool:  # noqa: ARG002
        """Return True: every kept rung was judged on held-out examples."""
        return True

    def is_due(self, rung: Rung) -> bool:
        """Return True if a rung can be tried now; False if its code raises."""
        try:
            with faults_told("error in the rung:"):
                return self.why_not(rung) is None
        except TrialFailed:
            return False

    def _fit(self, recipe: Recipe) -> FitErrors | str:
        """Measure a fit once and show it, or return why it is not known."""
        key = learning_key(recipe)
        if key not in self._fits:
            self._fits[key] = self._measured(recipe)
        return self._fits[key]

    def _measured(self, recipe: Recipe) -> FitErrors | str:
        watchdog = Watchdog(time_left=self.lab.time_left)
        try:
            with faults_told("training failed:"):
                expected_s = self.lab.forecast_s(recipe)
            with guarded(watchdog), faults_told("training failed:"):
                watchdog.expect(expected_s)
                outcomes = self.lab.outcomes(recipe)
        except TrialFailed as failure:
            return failure.what
        if outcomes.why_not is not None:
            return outcomes.why_not
        try:
            found = fit_errors(outcomes.found, target=self.options.target_error)
        except TrialFailed as failure:
            return failure.what
        self.display.message(f"errors: {fit_words(found)}; {_PARTS[larger_part(found)]}")
        return found


_MAX_STEPS: Final = 12


@dataclass(kw_only=True)
class FitRecipe(AccuracyClimb):
    """A climb for accuracy that grows the model first.

    While the training error is the larger part of the held-out error, rungs against it are tried in
    order, and repeatedly if they help. In this phase, a rung is kept if the training error falls by
    more than its noise, whatever happens to the held-out error: later remedies lower that. At the
    end, all kept rungs are tested against the original job, and undone from the last one while the
    result is less accurate.

    Source: Bengio 2012, "Practical Recommendations for Gradient-Based Training of Deep
    Architectures", arXiv:1206.5533; Karpathy 2019, "A Recipe for Training Neural Networks" (first
    overfit, then regularise).
    """

    least_together: ClassVar[int] = 1

    _is_growing: bool = True
    _grown: list[str] = field(default_factory=list)

    def in_order(self) -> Iterator[Rung]:
        """Yield rungs against the training error until the model overfits, then the others."""
        failed: list[str] = []
        for _ in range(_MAX_STEPS):
            rung = self._next_to_grow(failed)
            if rung is None:
                break
            yield rung
            if self._is_kept(rung):
                self._grown.append(rung.name)
            else:
                failed.append(rung.name)
        self._is_growing = False
        yield from (rung for rung in self.rungs if rung.name not in (*failed, *self._grown))

    def reconsidered(self, rung: Rung, found: TrialResult) -> TrialResult:
        """Keep a rung that lowers the training error, while the model grows."""
        trial = found.trial
        is_judged = trial.verdict.num_trainings > 0
        if not self._is_growing or trial.verdict.decision is Decision.KEPT or not is_judged:
            return found
        after = apply_change(self.recipe, trial.change)
        before_it, after_it = self.lab.outcomes(self.recipe).found, self.lab.outcomes(after).found
        if rung.against is not Against.TRAINING or not learns_more(before_it, after_it):
            return found
        fits = [fit_errors(one) for one in (before_it, after_it)]
        now, then = (error_words(fit, fit.training).removesuffix(" %") for fit in fits)
        reason = f"grown: training error {now} → {then}{'' if fits[0].is_loss else ' %'}"
        if trial.verdict.reason:
            reason += f" (held out: {trial.verdict.reason})"
        verdict = replace(trial.verdict, decision=Decision.KEPT, reason=reason)
        return TrialResult(trial=replace(trial, verdict=verdict), recipe=after)

    def _next_to_grow(self, failed: list[str]) -> Rung | None:
        """Return the next rung against a high training error; None: low, or no rung is left."""
        if self.why_no_advice is not None:
            return None
        fit = self.fit_of(self.recipe)
        if fit is None or larger_part(fit) is not Against.TRAINING:
            return None
        for rung in self.rungs:
            is_told = rung.is_prediction_only or rung.name in failed
            if rung.against is Against.TRAINING and not is_told and self.is_due(rung):
                return rung
        return None

    def _is_kept(self, rung: Rung) -> bool:
        last = [trial for trial in self.trials if trial.rung == rung.name][-1:]
        return any(trial.verdict.decision is Decision.KEPT for trial in last)

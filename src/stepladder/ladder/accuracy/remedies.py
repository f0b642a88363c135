"""The climb for accuracy: remedies for the fit as it is measured, each kept only if it helped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from stepladder.config.recipe import Recipe
from stepladder.ladder.accuracy.fit import fit_errors, fit_words, larger_part, why_not_by_fit
from stepladder.ladder.climb import Climb
from stepladder.ladder.limits.guard import TrialFailed, Watchdog, guarded
from stepladder.ladder.limits.rung_fault import faults_told
from stepladder.ladder.recipe_keys import learning_key
from stepladder.records.climb import FitErrors
from stepladder.records.ladder import Aim, Decision, Trial
from stepladder.rungs.contract import Against, Rung

_PARTS: Final = {
    Against.TRAINING: "the larger part is what it gets wrong of what it learnt from",
    Against.GAP: "the larger part is what comes on top for what it did not learn from",
    None: "that is none, within the noise of so few examples",
}


@dataclass(kw_only=True)
class AccuracyClimb(Climb):
    """A climb over remedies.

    Which ones fit is measured, by trainings that are judged on held-out examples and on as many
    that they learnt from: where the training error is the larger part, nothing that makes fitting
    harder is tried, nor more data; where it is the smaller one, nothing that makes it easier.
    """

    aim: ClassVar[Aim] = Aim.ACCURACY

    _fits: dict[Recipe, FitErrors | str] = field(default_factory=dict)

    def fit_of(self, recipe: Recipe) -> FitErrors | None:
        """Give what a recipe gets wrong; None where trainings to the end are not affordable."""
        found = self._fit(recipe)
        return None if isinstance(found, str) else found

    def why_not(self, rung: Rung) -> str | None:
        """Refuse where the rung does, and where it is no remedy for the fit as it is."""
        refusal = super().why_not(rung)
        if refusal is not None:
            return refusal
        found = self._fit(self.recipe)
        return found if isinstance(found, str) else why_not_by_fit(rung, found)

    def worth_another_look(self) -> list[Rung]:
        """List the rungs that an earlier fit had no use for, and that this one may have."""
        not_here = Decision.NOT_HERE
        refused = {trial.rung for trial in self.trials if trial.verdict.decision is not_here}
        return [
            rung
            for rung in self.rungs
            if rung.name in refused and not rung.is_prediction_only and self.is_due(rung)
        ]

    def may_lose(self, trial: Trial) -> bool:  # noqa: ARG002
        """Say yes: whatever was kept was judged on held-out examples."""
        return True

    def is_due(self, rung: Rung) -> bool:
        """Say whether a rung can be tried now; its own code may be wrong."""
        try:
            with faults_told("a fault of the rung:"):
                return self.why_not(rung) is None
        except TrialFailed:
            return False

    def _fit(self, recipe: Recipe) -> FitErrors | str:
        """Measure a fit once, and tell it; or say why it is not known."""
        key = learning_key(recipe)
        if key not in self._fits:
            self._fits[key] = self._measured(recipe)
        return self._fits[key]

    def _measured(self, recipe: Recipe) -> FitErrors | str:
        watchdog = Watchdog(time_left=self.lab.time_left)
        try:
            with faults_told("its trainings:"):
                expected_s = self.lab.forecast_s(recipe)
            with guarded(watchdog), faults_told("its trainings:"):
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

"""The climb: rung after rung, each predicted, tried, and kept only if it paid."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stepladder.config.options import LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.errors import StepladderError
from stepladder.ladder.keys import recipe_key
from stepladder.ladder.lab import Lab
from stepladder.ladder.ledger import Ledger
from stepladder.ladder.room import why_not_here
from stepladder.ladder.trial import apply_change, run_trial
from stepladder.measure.profile import PROFILE_S, ProfileMemory, take_profile
from stepladder.records.ladder import Aim, Decision, Prediction, Trial, Verdict
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.train.display import Display

LATER_PROFILE_S: Final = PROFILE_S / 2
"""Seconds of a profile after the first: parts of the earlier ones hold for it."""
NO_TRIAL = frozenset({Decision.NOT_HERE, Decision.SKIPPED, Decision.UNTRIED})


@dataclass(kw_only=True)
class Climb:
    """A climb in progress.

    Attributes:
        lab: what its trials share.
        ledger: where everything is written down.
        show: called with each trial, and each rung that gets none, once it is decided.
        job, machine: keys that a verdict holds for.
        recipe: what is kept so far.
        profile: of that recipe.
        trials: the last word on each rung, in the order in which they were decided.
        reads_ledger: take verdicts of earlier climbs on the same job and machine.
    """

    lab: Lab
    ledger: Ledger
    display: Display
    show: Callable[[Trial], None]
    job: str
    machine: str
    recipe: Recipe
    rungs: tuple[Rung, ...]
    reads_ledger: bool = True
    trials: list[Trial] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    num_from_ledger: int = 0
    _known: ProfileMemory = field(default_factory=ProfileMemory)
    _started: float = field(default_factory=time.monotonic)

    @property
    def profile(self) -> Profile:
        """The profile of the recipe so far."""
        return self.profiles[-1]

    @property
    def options(self) -> LadderConfig:
        """How the user wants it."""
        return self.lab.job.ladder

    def measure(self) -> Profile:
        """Take the profile of the recipe so far, and write it down; one in the ledger holds.

        Raises:
            StepladderError: if the timelines do not close: no advice can be given then.
        """
        key = recipe_key(self.recipe)
        earlier = self.ledger.find_profile(key) if self.reads_ledger else None
        if earlier is not None and earlier.no_advice_because is None:
            self.profiles.append(earlier)
            return earlier
        self.display.message("measuring the job …")
        epochs, num_validations, _ = self.lab.expected_epochs(self.recipe)
        material = self.lab.material(self.recipe)
        profile = take_profile(
            self.recipe,
            material.task,
            material.sources,
            device=self.lab.device,
            cache=self.lab.cache,
            epochs=epochs,
            num_validations=num_validations,
            curve=self.lab.curve(self.recipe),
            known=self._known,
            budget_s=LATER_PROFILE_S if self.profiles else PROFILE_S,
        )
        self.profiles.append(profile)
        at_s = time.monotonic() - self._started
        self.ledger.profile(profile, recipe=key, at_s=at_s)
        if profile.no_advice_because is not None:
            raise StepladderError(
                f"no advice can be given on this job: {profile.no_advice_because}",
                why="A gain that is predicted from times that do not add up would be a guess.",
                fix="Look for work between the named phases: hooks, threads, or other processes.",
            )
        return profile

    def run(self) -> Recipe:
        """Go up all rungs, then look once more at those whose ground has changed.

        Returns:
            The recipe with everything that paid.
        """
        if not self.profiles:
            self.measure()
        for rung in self.rungs:
            self._take(rung)
        for rung in self._worth_another_look():
            self._take(rung)
        return self.recipe

    def _take(self, rung: Rung) -> None:
        trial, after = self.consider(rung)
        self.trials = [t for t in self.trials if t.rung != rung.name] + [trial]
        self.show(trial)
        if trial.verdict.decision is Decision.KEPT:
            self.recipe = after
            self.measure()

    def consider(self, rung: Rung) -> tuple[Trial, Recipe]:
        """Decide on one rung: refuse, skip, or predict and try it."""
        refusal = self._why_not(rung)
        if refusal is not None:
            return self._untried(rung, Decision.NOT_HERE, refusal, None), self.recipe
        prediction = rung.predict(self.profile, self.recipe)
        self.ledger.prediction(prediction)
        if rung.is_prediction_only:
            reason = f"a prediction only: {prediction.note}"
            return self._untried(rung, Decision.NOT_HERE, reason, prediction), self.recipe
        known = self._from_ledger(rung)
        if known is not None:
            return known
        too_small = None if self.options.try_all else self.why_skip(rung, prediction)
        if too_small is not None:
            return self._untried(rung, Decision.SKIPPED, too_small, prediction), self.recipe
        if self.lab.time_left() <= 0:
            ended = "the budget ended before"
            return self._untried(rung, Decision.UNTRIED, ended, prediction), self.recipe
        self.display.message(f"trying {rung.name}: predicted {prediction.gain:.2g}×")
        started = time.monotonic()
        result = run_trial(self.lab, rung, self.profile, self.recipe, prediction)
        trial = replace(result.trial, took_s=time.monotonic() - started, **self._keys())
        self.ledger.trial(trial)
        return trial, result.recipe

    def _why_not(self, rung: Rung) -> str | None:
        return why_not_here(rung, self.profile, self.recipe, self.options)

    def why_skip(self, rung: Rung, prediction: Prediction) -> str | None:
        """Say why a rung is not worth a trial, or None."""
        least = 1 + self.options.min_gain
        if rung.aim is Aim.TIME and prediction.gain < least:
            because = f": {prediction.note}" if prediction.note else ""
            return f"predicted {prediction.gain:.2f}×, below {least:.2f}×{because}"
        return None

    def _from_ledger(self, rung: Rung) -> tuple[Trial, Recipe] | None:
        if not self.reads_ledger:
            return None
        found = self.ledger.find(
            job=self.job, machine=self.machine, recipe=recipe_key(self.recipe), rung=rung.name
        )
        if found is None:
            return None
        self.num_from_ledger += 1
        self.ledger.trial(found)  # once more, so that this ledger tells the whole climb
        is_kept = found.verdict.decision is Decision.KEPT
        return found, apply_change(self.recipe, found.change) if is_kept else self.recipe

    def _untried(
        self, rung: Rung, decision: Decision, reason: str, prediction: Prediction | None
    ) -> Trial:
        trial = Trial(
            rung=rung.name,
            level=rung.level,
            change={},
            prediction=prediction,
            verdict=Verdict(decision=decision, reason=reason),
            **self._keys(),
        )
        self.ledger.trial(trial)
        return trial

    def _keys(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "machine": self.machine,
            "recipe": recipe_key(self.recipe),
            "commit": self.lab.commit,
        }

    def _worth_another_look(self) -> list[Rung]:
        """List the rungs of TIME that were not kept, where the recipe has changed since."""
        now = recipe_key(self.recipe)
        decided = {trial.rung: trial for trial in self.trials}
        again = (Decision.DROPPED, Decision.UNDECIDED, Decision.SKIPPED)
        return [
            rung
            for rung in self.rungs
            if rung.aim is Aim.TIME
            and (trial := decided.get(rung.name)) is not None
            and trial.verdict.decision in again
            and trial.recipe != now
            and self._why_not(rung) is None
            and (
                self.options.try_all
                or self.why_skip(rung, rung.predict(self.profile, self.recipe)) is None
            )
        ]

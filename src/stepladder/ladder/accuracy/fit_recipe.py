"""The old advice as a workflow: grow the model until it overfits, then add remedies one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from stepladder.ladder.accuracy.fit import error_words, fit_errors, larger_part, learns_more
from stepladder.ladder.accuracy.remedies import AccuracyClimb
from stepladder.ladder.trial import TrialResult, apply_change
from stepladder.records.ladder import Decision
from stepladder.rungs.contract import Against, Rung

_MAX_STEPS: Final = 12


@dataclass(kw_only=True)
class FitRecipe(AccuracyClimb):
    """A climb for accuracy that grows the model first.

    As long as the training error is the larger part of the held-out error, rungs against it are
    taken in their order, again and again where they help. While it grows, a step is kept where the
    training error falls beyond its noise, whatever becomes of held-out examples: the remedies after
    it are for them. What all of it gives is tested against the job as written at the end, and steps
    are undone from the last one on while it is less accurate.

    Source: Bengio 2012, "Practical Recommendations for Gradient-Based Training of Deep
    Architectures", arXiv:1206.5533; Karpathy 2019, "A Recipe for Training Neural Networks" (first
    overfit, then regularise).
    """

    least_together: ClassVar[int] = 1

    _is_growing: bool = True
    _grown: list[str] = field(default_factory=list)

    def in_order(self) -> Iterator[Rung]:
        """Give what makes the model larger until it overfits, then the other rungs."""
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
        """Keep a step that lets the model learn more of its training examples, while it grows."""
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
        """Give the next rung against a high training error; None: it is low, or none is left."""
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

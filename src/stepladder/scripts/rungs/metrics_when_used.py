"""Compute metrics only in the steps that use them."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import MetricBlock, ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

_MIN_SHARE: Final = 0.01


class MetricsWhenUsed(ScriptRung):
    """Move lines into the `if` after them, if it alone uses what they compute.

    Such as an evaluation in each step whose accuracy is printed in every twentieth. The lines, and
    the functions that they call, must compute only: they draw no random numbers, and change no
    weights, statistics, lists or files. Only in the script itself, not in modules that it imports.

    Trades: nothing.
    """

    name: ClassVar[str] = "metrics_when_used"
    level: ClassVar[int] = 8
    needs_climb: ClassVar[bool] = True
    exactness: ClassVar[Exactness] = Exactness.BITWISE

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.moved_metrics:
            return "already on"
        costly = [one for one in facts.metrics if _saved(one) >= _MIN_SHARE]
        if not costly:
            return "no costly line computes what only the if after it uses"
        if not _movable(facts):
            return f"line {costly[0].first_line} cannot wait: {costly[0].why_not}"[:120]
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict from the share of the time in these lines, and how often they are used."""
        blocks = _movable(facts)
        share = min(0.98, sum(map(_saved, blocks)))
        lines = ", ".join(f"{one.first_line}" for one in blocks[:3])
        return Prediction(
            rung=self.name,
            gain=1 / (1 - share),
            provenance=Provenance.MODELLED,
            inputs={"saved_share": share},
            note=f"the time in line {lines} whenever it is not used",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:
        """Return the settings with it."""
        return replace(settings, moved_metrics=tuple(one.place.key for one in _movable(facts)))

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:
        """Return the moves."""
        edits = [
            Edit(rung=self.name, spot=Spot.INTO, place=one.place, text=str(one.num_statements))
            for one in _movable(facts)
            if one.place.key in settings.moved_metrics
        ]
        return tuple(edits) or "the lines are no longer there"


def _saved(block: MetricBlock) -> float:
    return block.share * (1 - block.used_share)


def _movable(facts: ScriptFacts) -> list[MetricBlock]:
    return [one for one in facts.metrics if one.why_not is None and _saved(one) >= _MIN_SHARE]

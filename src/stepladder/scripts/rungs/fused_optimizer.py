"""Update all weights in one kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

_SAVED = 0.7


class FusedOptimizer(ScriptRung):
    """Let the optimizer run one kernel for all weights instead of several for each.

    Trades: nothing.
    Source: PyTorch, `torch.optim`, "Algorithms": fused implementations.
    """

    name: ClassVar[str] = "fused_optimizer"
    level: ClassVar[int] = 6

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.fused_optimizer:
            return "already on"
        if settings.sparse_tables:
            return "fused optimizers take no sparse gradients"
        if not facts.optimizers:
            return "the script makes no optimizer of torch.optim"
        reasons = [_why_not_fused(one.is_fused, one.why_not_fused) for one in facts.optimizers]
        return None if None in reasons else reasons[0]

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict from the optimizer's share of the step."""
        share = min(0.95, facts.shares.get("optimizer", 0.0))
        return Prediction(
            rung=self.name,
            gain=1 / (1 - _SAVED * share),
            provenance=Provenance.MODELLED,
            inputs={"optimizer_share": share},
            note=f"saves {100 * _SAVED:.0f} % of the optimizer's time, a typical share",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:  # noqa: ARG002
        """Return the settings with it."""
        return replace(settings, fused_optimizer=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return the argument of each optimizer."""
        edits = []
        for one in facts.optimizers:
            if _why_not_fused(one.is_fused, one.why_not_fused) is not None:
                continue
            if one.place is None or not one.place.is_direct:
                return "a library makes the optimizer"
            edits.append(
                Edit(
                    rung=self.name,
                    spot=Spot.ARGUMENT,
                    place=one.place,
                    name="fused",
                    text="True",
                )
            )
        return tuple(edits)


def _why_not_fused(is_fused: bool | None, why_not: str | None) -> str | None:
    if is_fused is None:
        return "the optimizer has no fused implementation"
    return "already on" if is_fused else why_not

"""Keep activations for backward, instead of recomputing them."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from stepladder.records.ladder import Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import CHECKPOINT_OPTIONS, Settings

_MAX_MEMORY_FRAC: Final = 0.8


class KeptActivations(ScriptRung):
    """Do without activation checkpointing where the memory holds the activations.

    Trades: memory for the activations of a step.
    Source: Chen et al. 2016, arXiv:1604.06174 (checkpointing adds one forward to each step).
    """

    name: ClassVar[str] = "kept_activations"
    level: ClassVar[int] = 6

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.kept_activations:
            return "already on"
        if not facts.recomputed_share:
            return "the steps recompute no activations (torch.utils.checkpoint)"
        needed = facts.peak_bytes + facts.recomputed_bytes
        if needed > _MAX_MEMORY_FRAC * facts.capacity_bytes:
            return (
                f"its activations take {facts.recomputed_bytes / 1e9:.2g} GB beside "
                f"{facts.peak_bytes / 1e9:.2g} of {facts.capacity_bytes / 1e9:.3g} GB in use"
            )
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict that the second forward is left out, which takes as long as the first."""
        share = min(0.9, facts.recomputed_share)
        return Prediction(
            rung=self.name,
            gain=1 / (1 - share),
            provenance=Provenance.MODELLED,
            inputs={"recomputed_share": share, "recomputed_bytes": facts.recomputed_bytes},
            note=f"no second forward; it takes {facts.recomputed_bytes / 1e6:.2g} MB more",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:  # noqa: ARG002
        """Return the settings with it."""
        return replace(settings, kept_activations=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return the direct calls of what is recomputed."""
        places = [place for place in facts.recompute_places if place is not None]
        if len(places) < len(facts.recompute_places) or not all(one.is_direct for one in places):
            return "a library recomputes them"
        text = ", ".join(CHECKPOINT_OPTIONS)
        return tuple(
            Edit(rung=self.name, spot=Spot.DIRECT, place=place, text=text) for place in places
        )

"""Copy batches to pinned memory, from which a GPU reads without waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

_GAIN = 1.05


class PinnedBatches(ScriptRung):
    """Let the loader copy batches to pinned memory.

    Trades: a copy on the host. It pays where the script copies with `non_blocking=True`.
    Source: PyTorch, "A guide on good usage of non_blocking and pin_memory()".
    """

    name: ClassVar[str] = "pinned_batches"
    level: ClassVar[int] = 8
    needs_climb: ClassVar[bool] = True
    exactness: ClassVar[Exactness] = Exactness.BITWISE
    is_for_gpu: ClassVar[bool] = True

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        loader = facts.training_loader
        if not facts.has_gpu:
            return "no GPU"
        if loader is None or loader.place is None:
            return "training reads from no DataLoader that the script makes itself"
        return "already on" if loader.is_pinned or settings.pinned else None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Return a typical gain."""
        return self.typical(_GAIN)

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:
        """Return the settings with it."""
        loader = facts.training_loader
        place = loader.place.key if loader is not None and loader.place is not None else None
        return replace(settings, pinned=True, loader=place)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return the argument of the loader."""
        loader = facts.training_loader
        if loader is None or loader.place is None or not loader.place.is_direct:
            return "a library makes the loader"
        place = loader.place
        return (
            Edit(rung=self.name, spot=Spot.ARGUMENT, place=place, name="pin_memory", text="True"),
        )

"""Switch off torch's search for anomalies in backward."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.script import Place, ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

_GAIN: Final = 1.3
_OFF: Final = "torch.autograd.set_detect_anomaly(False)"


class NoAnomalyMode(ScriptRung):
    """Do without a traceback for each operation and a search for NaN in each gradient.

    Trades: an error that names the operation whose gradient is NaN.
    Source: PyTorch, "Performance Tuning Guide", "Disable debugging APIs".
    """

    name: ClassVar[str] = "no_anomaly_mode"
    level: ClassVar[int] = 6
    exactness: ClassVar[Exactness] = Exactness.BITWISE
    remark: ClassVar[str] = "a NaN in backward is no longer reported"

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.no_anomaly_mode:
            return "already on"
        if not facts.has_anomaly_mode:
            return "torch.autograd.set_detect_anomaly is not on in the steps"
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Return a typical gain."""
        return self.typical(_GAIN)

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:  # noqa: ARG002
        """Return the settings with it."""
        return replace(settings, no_anomaly_mode=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return a line before the optimizer, and what replaces calls after it."""
        edits: list[Edit] = []
        made = [one for one in facts.optimizers if one.has_anomaly_mode]
        if made:
            if made[0].place is None:
                return "the script does not make its optimizer in its own files"
            edits.append(self._edit(Spot.BEFORE, made[0].place))
        for call in facts.anomaly_calls:
            if call is None or not call.is_direct:
                return "a library switches it on"
            edits.append(self._edit(Spot.INSTEAD, call))
        return tuple(edits) or "the call that switches it on was not found"

    def _edit(self, spot: Spot, place: Place) -> Edit:
        return Edit(rung=self.name, spot=spot, place=place, text=_OFF, imports=("torch",))

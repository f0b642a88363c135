"""Compute with all cores."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings


class ComputeThreads(ScriptRung):
    """Let an operation use as many threads as there are cores.

    Trades: nothing, unless loader processes or other programs need the cores.
    Source: PyTorch, "CPU threading and TorchScript inference".
    """

    name: ClassVar[str] = "compute_threads"
    level: ClassVar[int] = 6

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if facts.has_gpu:
            return "the script computes on a GPU"
        if (settings.threads or facts.threads) >= facts.num_cores:
            return "already on: one thread a core"
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict that all but data and files are faster by the number of threads, a bound."""
        idle = facts.shares.get("data_wait", 0.0) + facts.shares.get("checkpoint", 0.0)
        times = facts.num_cores / max(1, facts.threads)
        return Prediction(
            rung=self.name,
            gain=1 / (idle + (1 - idle) / times),
            provenance=Provenance.MODELLED,
            inputs={"threads": facts.threads, "cores": facts.num_cores},
            note="at most: operations would use all cores equally well",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:
        """Return the settings with it."""
        return replace(settings, threads=facts.num_cores)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:
        """Return the call, before the optimizer is made: after the script's own one."""
        text = f"torch.set_num_threads({settings.threads})"
        place = next((one.place for one in facts.optimizers if one.place is not None), None)
        if place is None:
            return "the script does not make its optimizer in its own files"
        return (Edit(rung=self.name, spot=Spot.BEFORE, place=place, text=text, imports=("torch",)),)

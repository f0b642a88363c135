"""Read batches in other processes, while the script computes."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings


class LoaderWorkers(ScriptRung):
    """Let the loader read in as many processes as there are cores, and keep them between epochs.

    Trades: memory of the processes; on a CPU they compete with the computation.
    Source: PyTorch, "Performance Tuning Guide", "Enable asynchronous data loading".
    """

    name: ClassVar[str] = "loader_workers"
    level: ClassVar[int] = 8
    needs_climb: ClassVar[bool] = True
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        loader = facts.training_loader
        if settings.workers is not None:
            return "already on"
        if loader is None or loader.place is None:
            return "training reads from no DataLoader that the script makes itself"
        if loader.is_stream and not loader.num_workers:
            return "the dataset is a stream: several processes would read the same examples"
        if loader.num_workers >= facts.num_cores and loader.keeps_workers:
            return f"already on: {loader.num_workers} processes"
        if settings.examples_in_memory or settings.decoded_method is not None:
            return "the examples are in memory"
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict the wait that the processes save; on a CPU they share the cores."""
        wait = min(0.98, facts.shares.get("data_wait", 0.0))
        left = 1 - wait if facts.has_gpu else max(1 - wait, 1 / facts.num_cores)
        return Prediction(
            rung=self.name,
            gain=1 / left,
            provenance=Provenance.MODELLED,
            inputs={"data_wait_share": wait, "cores": facts.num_cores},
            note="at most the wait for data",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:
        """Return the settings with it."""
        loader = facts.training_loader
        place = loader.place.key if loader is not None and loader.place is not None else None
        return replace(settings, workers=facts.num_cores, loader=place)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:
        """Return the arguments of the loader."""
        loader = facts.training_loader
        if loader is None or loader.place is None or not loader.place.is_direct:
            return "a library makes the loader"
        values = {"num_workers": str(settings.workers), "persistent_workers": "True"}
        return tuple(
            Edit(rung=self.name, spot=Spot.ARGUMENT, place=loader.place, name=name, text=value)
            for name, value in values.items()
        )

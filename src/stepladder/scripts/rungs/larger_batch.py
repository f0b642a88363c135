"""Take more examples in a step, with a learning rate that fits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Final

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

FACTOR: Final = 4
_MIN_BATCHES: Final = 8
_SAVED: Final = 0.3
_ADAPTIVE: Final = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop", "Adadelta")


class LargerBatch(ScriptRung):
    """Put four times as many examples in a batch, and scale the learning rate with it.

    The rate is multiplied by 4 for SGD, and by 2, its square root, for optimizers that divide by
    the size of the gradient. Tried only with --metric: only the end of training shows whether it
    learns as well.

    Trades: fewer, larger updates.
    Source: Goyal et al. 2017, arXiv:1706.02677; Malladi et al. 2022, arXiv:2205.10287.
    """

    name: ClassVar[str] = "larger_batch"
    level: ClassVar[int] = 7
    needs_climb: ClassVar[bool] = True
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL
    needs_metric: ClassVar[bool] = True

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.batch_factor == 1 and facts.bytes_with(FACTOR) > facts.capacity_bytes:
            return (
                f"it may take {facts.bytes_with(FACTOR) / 1e9:.2g} of "
                f"{facts.capacity_bytes / 1e9:.3g} GB of memory"
            )
        return self.why_not_larger(facts, settings)

    def why_not_larger(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why a larger batch cannot be applied, whatever memory it takes."""
        loader = facts.training_loader
        if settings.batch_factor > 1:
            return "already on"
        if loader is None or loader.place is None:
            return "training reads from no DataLoader that the script makes itself"
        if not facts.batch_size:
            return "the size of a batch is not known"
        if len(facts.optimizers) != 1:
            return f"the script makes {len(facts.optimizers)} optimizers"
        if (loader.num_examples or 0) < _MIN_BATCHES * FACTOR * facts.batch_size:
            return f"an epoch would have fewer than {_MIN_BATCHES} steps"
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict from the optimizer's share, and a typical share of overhead in the rest."""
        share = facts.shares.get("optimizer", 0.0) + _SAVED * facts.computing_share
        return Prediction(
            rung=self.name,
            gain=1 / (1 - min(0.9, share) * (1 - 1 / FACTOR)),
            provenance=Provenance.ASSUMED,
            inputs={"share_of_each_step": share, "factor": FACTOR},
            note=f"the optimizer and {100 * _SAVED:.0f} % of forward and backward, a typical "
            "share, do not depend on the batch",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:
        """Return the settings with it."""
        loader = facts.training_loader
        place = loader.place.key if loader is not None and loader.place is not None else None
        kind = facts.optimizers[0].kind if facts.optimizers else ""
        lr_factor = math.sqrt(FACTOR) if kind in _ADAPTIVE else float(FACTOR)
        return replace(settings, batch_factor=FACTOR, lr_factor=lr_factor, loader=place)

    def steps_ratio(self, settings: Settings) -> int:
        """Return the factor of the batch."""
        return settings.batch_factor

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:
        """Return factors of two arguments."""
        loader = facts.training_loader
        optimizer = facts.optimizers[0]
        if loader is None or loader.place is None or not loader.place.is_direct:
            return "a library makes the loader"
        if optimizer.place is None or not optimizer.place.is_direct:
            return "a library makes the optimizer"
        return (
            Edit(
                rung=self.name,
                spot=Spot.SCALE,
                place=loader.place,
                name="batch_size",
                position=1,
                text=f"{settings.batch_factor}",
            ),
            Edit(
                rung=self.name,
                spot=Spot.SCALE,
                place=optimizer.place,
                name="lr",
                position=1,
                text=f"{settings.lr_factor:g}",
            ),
        )

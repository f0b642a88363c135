"""Update only those rows of large embeddings that a step uses."""

from __future__ import annotations

import keyword
from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import LargeTable, ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings


class SparseGradients(ScriptRung):
    """Let large embeddings have sparse gradients, where the optimizer can use them as it is.

    Only those with a million values or more, of which a step uses at most 5 % of the rows; with SGD
    without momentum, or Adagrad on a CPU, and neither weight decay nor clipping.

    Trades: what reads these gradients receives sparse tensors.
    Source: PyTorch, `torch.nn.Embedding`, "sparse".
    """

    name: ClassVar[str] = "sparse_gradients"
    level: ClassVar[int] = 6
    needs_climb: ClassVar[bool] = True

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.sparse_tables:
            return "already on"
        if not facts.tables:
            return "no large embedding of which a step uses few rows"
        if not _usable(facts):
            return facts.tables[0].why_not
        return "fused optimizers take no sparse gradients" if settings.fused_optimizer else None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict that rows that a step does not use take no time, a bound."""
        tables = _usable(facts)
        share = min(0.98, sum(table.share for table in tables))
        rows = ", ".join(f"{table.num_used:,} of {table.num_rows:,}" for table in tables[:3])
        return Prediction(
            rung=self.name,
            gain=1 / (1 - share),
            provenance=Provenance.MODELLED,
            inputs={"dense_share": share},
            note=f"at most: a step uses {rows} rows, and the others would take no time",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:
        """Return the settings with it."""
        return replace(settings, sparse_tables=tuple(table.path for table in _usable(facts)))

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:
        """Return a line for each embedding before the optimizer of its model."""
        edits: list[Edit] = []
        left = [table for table in _usable(facts) if table.path in settings.sparse_tables]
        for one in facts.models:
            lines = [_line(table) for table in left if table.model == one.model]
            if lines and one.place is not None:
                left = [table for table in left if table.model != one.model]
                text = "\n".join(lines)
                edits.append(Edit(rung=self.name, spot=Spot.BEFORE, place=one.place, text=text))
        if left or not edits:
            return "the script does not make its optimizer in its own files"
        return tuple(edits)


def _usable(facts: ScriptFacts) -> list[LargeTable]:
    return [table for table in facts.tables if table.why_not is None]


def _line(table: LargeTable) -> str:
    """Return the line that makes the gradient of an embedding sparse."""
    parts = table.module.split(".") if table.module else []
    if all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        return f"{table.path}.sparse = True"
    return f'{table.model}.get_submodule("{table.module}").sparse = True'

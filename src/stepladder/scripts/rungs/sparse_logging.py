"""Log in some steps instead of in each one."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import LogCall, ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

EVERY = 50
_MIN_SHARE = 0.01


class SparseLogging(ScriptRung):
    """Let lines that print or log in each step do so in every fiftieth.

    Lines of `print`, `logging`, TensorBoard, tqdm, wandb, MLflow and matplotlib that take 1 % of
    the time or more. In the diff, what such a line computes is left out as well.

    Trades: fewer lines in the log.
    """

    name: ClassVar[str] = "sparse_logging"
    level: ClassVar[int] = 8
    needs_climb: ClassVar[bool] = True
    exactness: ClassVar[Exactness] = Exactness.BITWISE
    remark: ClassVar[str] = f"these lines log in every {EVERY}th step"

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.log_every > 1:
            return "already on"
        if not _costly(facts):
            return f"no line that logs in each step takes {100 * _MIN_SHARE:.0f} % of the time"
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict from the share of the time in calls that log."""
        calls = _costly(facts)
        share = min(0.95, sum(call.share for call in calls))
        return Prediction(
            rung=self.name,
            gain=1 / (1 - share * (1 - 1 / EVERY)),
            provenance=Provenance.MODELLED,
            inputs={"logging_share": share},
            note=", ".join(f"{call.function} in line {call.place.line}" for call in calls[:3]),
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:
        """Return the settings with it."""
        places = tuple(call.place.key for call in _costly(facts))
        return replace(settings, log_every=EVERY, log_places=places)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:
        """Return a condition around each of the lines."""
        edits: list[Edit] = []
        for call in _costly(facts):
            if call.place.key not in settings.log_places:
                continue
            if not call.place.is_direct:
                return "a library makes the call"
            if call.num_per_step > 1.0:
                return "the line logs several times in a step"
            counter = f"log_steps_{call.place.line}"
            edits += [
                Edit(
                    rung=self.name,
                    spot=Spot.START,
                    place=call.place,
                    text=f"{counter} = itertools.count()",
                    imports=("itertools",),
                ),
                Edit(
                    rung=self.name,
                    spot=Spot.GUARD,
                    place=call.place,
                    text=f"next({counter}) % {EVERY} == 0",
                ),
            ]
        return tuple(edits) or "the lines are no longer there"


def _costly(facts: ScriptFacts) -> tuple[LogCall, ...]:
    return tuple(call for call in facts.logs if call.share >= _MIN_SHARE)

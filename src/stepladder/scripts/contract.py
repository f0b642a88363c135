"""The interface of a rung for scripts: one change, from outside and in the script's text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import Place, ScriptFacts
from stepladder.scripts.settings import Settings

NO_MODEL: Final = "no variable of the script holds the model where the optimizer is made"


class Spot(StrEnum):
    """Where an edit goes.

    START: after the imports. BEFORE: before the statement with the call. GUARD: a condition around
    the statement. ARGUMENT: an argument of the call. SCALE: a factor of an argument that the call
    has. AROUND: around the first argument of the call. FUNCTION: the function that is called.
    INSTEAD: in place of the call. DIRECT: its first argument is called with the others. SPLIT: the
    place is a method, whose first statements become a method of their own. INTO: the place is an
    `if`, into which statements before it are moved.
    """

    START = "start"
    BEFORE = "before"
    GUARD = "guard"
    ARGUMENT = "argument"
    SCALE = "scale"
    AROUND = "around"
    FUNCTION = "function"
    INSTEAD = "instead"
    DIRECT = "direct"
    SPLIT = "split"
    INTO = "into"


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A change of the script's text.

    Attributes:
        rung: for the comment.
        spot: where.
        place: the call; for START, of which only the file matters, None is the script itself.
        text: lines of code; for GUARD the condition, for ARGUMENT its value, for SCALE the factor,
            for AROUND the function that is put around, for FUNCTION the one that is called, for
            INSTEAD an expression, for DIRECT the names of arguments that are left out, for SPLIT
            and INTO the number of statements.
        name: of the argument.
        position: of the argument if it has no name in the call.
        imports: modules that the text needs, as `import NAME`.
    """

    rung: str
    spot: Spot
    place: Place | None = None
    text: str
    name: str = ""
    position: int = 0
    imports: tuple[str, ...] = ()


class ScriptRung(ABC):
    """One step of the ladder for scripts: pure functions of data.

    Attributes:
        name: named like the file; what the user types and reads.
        level: as in the ladder of recipes.
        exactness: how far it may change what is learnt.
        is_for_gpu: it is applied only where the script trains on a GPU, which this project's tests
            do not have.
        is_for_process: it needs no model, optimizer or loader.
        needs_metric: losses of single steps do not show whether it learns as well.
        needs_climb: it changes places of the script that a climb finds.
        costs_once: its first step takes longer, perhaps much longer.
        remark: what has to be known about its gain if it is kept.
    """

    name: ClassVar[str]
    level: ClassVar[int]
    exactness: ClassVar[Exactness] = Exactness.ROUNDING
    is_for_gpu: ClassVar[bool] = False
    is_for_process: ClassVar[bool] = False
    needs_climb: ClassVar[bool] = False
    costs_once: ClassVar[bool] = False
    remark: ClassVar[str] = ""
    needs_metric: ClassVar[bool] = False

    @abstractmethod
    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why the rung cannot be applied to this script; None: it can."""

    @abstractmethod
    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:
        """Predict the gain of a step, or its bound; called if why_not is None."""

    @abstractmethod
    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:
        """Return the changed settings."""

    def warm_up(self, facts: ScriptFacts) -> int:  # noqa: ARG002
        """Return the steps after which its gain shows; 0: at once."""
        return 0

    def steps_ratio(self, settings: Settings) -> int:  # noqa: ARG002
        """Return how many steps of the script one step with these settings replaces."""
        return 1

    def of_computing(self, facts: ScriptFacts, times: float, note: str = "") -> Prediction:
        """Return a prediction by a typical gain of forward and backward."""
        share = facts.computing_share
        return Prediction(
            rung=self.name,
            gain=1 / (1 - share + share / times),
            provenance=Provenance.ASSUMED,
            inputs={"computing_share": share},
            note=f"forward and backward {times:g} times as fast, {note or 'a typical gain'}",
        )

    def typical(self, gain: float) -> Prediction:
        """Return a prediction of a typical gain of the step."""
        return Prediction(
            rung=self.name, gain=gain, provenance=Provenance.ASSUMED, note="a typical gain"
        )

    def before_optimizers(
        self, facts: ScriptFacts, lines: Callable[[str], str]
    ) -> tuple[Edit, ...] | str:
        """Return lines before each optimizer, or why they cannot be placed.

        Args:
            lines: returns them for the script's name of the model.
        """
        edits = [
            Edit(
                rung=self.name,
                spot=Spot.BEFORE,
                place=one.place,
                text=(text := lines(one.model)),
                imports=("torch",) if "torch." in text else (),
            )
            for one in facts.models
            if one.place is not None and one.model is not None
        ]
        return tuple(edits) or NO_MODEL

    @abstractmethod
    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:
        """Return the same change in the script's text; a string: why it can only be applied.

        Args:
            settings: with the rung.
        """

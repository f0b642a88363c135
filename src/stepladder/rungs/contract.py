"""What a rung is: one speed-up, told as a change of the recipe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile


class Against(StrEnum):
    """Which part of the held-out error a rung for accuracy works on.

    TRAINING: what a model gets wrong of the examples that it learnt from.
    GAP: what comes on top of that for examples that it did not.
    """

    TRAINING = "training"
    GAP = "gap"


class Rung(ABC):
    """One step of the ladder. Data in, data out: it never touches a model, a file or a clock.

    Subclasses are named as the user types them; their docstring says what they do, what they trade
    and the source.

    Attributes:
        name: as in the table, the ledger and the file's name.
        level: its step in the order of the ladder, 1 to 12 (docs/design.md).
        aim: TIME is kept when it is faster beyond doubt and not worse; MEMORY is tried only when a
            limit blocks a run or a later rung; ACCURACY when the lower bound of the paired gain is
            above 0 within the stated extra time.
        exactness: how far it may change what is learnt.
        is_prediction_only: it can be predicted but not tried here, such as other hardware.
        is_enabler: a MEMORY rung, judged together with the rung that it makes possible.
        looks_first: names of rungs whose second look, where one is due, comes before this one: what
            it changes would stand in their way.
        against: the part of the error that an ACCURACY rung works on; None: both.
    """

    name: ClassVar[str]
    level: ClassVar[int]
    aim: ClassVar[Aim] = Aim.TIME
    exactness: ClassVar[Exactness] = Exactness.ROUNDING
    is_prediction_only: ClassVar[bool] = False
    is_enabler: ClassVar[bool] = False
    looks_first: ClassVar[tuple[str, ...]] = ()
    against: ClassVar[Against | None] = None

    @abstractmethod
    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Say in words why it cannot apply here, "already on" included; None: it can."""

    @abstractmethod
    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Predict time to a trained model from the current profile; called if why_not is None."""

    @abstractmethod
    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Return the changed recipe; the one given stays as it is."""

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
        """Return the recipes that a trial chooses among by a probe, the likeliest first.

        By default there is one.
        """
        return (self.apply(profile, recipe),)

    def predict_variant(
        self,
        profile: Profile,
        recipe: Recipe,
        variant: Recipe,  # noqa: ARG002
    ) -> Prediction:
        """Predict the time of one of the variants; by default what `predict` gives."""
        return self.predict(profile, recipe)

    def disk_bytes(self, profile: Profile, recipe: Recipe) -> int:  # noqa: ARG002
        """Return the bytes on disk that its recipe takes before it trains; by default none."""
        return 0

    def exactness_of(self, recipe: Recipe) -> Exactness:  # noqa: ARG002
        """Return how far this rung may change what is learnt from the changed recipe."""
        return self.exactness

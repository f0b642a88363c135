"""The interface of a rung: one change of the recipe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile


class Against(StrEnum):
    """Which part of the held-out error a rung for accuracy reduces.

    TRAINING: the training error.
    GAP: the generalisation gap, by which the held-out error is larger.
    """

    TRAINING = "training"
    GAP = "gap"


class Rung(ABC):
    """One step of the ladder: pure functions of data that use no model, file or clock.

    Subclasses are named like the rung; their docstring has what they change, what they trade and
    the source.

    Attributes:
        name: used in the table, the ledger and the file name.
        level: its position in the order of the ladder, 1 to 12 (docs/rungs.md).
        aim: TIME is kept if it is clearly faster and no worse; MEMORY is tried only if a limit
            blocks a run or a later rung; ACCURACY is kept if the lower bound of the paired gain is
            above 0 within the allowed extra time.
        exactness: how far it may change what is learnt.
        is_prediction_only: it can be predicted but not tried here, such as other hardware.
        is_enabler: a MEMORY rung, judged together with the rung that it makes possible.
        looks_first: names of rungs that are retried before this one, if they are due, because its
            change would prevent them.
        needs_devices: its prediction needs `Profile.devices`, which is measured right before it.
        needs_machines: likewise `Profile.machines`.
        against: the part of the error that an ACCURACY rung reduces; None: both.
    """

    name: ClassVar[str]
    level: ClassVar[int]
    aim: ClassVar[Aim] = Aim.TIME
    exactness: ClassVar[Exactness] = Exactness.ROUNDING
    is_prediction_only: ClassVar[bool] = False
    is_enabler: ClassVar[bool] = False
    looks_first: ClassVar[tuple[str, ...]] = ()
    needs_devices: ClassVar[bool] = False
    needs_machines: ClassVar[bool] = False
    against: ClassVar[Against | None] = None

    @abstractmethod
    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Return why the rung cannot be applied here, such as "already on"; None: it can."""

    @abstractmethod
    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Predict the time to a trained model from the profile; called if why_not is None."""

    @abstractmethod
    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Return the changed recipe, without modifying the given one."""

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
        """Return the recipes among which a trial chooses by a probe, the most promising first.

        By default only one.
        """
        return (self.apply(profile, recipe),)

    def predict_variant(
        self,
        profile: Profile,
        recipe: Recipe,
        variant: Recipe,  # noqa: ARG002
    ) -> Prediction:
        """Predict the time of one of the variants; by default that of `predict`."""
        return self.predict(profile, recipe)

    def disk_bytes(self, profile: Profile, recipe: Recipe) -> int:  # noqa: ARG002
        """Return the bytes on disk that the changed recipe needs before training; by default 0."""
        return 0

    def exactness_of(self, recipe: Recipe) -> Exactness:  # noqa: ARG002
        """Return how far the changed recipe may differ in what is learnt."""
        return self.exactness

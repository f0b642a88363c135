"""The contract of what trains the members of a population."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from stepladder.populations.genes import Values
from stepladder.records.population import Score


class IntervalCancelled(Exception):  # noqa: N818  (requested, so not an error)
    """An interval was left before its end; it begins again when the population resumes."""


class Members(Protocol):
    """The models of a population, in whatever way they are trained.

    Everything random in them depends on their seeds and their position only, so that an interval
    that is repeated after a kill has the same result.
    """

    @property
    def is_head(self) -> bool:
        """Whether the kept weights have the names of the head alone, not those of the model."""
        ...

    def train(self, values: Sequence[Values], num_examples: int) -> None:
        """Train each member on some examples, with its genes; a member that diverges stays so.

        Raises:
            IntervalCancelled: if it was interrupted, and is to begin again.
        """
        ...

    def scores(self) -> list[Score]:
        """Return the score of each member on the validation split."""
        ...

    def inherit(self, parents: Sequence[int]) -> None:
        """Let each member take the weights and the optimizer state of its parent, or keep its own.

        The parents' are those from before: members can take from each other at once.
        """
        ...

    def keep(self, member: int) -> None:
        """Keep a copy of a member as the best so far."""
        ...

    def judge(self) -> tuple[Score, Score] | None:
        """Return the score of the kept member, and the mean of all, on a split that chose nothing.

        None if there is no such split.
        """
        ...

    def kept_weights(self) -> Mapping[str, Tensor]:
        """Return the trained weights of the kept member, by its names; see `is_head`."""
        ...

    def save(self, folder: Path, name: str) -> None:
        """Write all members into a new file or folder of this name, durably."""
        ...

    def load(self, folder: Path, name: str) -> None:
        """Restore all members from what `save` wrote.

        Raises:
            DataError: if it is damaged or belongs to other members.
        """
        ...

    def close(self) -> None:
        """Close readers and processes."""
        ...

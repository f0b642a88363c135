"""Results of a population: what its members were, and who took the weights of whom."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

POPULATION_FILE: Final = "population.json"
LINEAGE_FILE: Final = "population.jsonl"


@dataclass(frozen=True, kw_only=True)
class Score:
    """How good a model is on a split.

    Attributes:
        loss: mean over the examples; not finite if the model diverged.
        accuracy: in [0, 1]; None without classes.
    """

    loss: float
    accuracy: float | None = None

    @property
    def is_finite(self) -> bool:
        """Whether the model has not diverged."""
        return math.isfinite(self.loss)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A member in one interval of training.

    Attributes:
        generation: number of the interval, from 0.
        member: number of the member.
        parent: the member whose weights it began with, in the interval before; itself if it kept
            its own, and in the first interval.
        genes: values by option.
        score: on the validation split, at the end of the interval.
    """

    generation: int
    member: int
    parent: int
    genes: Mapping[str, float | int | str]
    score: Score


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The best member, judged on the validation split and on another one.

    Attributes:
        generation, member: where it was.
        validation: its score, by which it was chosen.
        judged: its score on the split that has chosen nothing; None without one.
        mean_validation, mean_judged: mean scores of all members at the end, on both.
    """

    generation: int
    member: int
    validation: Score
    judged: Score | None = None
    mean_validation: Score | None = None
    mean_judged: Score | None = None


@dataclass(frozen=True, kw_only=True)
class PopulationSummary:
    """A population that has ended.

    Attributes:
        job: name of the job.
        engine: what trained the members.
        monitor: what members were chosen by.
        genes: options that differed; log_genes: those of them whose ranges are logarithmic.
        num_members: size of the population.
        interval: examples between two selections.
        examples: that each member was trained on.
        ended: why it ended.
        seconds: of all attempts.
        judged_on: the split that judged the winner; empty without one.
        winner: the best member.
        moments: all members in all intervals.
        target: value of the monitor at which it was to end; None: it had none.
    """

    job: str
    engine: str
    monitor: str
    genes: tuple[str, ...]
    log_genes: tuple[str, ...]
    num_members: int
    interval: int
    examples: int
    ended: str
    seconds: float
    judged_on: str
    winner: Winner
    moments: tuple[Moment, ...]
    target: float | None = None

    @property
    def num_generations(self) -> int:
        """Number of intervals."""
        return 1 + max(moment.generation for moment in self.moments)

    @property
    def num_diverged(self) -> int:
        """Number of members that diverged, and were replaced."""
        return sum(not moment.score.is_finite for moment in self.moments)

    def path(self) -> list[Moment]:
        """Return the moments that the winner's weights went through, the first one first."""
        at = {(moment.generation, moment.member): moment for moment in self.moments}
        found = [at[self.winner.generation, self.winner.member]]
        while found[-1].generation > 0:
            found.append(at[found[-1].generation - 1, found[-1].parent])
        return found[::-1]

    def optimism(self) -> tuple[float, str] | None:
        """Return by how much the validation split flatters the winner, and in which number.

        Winner and members are compared on both splits, so that a split that is harder for all of
        them does not count: (validation - judged) of the winner, minus that of the mean member.
        Positive: the winner is better on validation than it really is. In accuracy if there are
        classes, else in loss.
        """
        win = self.winner
        if win.judged is None or win.mean_validation is None or win.mean_judged is None:
            return None
        scores = (win.validation, win.judged, win.mean_validation, win.mean_judged)
        accuracies = [score.accuracy for score in scores]
        if None not in accuracies:
            a, b, c, d = (value for value in accuracies if value is not None)
            return (a - b) - (c - d), "accuracy"
        a, b, c, d = (score.loss for score in scores)
        return (b - a) - (d - c), "loss"

"""The interface of a cause of slow steps, and what it is inferred from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from stepladder.watching.script.filled import filled_by
from stepladder.watching.script.stores import joined_by
from stepladder.watching.seen.costs import SampleSeen, Spot
from stepladder.watching.seen.seen import Seen

MIN_SAMPLES: Final = 20  # with fewer, no line is named
MAX_SHARE: Final = 0.98  # that a change is said to save: a gain of at most 50


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Something that takes time and can be changed.

    Attributes:
        name: of the change.
        share: the share of all time that the change saves at most, in [0, 1].
        text: what was seen with its numbers, and the change.
        is_loose: it may save far less than that.
        lines: of the script, which it explains.
        replaces: names of more general causes, which are not listed if it explains most of them.
    """

    name: str
    share: float
    text: str
    is_loose: bool = False
    lines: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """Return how many times as fast the script can become."""
        return 1 / (1 - min(max(self.share, 0.0), MAX_SHARE))


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What causes are inferred from.

    Attributes:
        shares: share of the time by phase.
        whole_s: seconds of all phases.
        num_steps: steps that were timed.
        facts: of the run; see `report.facts_of`.
        block_s: seconds per step in equal blocks of steps.
        busy: share of the time in which a GPU computes; 0 without one, or if it is not known.
    """

    seen: Seen
    shares: Mapping[str, float]
    whole_s: float
    num_steps: int
    facts: Mapping[str, object]
    block_s: tuple[float, ...] = ()
    busy: float = 0.0
    num_validations: int = 0

    @property
    def has_gpu(self) -> bool:
        """Return whether the script computes on a GPU."""
        return self.facts.get("device", "cpu") != "cpu"

    @property
    def compute(self) -> float:
        """Return the share of forward and backward."""
        return self.shares.get("forward", 0.0) + self.shares.get("backward", 0.0)

    @cached_property
    def samples(self) -> tuple[SampleSeen, ...]:
        """Return the samples of the stack; none if there are too few to name lines."""
        stacks = self.seen.costs.stacks
        read: dict[Spot, Spot] = {}
        return (
            tuple(_read(one, read) for one in stacks.samples) if stacks.num >= MIN_SAMPLES else ()
        )

    @cached_property
    def sampled_s(self) -> float:
        """Return the seconds that the samples represent."""
        return sum(one.seconds for one in self.samples)

    def share_of(self, seconds: float) -> float:
        """Return the share of all time, from seconds of samples.

        On a GPU, the host's time can be saved only as far as the GPU does not compute meanwhile.
        """
        share = seconds / self.sampled_s if self.sampled_s else 0.0
        return min(share, max(0.0, 1 - self.busy))


def _read(sample: SampleSeen, known: dict[Spot, Spot]) -> SampleSeen:
    """Return a sample whose lines say what they concatenate with, and what their loops compute."""
    for spot in sample.spots:
        if (spot.nearby or spot.body) and spot not in known:
            joins, store = joined_by(spot.nearby, spot.line) if spot.nearby else ("", "")
            fills = filled_by(spot.body, spot.at) if spot.body else ""
            known[spot] = replace(
                spot, nearby=(), line=0, joins=joins, store=store, body=(), at=0, fills=fills
            )
    if not any(spot in known for spot in sample.spots):
        return sample
    return replace(sample, spots=tuple(known.get(spot, spot) for spot in sample.spots))


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.0f} %"

"""Numbers of a plan: a value with its bounds, and where it is from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stepladder.records.profile import Provenance


class Case(StrEnum):
    """Which end of each range a prediction uses."""

    BEST = "best"
    LIKELY = "likely"
    WORST = "worst"


@dataclass(frozen=True, kw_only=True)
class Range:
    """A number with its bounds.

    Attributes:
        best, likely, worst: for the time of a training; equal if it is measured.
        provenance: where it is from.
        source: in words: a file, a data sheet, an option.
    """

    best: float
    likely: float
    worst: float
    provenance: Provenance
    source: str

    @classmethod
    def exact(cls, value: float, provenance: Provenance, source: str) -> Range:
        """Return a number without bounds."""
        return cls(best=value, likely=value, worst=value, provenance=provenance, source=source)

    def at(self, case: Case) -> float:
        """Return one of the three values."""
        return float(getattr(self, case.value))

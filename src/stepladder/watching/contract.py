"""The interface of a detector, and its possible answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from stepladder.records.files import Json
from stepladder.records.findings import Severity
from stepladder.records.watch import Needs

if TYPE_CHECKING:
    from stepladder.watching.seen.seen import Seen


@dataclass(frozen=True, kw_only=True)
class Found:
    """A fault that a detector found.

    Attributes:
        evidence: what was seen, in one sentence with its numbers.
        fix: what to do, in one line.
        where: the script's file and line; None if it is not a single line.
        severity: set if it is less certain or less severe than the detector's own.
    """

    evidence: str
    fix: str
    where: str | None = None
    numbers: dict[str, Json] = field(default_factory=dict)
    severity: Severity | None = None


@dataclass(frozen=True)
class Unseen:
    """The detector does not apply, and why."""

    reason: str


@dataclass(frozen=True)
class Sound:
    """The detector found nothing wrong; what it saw, in one sentence."""

    evidence: str


Answer: TypeAlias = Found | Unseen | Sound


@dataclass(frozen=True)
class Detector:
    """Checks what was seen for one fault.

    Attributes:
        name: that of the fault in `FAULTS`.
        severity: ERROR only if what was seen leaves no doubt.
        source: where the rule comes from.
        look: a pure function of what was seen; the first line of its docstring says how it works.
        needs: whether passive watching is enough.
    """

    name: str
    severity: Severity
    source: str
    look: Callable[[Seen], Answer]
    needs: Needs = Needs.PASSIVE

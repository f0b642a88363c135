"""checks.json and its relatives: what a check or a detector found, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.records.files import Json


class Severity(StrEnum):
    """How bad it is if a check does not pass.

    ERROR: the result would be wrong, or there would be none.
    WARNING: it would be worse or slower than it has to be, or prove less.
    INFO: worth knowing.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Outcome(StrEnum):
    """What a check came to. A check that itself raises could not run; it never passed."""

    PASSED = "passed"
    FAILED = "failed"
    WARNED = "warned"
    NOT_APPLICABLE = "not_applicable"
    COULD_NOT_RUN = "could_not_run"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check, or one detector, came to.

    Attributes:
        check: its name.
        outcome: FAILED where something of severity ERROR was found, WARNED below, and PASSED where
            it is for information only; the others as they say.
        fault: which fault of `FAULTS` was found; None: none, or it did not look.
        evidence: what was seen, in one sentence with its numbers.
        fix: what to do, in one line; empty where nothing is to be done.
        where: the file and line of the user's code, "train.py:12"; None: not of one line.
        numbers: the evidence for programs, by name.
        examples: paths or ids of examples that show it.
        coverage: what it looked at, where that was not all, such as "32 of 661 examples".
        took_s: seconds that it took.
    """

    check: str
    outcome: Outcome
    fault: str | None = None
    evidence: str = ""
    fix: str = ""
    where: str | None = None
    numbers: Mapping[str, Json] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    coverage: str | None = None
    took_s: float | None = None

    @property
    def is_alarm(self) -> bool:
        """Whether something is to be done."""
        return self.outcome in (Outcome.FAILED, Outcome.WARNED)


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """checks.json: the findings of one job on one machine.

    Attributes:
        tier: fast or full.
        key: identity of job, data, code and machine; where it is the same, so are the findings.
        findings: in the order of the checks.
        took_s: seconds that all took.
        limit_s: seconds that they were given; None: no limit.
        left_out: checks for which no time was left.
    """

    tier: str
    key: str
    findings: tuple[Finding, ...]
    took_s: float
    limit_s: float | None = None
    left_out: tuple[str, ...] = ()

"""checks.json and related files: findings of checks and detectors, with evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.records.files import Json


class Severity(StrEnum):
    """Severity of a check that does not pass.

    ERROR: the result would be wrong or missing.
    WARNING: the result would be worse, slower or less conclusive than possible.
    INFO: for information.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Outcome(StrEnum):
    """Outcome of a check. A check that raises is COULD_NOT_RUN, never PASSED."""

    PASSED = "passed"
    FAILED = "failed"
    WARNED = "warned"
    NOT_APPLICABLE = "not_applicable"
    COULD_NOT_RUN = "could_not_run"


@dataclass(frozen=True, kw_only=True)
class PicturePair:
    """Two pictures that a finding compares.

    Attributes:
        names: of both.
        jpegs: both as small JPEGs, in base64.
    """

    names: tuple[str, str]
    jpegs: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check or detector.

    Attributes:
        check: its name.
        outcome: FAILED if it found a fault of severity ERROR, WARNED for severity WARNING, and
            PASSED for severity INFO or no fault.
        fault: the fault of `FAULTS` that was found; None: none, or it did not run.
        evidence: what was found, in one sentence with numbers.
        fix: how to fix it, in one line; empty if there is nothing to fix.
        where: file and line of the user's code, such as "train.py:12"; None: not a single line.
        numbers: the numbers of the evidence by name, for programs.
        examples: paths or ids of affected examples.
        pictures: pairs of pictures that show what was found.
        coverage: what was checked, if not everything, such as "32 of 661 examples".
        took_s: duration in seconds.
        checked_at: when it ended, in UTC, as ISO 8601; None: not recorded.
    """

    check: str
    outcome: Outcome
    fault: str | None = None
    evidence: str = ""
    fix: str = ""
    where: str | None = None
    numbers: Mapping[str, Json] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    pictures: tuple[PicturePair, ...] = ()
    coverage: str | None = None
    took_s: float | None = None
    checked_at: str | None = None

    @property
    def is_alarm(self) -> bool:
        """Whether it failed or warned."""
        return self.outcome in (Outcome.FAILED, Outcome.WARNED)


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """checks.json: the findings of one job on one machine.

    Attributes:
        tier: fast or full.
        key: identity of job, data, code and machine; the findings are valid while it is the same.
        findings: in the order of the checks.
        took_s: total duration in seconds.
        limit_s: time limit in seconds; None: no limit.
        left_out: checks that were skipped because of the time limit.
    """

    tier: str
    key: str
    findings: tuple[Finding, ...]
    took_s: float
    limit_s: float | None = None
    left_out: tuple[str, ...] = ()

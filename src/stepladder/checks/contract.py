"""What a check is, and how it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from stepladder.records import Json
from stepladder.records.findings import Outcome, Severity

if TYPE_CHECKING:
    from stepladder.checks.examples import Example
    from stepladder.checks.job import CheckedJob


class Tier(StrEnum):
    """When a check runs.

    FAST: before each training; it takes no training step and a second at most.
    FULL: with `stepladder check`, and once for a job and a machine before a climb.
    """

    FAST = "fast"
    FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a check says; `passed`, `found`, `not_applicable` and `could_not_run` make it.

    Attributes:
        severity: below that of the check where what was found is less bad; None: the check's.
        where: the file and line of the user's Task; None: not of one line.
    """

    outcome: Outcome
    evidence: str
    fault: str | None = None
    fix: str = ""
    severity: Severity | None = None
    where: str | None = None
    numbers: dict[str, Json] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    coverage: str | None = None


def passed(evidence: str, *, coverage: str | None = None, **numbers: Json) -> Answer:
    """Say that nothing is wrong, and what was measured.

    Args:
        coverage: what was looked at, where that was not all.
        numbers: the evidence for programs.
    """
    return Answer(outcome=Outcome.PASSED, evidence=evidence, coverage=coverage, numbers=numbers)


def found(
    fault: str,
    evidence: str,
    *,
    fix: str,
    severity: Severity | None = None,
    examples: tuple[str, ...] = (),
    coverage: str | None = None,
    **numbers: Json,
) -> Answer:
    """Say that something is wrong.

    Args:
        fault: a name of `FAULTS` that the check lists.
        evidence: what was seen, in one sentence with its numbers.
        fix: what to do, in one line.
        severity: where it is less bad than the check's own.
        examples: ids or paths that show it.
    """
    return Answer(
        outcome=Outcome.FAILED,  # the runner makes it WARNED below an error
        evidence=evidence,
        fault=fault,
        fix=fix,
        severity=severity,
        examples=examples,
        coverage=coverage,
        numbers=numbers,
    )


def not_applicable(reason: str) -> Answer:
    """Say that the check has nothing to look at here, and why."""
    return Answer(outcome=Outcome.NOT_APPLICABLE, evidence=reason)


def could_not_run(reason: str, *, fix: str) -> Answer:
    """Say that what the check stands for could not be looked at, and why; it is not passed.

    Args:
        fix: what to do so that it can run, in one line.
    """
    return Answer(outcome=Outcome.COULD_NOT_RUN, evidence=reason, fix=fix)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        name: what a person types and reads; that of its file.
        reason: why it matters, in one sentence.
        source: where the rule comes from.
        severity: how bad it is where something is found.
        tier: when it runs.
        faults: names of `FAULTS` that it can find.
        run: looks at a job; may raise, which counts as "could not run".
        broken: makes the example that it must fire on.
        least_s: seconds that must be left for it to begin, by a rough guess.
        needs_loss: it compares losses or gradients: where the first loss is NaN or infinite it is
            not applicable, and `not_finite` says why.
    """

    name: str
    reason: str
    source: str
    severity: Severity
    tier: Tier
    faults: tuple[str, ...]
    run: Callable[[CheckedJob], Answer]
    broken: Callable[[], Example]
    least_s: float = 0.0
    needs_loss: bool = False

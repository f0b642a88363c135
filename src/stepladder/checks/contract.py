"""The interface of a check, and its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from stepladder.records import Json
from stepladder.records.findings import Outcome, PicturePair, Severity

if TYPE_CHECKING:
    from stepladder.checks.examples import Example
    from stepladder.checks.job import CheckedJob


class Tier(StrEnum):
    """When a check runs.

    FAST: before each training; without training steps, within a second.
    FULL: with `stepladder check`, and once per job and machine before a climb.
    """

    FAST = "fast"
    FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a check, from `passed`, `found`, `not_applicable` or `could_not_run`.

    Attributes:
        severity: if it is lower than that of the check; None: the check's.
        where: the file and line of the user's Task; None: not a single line.
    """

    outcome: Outcome
    evidence: str
    fault: str | None = None
    fix: str = ""
    severity: Severity | None = None
    where: str | None = None
    numbers: dict[str, Json] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    pictures: tuple[PicturePair, ...] = ()
    coverage: str | None = None


def passed(evidence: str, *, coverage: str | None = None, **numbers: Json) -> Answer:
    """Return the answer that nothing is wrong, with what was measured.

    Args:
        coverage: what was checked, if not everything.
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
    pictures: tuple[PicturePair, ...] = (),
    coverage: str | None = None,
    **numbers: Json,
) -> Answer:
    """Return the answer that something is wrong.

    Args:
        fault: a name in `FAULTS` that the check lists.
        evidence: what was found, in one sentence with its numbers.
        fix: what to do, in one line.
        severity: if it is lower than the check's.
        examples: ids or paths of examples.
        pictures: pairs of pictures that show what was found.
    """
    return Answer(
        outcome=Outcome.FAILED,  # the runner makes it WARNED below an error
        evidence=evidence,
        fault=fault,
        fix=fix,
        severity=severity,
        examples=examples,
        pictures=pictures,
        coverage=coverage,
        numbers=numbers,
    )


def not_applicable(reason: str) -> Answer:
    """Return the answer that the check does not apply to this job, and why."""
    return Answer(outcome=Outcome.NOT_APPLICABLE, evidence=reason)


def could_not_run(reason: str, *, fix: str) -> Answer:
    """Return the answer that the check could not run, and why; it did not pass.

    Args:
        fix: how to make it run, in one line.
    """
    return Answer(outcome=Outcome.COULD_NOT_RUN, evidence=reason, fix=fix)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        name: that of its file; users type it.
        reason: why it matters, in one sentence.
        source: of the rule.
        severity: of what it finds.
        tier: when it runs.
        faults: names of `FAULTS` that it can find.
        run: checks a job; an exception counts as "could not run".
        broken: returns the example that it must fire on.
        least_s: seconds that must be left for it to start, roughly.
        needs_loss: it compares losses or gradients: if the first loss is NaN or infinite, it is
        not applicable, and `not_finite` reports why.
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

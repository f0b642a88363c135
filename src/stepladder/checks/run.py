"""Run checks on a job, in their order, within the time they are given."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from stepladder.checks.contract import Answer, Check, Tier, not_applicable
from stepladder.checks.finite import is_loss_finite
from stepladder.checks.job import CheckedJob
from stepladder.measure.probe import untouched
from stepladder.records.findings import CheckReport, Finding, Outcome, Severity

_OUTCOMES = {
    Severity.ERROR: Outcome.FAILED,
    Severity.WARNING: Outcome.WARNED,
    Severity.INFO: Outcome.PASSED,  # told, and no alarm
}
NO_LOSS = "the first training loss is not finite: see not_finite"
FULL_S = 55.0
FAST_S = 10.0
FAST_FRAC = 0.05  # of the run that is predicted


def run_checks(
    job: CheckedJob,
    checks: Sequence[Check],
    *,
    tier: Tier,
    key: str,
    limit_s: float | None = None,
    on_finding: Callable[[Finding], None] = lambda _: None,
) -> CheckReport:
    """Look at a job with every check of a tier; FULL has those of FAST as well.

    Random states are as before afterwards, and no weight of the user's changes.

    Args:
        key: identity of job, code and machine, kept with the findings.
        limit_s: seconds for all; those that find none left are listed, not passed.
        on_finding: told of each finding as it comes.
    """
    started = time.perf_counter()
    job.deadline = started + limit_s if limit_s is not None else float("inf")
    findings: list[Finding] = []
    left_out: list[str] = []
    for check in checks:
        if tier is Tier.FAST and check.tier is not Tier.FAST:
            continue
        if job.left_s() <= check.least_s:
            left_out.append(check.name)
            continue
        finding = run_check(check, job)
        findings.append(finding)
        on_finding(finding)
    return CheckReport(
        tier=tier.value,
        key=key,
        findings=tuple(findings),
        took_s=time.perf_counter() - started,
        limit_s=limit_s,
        left_out=tuple(left_out),
    )


def run_check(check: Check, job: CheckedJob) -> Finding:
    """Run one check; one that raises could not run, and says why."""
    started = time.perf_counter()
    try:
        with untouched():
            answer = check.run(job) if not _lacks_loss(check, job) else not_applicable(NO_LOSS)
    except Exception as error:  # whatever a user's code raises: it must not pass, nor end the rest
        what = str(error).strip().partition("\n")[0][:300]
        answer = Answer(
            outcome=Outcome.COULD_NOT_RUN,
            evidence=f"{type(error).__name__}: {what}" if what else type(error).__name__,
            fix="Training would probably meet it too: `stepladder train --dry-run --debug`.",
        )
    return _finding(check, answer, time.perf_counter() - started)


def _lacks_loss(check: Check, job: CheckedJob) -> bool:
    """Say whether a check would compare numbers of which there are none."""
    if not check.needs_loss:
        return False
    try:
        return not is_loss_finite(job)
    except Exception:  # a loss that fails: the check itself meets it, and says so
        return False


def _finding(check: Check, answer: Answer, took_s: float) -> Finding:
    outcome = answer.outcome
    if outcome is Outcome.FAILED:
        outcome = _OUTCOMES[answer.severity or check.severity]
    return Finding(
        check=check.name,
        outcome=outcome,
        fault=answer.fault,
        evidence=answer.evidence,
        fix=answer.fix,
        numbers=answer.numbers,
        examples=answer.examples,
        coverage=answer.coverage,
        took_s=took_s,
    )

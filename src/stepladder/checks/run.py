"""Run checks on a job, in order, within a time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from stepladder.checks.contract import Answer, Check, Tier, not_applicable
from stepladder.checks.evidence.finite import is_loss_finite
from stepladder.checks.job import CheckedJob
from stepladder.errors import ResourceError, StepladderError
from stepladder.machine.activity import doing
from stepladder.measuring.probe import is_out_of_memory, untouched
from stepladder.records.findings import CheckReport, Finding, Outcome, Severity
from stepladder.task.blame import EXIT_FIX, exit_words, task_line

_OUTCOMES = {
    Severity.ERROR: Outcome.FAILED,
    Severity.WARNING: Outcome.WARNED,
    Severity.INFO: Outcome.PASSED,  # reported, but not an alarm
}
NO_LOSS = "the first training loss is not finite: see not_finite"
FULL_S = 55.0
FAST_S = 10.0
FAST_FRAC = 0.05  # of the predicted time of the run
RAISED = "raised"  # key in the numbers of a finding: the exception that the user's code raised
_FIX = "Training would probably fail too. See `stepladder train --dry-run --debug`."
_SLACK_S = 0.25  # a check that uses its time to the end takes slightly longer
_SLOWEST = 5.0  # maximum ratio of actual to guessed time for the remaining checks


def run_checks(
    job: CheckedJob,
    checks: Sequence[Check],
    *,
    tier: Tier,
    key: str,
    limit_s: float | None = None,
    on_finding: Callable[[Finding], None] = lambda _: None,
) -> CheckReport:
    """Run all checks of a tier on a job; FULL includes those of FAST.

    Random states are restored, and the user's weights are not changed. While a full check runs,
    the time that later checks for errors need at least is reserved for them. Of two such checks
    with time for only one, the first runs.

    Args:
        key: identity of job, code and machine, stored with the findings.
        limit_s: seconds for all checks; checks without time left are listed, not passed.
        on_finding: called with each finding.
    """
    started = time.perf_counter()
    ends = started + limit_s if limit_s is not None else math.inf
    wanted = [check for check in checks if tier is Tier.FULL or check.tier is Tier.FAST]
    findings: list[Finding] = []
    left_out: list[str] = []
    for idx, check in enumerate(wanted):
        now = time.perf_counter()
        share_ends = ends if check.tier is Tier.FAST else ends - _reserved_s(wanted[idx + 1 :])
        must_end = ends if check.severity is Severity.ERROR else share_ends
        if must_end - now <= check.least_s:
            left_out.append(check.name)
            continue
        job.deadline = min(must_end, max(share_ends, now + check.least_s))
        with doing(f"check {check.name}", left_s=ends - now if limit_s else None):
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


def _reserved_s(later: Sequence[Check]) -> float:
    """Return the seconds that later checks for errors need at least."""
    return sum(check.least_s + _SLACK_S for check in later if check.severity is Severity.ERROR)


def run_check(check: Check, job: CheckedJob) -> Finding:
    """Run one check; a check that raises counts as "could not run"."""
    started = time.perf_counter()
    try:
        with untouched():
            answer = check.run(job) if not _lacks_loss(check, job) else not_applicable(NO_LOSS)
    except (
        Exception,
        SystemExit,
    ) as error:  # from user code: the check must not pass, and the others continue
        answer = _raised(error, job)
    return _finding(check, answer, time.perf_counter() - started)


def could_not_for_raising(finding: Finding) -> bool:
    """Return True if a check could not run because user code raised, as training would."""
    return finding.outcome is Outcome.COULD_NOT_RUN and RAISED in finding.numbers


def budget_for_rest(report: CheckReport, checks: Sequence[Check]) -> str | None:
    """Estimate the --budget for the checks left out, such as `3m`; None without any.

    Their guessed times are scaled by the actual over the guessed time of the checks that ran.
    """
    if not report.left_out:
        return None
    guess_s = {check.name: max(1.0, check.least_s) for check in checks}
    took = [
        (finding.took_s, guess_s[finding.check])
        for finding in report.findings
        if finding.took_s is not None and guess_s.get(finding.check, 1.0) > 1.0
    ]
    slower = sum(took_s for took_s, _ in took) / sum(guess for _, guess in took) if took else 1.0
    left = [guess_s.get(name, 1.0) for name in report.left_out]
    seconds = max(left) + min(_SLOWEST, max(1.0, slower)) * sum(left)
    return f"{math.ceil(seconds / 60)}m"


def _raised(error: BaseException, job: CheckedJob) -> Answer:
    """Return why a check could not run, with the line of the Task that raised."""
    cause = error.__cause__ if isinstance(error, StepladderError) else None
    line = None if is_out_of_memory(error) else task_line(cause or error, job.task)
    what = str(error).strip().partition("\n")[0][:300]
    words = f"{type(error).__name__}: {what}" if what else type(error).__name__
    where = line.place if line else None
    fix = f"Fix this line in {line.method}: {line.code}" if line else _FIX
    if isinstance(error, SystemExit):
        words, fix = f"{type(job.task).__name__} {exit_words(error)}", EXIT_FIX
    elif isinstance(error, StepladderError):  # it has its own fix
        words = error.what
        fix = error.fix or fix
        where, more = error.where or where, where
        words += f" (by {more})" if more and more != where else ""
    is_theirs = line is not None or isinstance(error, (StepladderError, SystemExit))
    return Answer(
        outcome=Outcome.COULD_NOT_RUN,
        evidence=words,
        fix=fix,
        where=where,
        numbers={RAISED: type(error).__name__}
        if is_theirs and not isinstance(error, ResourceError)
        else {},
    )


def _lacks_loss(check: Check, job: CheckedJob) -> bool:
    """Return True if a check needs a finite first loss, and it is not finite."""
    if not check.needs_loss:
        return False
    try:
        return not is_loss_finite(job)
    except Exception:  # a loss that raises: the check itself reports it
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
        where=answer.where,
        numbers=answer.numbers,
        examples=answer.examples,
        pictures=answer.pictures,
        coverage=answer.coverage,
        took_s=took_s,
        checked_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )

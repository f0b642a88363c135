"""`stepladder check`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass

from stepladder.api.checks import check_job
from stepladder.cli.job_flags import LadderFlags, print_config, read_job
from stepladder.cli.parse import Switch, write
from stepladder.errors import UnsoundJob
from stepladder.records import to_json
from stepladder.records.findings import Finding, Outcome

_BUDGETS = ("--budget", "--ladder.budget-s")


@dataclass(frozen=True, kw_only=True)
class Flags(LadderFlags):
    """Look whether a job is sound: data, loss, model, validation, checkpoints, machine.

    Nothing of the job is changed. What was found is kept in RUN/checks.json and checks.html, and
    holds until job, code or machine change; checks that no time was left for are run by the next
    call. The exit code is 6 where a check failed, or could not run because the Task raised; else 0.

    Examples:
      stepladder check demo.yaml                 every check, within a minute
      stepladder check my_job.py:Digits          a problem of your own; that file is run
      stepladder check demo.yaml --fast          only those that train nothing
    """

    budget: str | None = None
    """Time for the checks that run, such as 3m; without it 55 seconds."""
    fast: Switch = False
    """Only the checks that train nothing, as before each training."""
    fresh: Switch = False
    """Look at all again, whatever was found before."""


def run(argv: list[str]) -> int:
    """Check a config file or a task, and flags."""
    flags, resolved = read_job(Flags, argv, command="check")
    if flags.show_config:
        return print_config(resolved, flags.output)
    from stepladder.checks.wording import finding_lines, folded, group_lines, total_line

    as_json = flags.output.json

    def tell(finding: Finding) -> None:
        if as_json or finding.outcome is Outcome.COULD_NOT_RUN:  # told below, by their reasons
            return
        if finding.is_alarm or not flags.output.quiet:
            write(finding_lines(finding))

    job = resolved.job
    with _stdout_to_stderr() if as_json else nullcontext():
        report = check_job(
            job,
            task=flags.task,
            fresh=flags.fresh,
            limit_s=job.ladder.budget_s,
            is_fast=flags.fast,
            on_finding=tell,
        )
    from stepladder.checks.order import CHECKS
    from stepladder.checks.run import budget_for_rest, could_not_for_raising

    if as_json:
        write(json.dumps(to_json(report), indent=2))
    else:
        for group in folded(report.findings):
            if group[0].outcome is Outcome.COULD_NOT_RUN:
                write(group_lines(group))
        write(total_line(report))
        budget = budget_for_rest(report, CHECKS)
        if budget is not None:
            write(f"→ {_with_budget(argv, budget)} runs those that are left, and keeps the others")
        write(f"report: {job.run.dir / 'checks.html'}")
    is_unsound = any(
        finding.outcome is Outcome.FAILED or could_not_for_raising(finding)
        for finding in report.findings
    )
    return UnsoundJob.exit_code if is_unsound else 0


def _with_budget(argv: list[str], budget: str) -> str:
    """Return the command that was typed with another budget, and without --fresh."""
    words: list[str] = []
    is_value = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        is_budget = flag.replace("_", "-") in _BUDGETS
        if not (is_value or is_budget or word == "--fresh"):
            words.append(word)
        is_value = is_budget and not equals
    return shlex.join(["stepladder", "check", *words, "--budget", budget])


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Let what a Task prints go to stderr, also from its subprocesses: stdout is for the result."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # no stdout or no stderr at all
        with redirect_stdout(sys.stderr):
            yield
        return
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if sys.__stdout__ is not None and not sys.__stdout__.closed:
            sys.__stdout__.flush()
        os.dup2(kept, 1)
        os.close(kept)

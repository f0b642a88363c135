"""`stepladder check`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from stepladder.api.checks import check_job, check_ranks
from stepladder.api.devices import is_main
from stepladder.cli.job_flags import LadderFlags, print_config, read_job
from stepladder.cli.parse import Switch, write
from stepladder.errors import IncompleteChecks, UnsoundJob
from stepladder.records import to_json
from stepladder.records.findings import CheckReport, Finding, Outcome

if TYPE_CHECKING:
    from stepladder.checks.machine.compared import Compared

_BUDGETS = ("--budget", "--ladder.budget-s")


@dataclass(frozen=True, kw_only=True)
class Flags(LadderFlags):
    """Check a job for mistakes: data, loss, model, validation, checkpoints, machine.

    Under torchrun or srun, all ranks are compared first: versions, options, data, devices, clocks,
    and how fast they add up gradients. Rank 0 then runs the checks.

    The job is not changed. Results are saved in RUN/checks.json and RUN/checks.html, and reused
    until the job, the code or the machine changes, and the time of earlier results is printed. The
    exit code is 6 if a check failed, or could not run because the Task raised an error. It is 8 if
    none failed, but some did not run, for example because no time was left for them; the next call
    runs these.

    Examples:
      stepladder check demo.yaml                 all checks, within a minute
      stepladder check my_job.py:Digits          a Task of your own; the file is executed
      stepladder check demo.yaml --fast          only checks that do not train
      torchrun --nproc-per-node 2 -m stepladder check demo.yaml
    """

    budget: str | None = None
    """Time limit of the checks, such as 3m; default: 55 seconds."""
    fast: Switch = False
    """Run only the checks that do not train, as before each training."""
    fresh: Switch = False
    """Run all checks again, and ignore saved results."""


def run(argv: list[str]) -> int:
    """Run the command."""
    flags, resolved = read_job(Flags, argv, command="check")
    if flags.show_config:
        return print_config(resolved, flags.output)
    from stepladder.checks.wording import finding_lines

    as_json = flags.output.json

    def show(finding: Finding) -> None:
        if as_json or finding.outcome is Outcome.COULD_NOT_RUN:  # printed below, grouped by reason
            return
        if finding.is_alarm or not flags.output.quiet:
            write(finding_lines(finding))

    started = datetime.now(UTC)
    job = resolved.job
    compared = check_ranks(job, flags.task)
    if not is_main():
        return 0
    if compared is not None and not as_json:
        _print_ranks(compared)
    with _stdout_to_stderr() if as_json else nullcontext():
        report = check_job(
            job,
            task=flags.task,
            fresh=flags.fresh,
            limit_s=job.ladder.budget_s,
            is_fast=flags.fast,
            on_finding=show,
        )
    if as_json:
        ranks = {} if compared is None else {"ranks": to_json(compared)}
        write(json.dumps(to_json(report) | ranks, indent=2))
    else:
        _print_result(report, argv, started=started)
        write(f"report: {job.run.dir / 'checks.html'}")
    if compared is not None and compared.problems:
        return UnsoundJob.exit_code
    return _exit_code(report, is_fast=flags.fast)


def _print_ranks(compared: Compared) -> None:
    from stepladder.checks.machine.compared import compared_lines

    for line in compared_lines(compared):
        write(line)


def _print_result(report: CheckReport, argv: list[str], *, started: datetime) -> None:
    """Print what could not run, the summary, and how to run the rest."""
    from stepladder.checks.order import CHECKS
    from stepladder.checks.run import budget_for_rest
    from stepladder.checks.wording import earlier_line, folded, group_lines, total_line

    for group in folded(report.findings):
        if group[0].outcome is Outcome.COULD_NOT_RUN:
            write(group_lines(group))
    write(total_line(report))
    earlier = earlier_line(report, before=started)
    if earlier is not None:
        write(f"{earlier}; --fresh runs all checks again")
    budget = budget_for_rest(report, CHECKS)
    if budget is not None:
        write(f"→ {_with_budget(argv, budget)} runs the remaining checks")


def _exit_code(report: CheckReport, *, is_fast: bool) -> int:
    """Return 6 if the job is unsound, 8 if a requested check did not run, else 0."""
    from stepladder.checks.contract import Tier
    from stepladder.checks.report_file import missing
    from stepladder.checks.run import could_not_for_raising

    is_unsound = any(
        finding.outcome is Outcome.FAILED or could_not_for_raising(finding)
        for finding in report.findings
    )
    if is_unsound:
        return UnsoundJob.exit_code
    is_incomplete = missing(report, Tier.FAST if is_fast else Tier.FULL)
    return IncompleteChecks.exit_code if is_incomplete else 0


def _with_budget(argv: list[str], budget: str) -> str:
    """Return the command that was typed, with another budget and without --fresh."""
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
    """Redirect the output of a Task and its subprocesses to stderr; stdout is for the result."""
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

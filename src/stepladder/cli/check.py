"""`stepladder check`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from stepladder import api
from stepladder.cli.ladder_flags import read_job
from stepladder.cli.parse import CONFIG_FLAG, TARGET, Output, Switch, Unprefixed, write
from stepladder.config.options import LadderConfig, RunConfig
from stepladder.config.recipe import Recipe
from stepladder.config.show import show, show_json
from stepladder.errors import UnsoundJob
from stepladder.records import to_json
from stepladder.records.findings import Finding, Outcome

_EXAMPLES = """
  stepladder check demo.yaml                 every check, within a minute
  stepladder check my_job.py:Digits          a problem of your own; that file is run
  stepladder check demo.yaml --fast          only those that train nothing
"""
_BUDGETS = ("--budget", "--ladder.budget-s")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Look whether a job is sound: data, loss, model, validation, checkpoints, machine.

    Nothing of the job is changed. What was found is kept in RUN/checks.json and checks.html, and
    holds until job, code or machine change; checks that no time was left for are run by the next
    call. The exit code is 6 where a check failed, or could not run because the Task raised; else 0.
    """

    target: Annotated[Positional[Path | None], TARGET] = None
    """A file of options, or a Task of your own as FILE.py:NAME."""
    config_flag: Annotated[Path | None, CONFIG_FLAG] = None
    """The file of options, as a flag."""
    task: str | None = None
    """A Task of your own, as FILE.py:NAME; that file is run."""
    budget: str | None = None
    """Time for the checks that run, such as 3m; without it 55 seconds."""
    fast: Switch = False
    """Only the checks that train nothing, as before each training."""
    fresh: Switch = False
    """Look at all again, whatever was found before."""
    show_config: Switch = False
    """Print each option's value and where it came from, and do nothing else."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)
    recipe: Annotated[Recipe, Unprefixed] = field(default_factory=Recipe)
    run: RunConfig = field(default_factory=RunConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)


def run(argv: list[str]) -> int:
    """Check a config file or a task, and flags."""
    flags, resolved, task = read_job(Flags, argv, command="check", examples=_EXAMPLES)
    as_json = flags.output.json
    if flags.show_config:
        write(json.dumps(show_json(resolved), indent=2) if as_json else show(resolved))
        return 0
    from stepladder.checks.wording import finding_lines, folded, group_lines, total_line

    def tell(finding: Finding) -> None:
        if as_json or finding.outcome is Outcome.COULD_NOT_RUN:  # told below, by their reasons
            return
        if finding.is_alarm or not flags.output.quiet:
            write(finding_lines(finding))

    job = resolved.job
    with _stdout_to_stderr() if as_json else nullcontext():
        report = api.check_job(
            job,
            task=task,
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
    """Give the command that was typed with another budget, and without --fresh."""
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

"""`stepladder train`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepladder.api.runs import train
from stepladder.cli.crash import TRACE_FOLDER
from stepladder.cli.job_flags import JobFlags, print_config, read_job
from stepladder.cli.parse import Switch, write
from stepladder.config.resolve import Resolved


@dataclass(frozen=True, kw_only=True)
class Flags(JobFlags):
    """Train a classifier, or resume where it stopped; then write the report.

    Examples:
      stepladder train --data.store store --run.dir runs/first
      stepladder train run.yaml --batch.lr 0.01      flags go over the file
      stepladder train run.yaml --dry-run            rehearse two steps, and show the plan
      stepladder train run.yaml --show-config        each value, and where it came from
      stepladder train run.yaml --baseline runs/old  stop where it is worse than that run
      stepladder train task.py:Mine                  a problem of your own; that file is run
    """

    dry_run: Switch = False
    """Rehearse two steps, validation, save and load; print the plan; leave nothing behind."""
    overwrite: Switch = False
    """Remove an earlier run in the folder first."""
    accept_new_data: Switch = False
    """Resume although the store has changed."""


def run(argv: list[str]) -> int:
    """Train by a config file and flags."""
    flags, resolved = read(argv)
    if flags.show_config:
        return print_config(resolved, flags.output)
    TRACE_FOLDER.set(resolved.job.run.dir)
    trained = train(
        config=resolved.job,
        task=flags.task,
        dry_run=flags.dry_run,
        overwrite=flags.overwrite,
        accept_new_data=flags.accept_new_data,
        display=flags.output.display(),
    )
    if not (flags.dry_run or flags.output.json or flags.output.quiet):
        write(f"report: {trained.path / 'report.html'}")  # the display has told the accuracy
    return 0


def read(argv: list[str]) -> tuple[Flags, Resolved]:
    """Read the flags, and resolve the config under them; `--baseline` is `--run.baseline`."""
    argv = [re.sub(r"^--baseline(?=$|=|-at|-patience)", "--run.baseline", word) for word in argv]
    return read_job(Flags, argv, command="train")

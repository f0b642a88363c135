"""`stepladder train`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepladder.api.devices import prints_result
from stepladder.api.runs import train
from stepladder.cli.crash import TRACE_FOLDER
from stepladder.cli.job_flags import JobFlags, print_config, read_job
from stepladder.cli.parse import Switch, write
from stepladder.config.resolve import Resolved


@dataclass(frozen=True, kw_only=True)
class Flags(JobFlags):
    """Train a model, or resume an interrupted training; then write a report.

    Examples:
      stepladder train --data.store store --run.dir runs/first
      stepladder train run.yaml --batch.lr 0.01      flags override the file
      stepladder train run.yaml --dry-run            test two steps, and print the plan
      stepladder train run.yaml --show-config        each value, and where it was set
      stepladder train run.yaml --baseline runs/old  stop if it is worse than that run
      stepladder train task.py:Mine                  a Task of your own; the file is executed
    """

    dry_run: Switch = False
    """Test two steps, validation, save and load; print the plan; write no run."""
    overwrite: Switch = False
    """Remove an earlier run in the folder first."""
    accept_new_data: Switch = False
    """Resume even if the store has changed."""


def run(argv: list[str]) -> int:
    """Run the command."""
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
    is_silent = flags.dry_run or flags.output.json or flags.output.quiet
    if not is_silent and prints_result(resolved.job):
        write(f"report: {trained.path / 'report.html'}")  # the display has printed the accuracy
    return 0


def read(argv: list[str]) -> tuple[Flags, Resolved]:
    """Return the flags and the resolved config; `--baseline` is short for `--run.baseline`."""
    argv = [re.sub(r"^--baseline(?=$|=|-at|-patience)", "--run.baseline", word) for word in argv]
    return read_job(Flags, argv, command="train")

"""`stepladder advise`."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.api.ladder import advise_job
from stepladder.cli.job_flags import LadderFlags, print_config, read_job


@dataclass(frozen=True, kw_only=True)
class Flags(LadderFlags):
    """Name the one next thing that makes a job faster; nothing is tried or written.

    Examples:
      stepladder advise demo.yaml                the one next thing to do, and why not the others
      stepladder advise my_job.py:Digits         on a problem of your own; that file is run
    """

    budget: str | None = None
    """Time for the measurements, such as 90s or 10m; the same as --ladder.budget-s."""


def run(argv: list[str]) -> int:
    """Advise on a config file or a task, and flags."""
    flags, resolved = read_job(Flags, argv, command="advise")
    if flags.show_config:
        return print_config(resolved, flags.output)
    from stepladder.training.output.display import Display, make_display

    quiet = flags.output.quiet or flags.output.json
    with make_display(quiet=quiet) as display:
        assert isinstance(display, Display)
        advice, text = advise_job(resolved.job, task=flags.task, display=display)
    flags.output.print_result(advice, text)
    return 0

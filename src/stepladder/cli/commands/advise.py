"""`stepladder advise`."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.api.ladder import advise_job
from stepladder.cli.job_flags import LadderFlags, print_config, read_job


@dataclass(frozen=True, kw_only=True)
class Flags(LadderFlags):
    """Print the next step that would make a job faster, without trying it or writing anything.

    Examples:
      stepladder advise demo.yaml                the next step, and why not the others
      stepladder advise my_job.py:Digits         a Task of your own; the file is executed
    """

    budget: str | None = None
    """Time limit of the measurements, such as 90s or 10m; same as --ladder.budget-s."""


def run(argv: list[str]) -> int:
    """Run the command."""
    flags, resolved = read_job(Flags, argv, command="advise")
    if flags.show_config:
        return print_config(resolved, flags.output)
    from stepladder.training.output.display import Display
    from stepladder.training.output.make_display import make_display

    quiet = flags.output.quiet or flags.output.json
    with make_display(quiet=quiet) as display:
        assert isinstance(display, Display)
        advice, text = advise_job(resolved.job, task=flags.task, display=display)
    flags.output.print_result(advice, text)
    return 0

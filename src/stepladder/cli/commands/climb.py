"""`stepladder climb`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stepladder.api.devices import is_main
from stepladder.api.ladder import climb
from stepladder.cli.crash import TRACE_FOLDER
from stepladder.cli.job_flags import LadderFlags, print_config, read_job
from stepladder.cli.parse import Switch, write
from stepladder.cli.script_climb import ScriptFlags, names_script, run_script_climb
from stepladder.config.choices import ClimbAim


@dataclass(frozen=True, kw_only=True)
class Flags(LadderFlags):
    """Try speed-ups in order: measure, predict, try, and keep what measurably helps; then train.

    Verdicts of earlier climbs of the same job on the same machine are reused. The job may also be
    an unmodified script: see `stepladder climb train.py --help`.

    Examples:
      stepladder climb demo.yaml                 try speed-ups, keep those that help, then train
      stepladder climb demo.yaml --budget 10m    measure, try and train in about ten minutes
      stepladder climb my_job.py:Digits          a Task of your own; the file is executed
      stepladder climb demo.yaml --aim accuracy  try to improve the accuracy instead
      stepladder climb demo.yaml --fresh         ignore verdicts of earlier climbs
    """

    aim: ClimbAim | None = None
    """Try speed-ups (the default) or remedies for a poor fit; same as --ladder.aim."""
    try_all: Switch = False
    """Try every rung, regardless of its predicted gain; same as --ladder.try-all."""
    fresh: Switch = False
    """Try every rung again, and ignore the results of earlier climbs."""
    overwrite: Switch = False
    """Replace a run in the folder that is not a climb of this job."""


OTHER_FLAGS: Final = (ScriptFlags,)
"""Flags if the argument is a script."""


def run(argv: list[str]) -> int:
    """Run the command."""
    if names_script(argv):
        return run_script_climb(argv)
    flags, resolved = read_job(Flags, argv, command="climb")
    if flags.show_config:
        return print_config(resolved, flags.output)
    TRACE_FOLDER.set(resolved.job.run.dir)
    climbed = climb(
        config=resolved.job,
        task=flags.task,
        fresh=flags.fresh,
        overwrite=flags.overwrite,
        display=flags.output.display(),
    )
    is_silent = flags.output.json or flags.output.quiet
    if not is_silent and is_main():
        write(f"report: {climbed.path / 'report.html'}")
    return 0

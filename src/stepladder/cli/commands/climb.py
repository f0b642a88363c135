"""`stepladder climb`."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.api.ladder import climb
from stepladder.cli.crash import TRACE_FOLDER
from stepladder.cli.job_flags import LadderFlags, print_config, read_job
from stepladder.cli.parse import Switch, write
from stepladder.config.choices import ClimbAim


@dataclass(frozen=True, kw_only=True)
class Flags(LadderFlags):
    """Climb: measure, predict the next step, try it, keep it only if it paid; then train.

    Verdicts are taken from earlier climbs of the same job on the same machine.

    Examples:
      stepladder climb demo.yaml                 try each speed-up, keep what pays, then train
      stepladder climb demo.yaml --budget 10m    measure, try and train in about ten minutes
      stepladder climb my_job.py:Digits          a problem of your own; that file is run
      stepladder climb demo.yaml --aim accuracy  try what may make the result better instead
      stepladder climb demo.yaml --fresh         do not rely on verdicts of earlier climbs
    """

    aim: ClimbAim | None = None
    """Try speed-ups (the default), or remedies for a poor fit; the same as --ladder.aim."""
    try_all: Switch = False
    """Try rungs whatever gain is predicted; the same as --ladder.try-all."""
    fresh: Switch = False
    """Try everything anew, whatever earlier climbs found."""
    overwrite: Switch = False
    """Replace a run in the folder that is no climb of this job."""


def run(argv: list[str]) -> int:
    """Climb by a config file or a task, and flags."""
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
    if not (flags.output.json or flags.output.quiet):
        write(f"report: {climbed.path / 'report.html'}")
    return 0

"""`stepladder climb`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from stepladder import api
from stepladder.cli.crash import TRACE_FOLDER
from stepladder.cli.ladder_flags import read_job
from stepladder.cli.parse import CONFIG_FLAG, TARGET, Output, Switch, Unprefixed, write
from stepladder.config.choices import ClimbAim
from stepladder.config.options import LadderConfig, RunConfig
from stepladder.config.recipe import Recipe
from stepladder.config.show import show, show_json

_EXAMPLES = """
  stepladder climb demo.yaml                 try each speed-up, keep what pays, then train
  stepladder climb demo.yaml --budget 10m    measure, try and train in about ten minutes
  stepladder climb my_job.py:Digits          a problem of your own; that file is run
  stepladder climb demo.yaml --aim accuracy  try what may make the result better instead
  stepladder climb demo.yaml --fresh         do not rely on verdicts of earlier climbs
"""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Climb: measure, predict the next step, try it, keep it only if it paid; then train.

    Verdicts are taken from earlier climbs of the same job on the same machine.
    """

    target: Annotated[Positional[Path | None], TARGET] = None
    """A file of options, or a Task of your own as FILE.py:NAME."""
    config_flag: Annotated[Path | None, CONFIG_FLAG] = None
    """The file of options, as a flag."""
    task: str | None = None
    """A Task of your own, as FILE.py:NAME; that file is run."""
    budget: str | None = None
    """Time for measurements, trials and the training at the end, as far as that takes no more than
    a fifth of it, such as 90s or 10m; the same as --ladder.budget-s."""
    aim: ClimbAim | None = None
    """Try speed-ups (the default), or remedies for a poor fit; the same as --ladder.aim."""
    try_all: Switch = False
    """Try rungs whatever gain is predicted; the same as --ladder.try-all."""
    fresh: Switch = False
    """Try everything anew, whatever earlier climbs found."""
    overwrite: Switch = False
    """Replace a run in the folder that is no climb of this job."""
    show_config: Switch = False
    """Print each option's value and where it came from, and do nothing else."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)
    recipe: Annotated[Recipe, Unprefixed] = field(default_factory=Recipe)
    run: RunConfig = field(default_factory=RunConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)


def run(argv: list[str]) -> int:
    """Climb by a config file or a task, and flags."""
    flags, resolved, task = read_job(Flags, argv, command="climb", examples=_EXAMPLES)
    if flags.show_config:
        as_json = flags.output.json
        write(json.dumps(show_json(resolved), indent=2) if as_json else show(resolved))
        return 0
    from stepladder.training.output.display import make_display

    TRACE_FOLDER.set(resolved.job.run.dir)
    display = make_display(json=flags.output.json, quiet=flags.output.quiet)
    climbed = api.climb_job(
        resolved.job, task=task, fresh=flags.fresh, overwrite=flags.overwrite, display=display
    )
    if not (flags.output.json or flags.output.quiet):
        write(f"report: {climbed.path / 'report.html'}")
    return 0

"""`stepladder fit-recipe`."""

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
from stepladder.config.resolve import Setting
from stepladder.config.show import show, show_json

_EXAMPLES = """
  stepladder fit-recipe demo.yaml               grow, then add remedies that help, then train
  stepladder fit-recipe demo.yaml --budget 30m  measure, try and train in about half an hour
  stepladder fit-recipe my_job.py:Digits        a problem of your own; that file is run
"""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Fit a recipe: grow the model until it overfits, then add remedies one at a time; then train.

    Each step is a trial as of `climb`. While the model grows, a step stays where the training error
    falls; a remedy stays where held-out examples are got right more often. What a Task of your own
    builds is grown by you: of it, the learning rate and the length of training are tried.
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
    fresh: Switch = False
    """Try everything anew, whatever was found earlier."""
    overwrite: Switch = False
    """Replace a run in the folder that is no climb of this job."""
    show_config: Switch = False
    """Print each option's value and where it came from, and do nothing else."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)
    recipe: Annotated[Recipe, Unprefixed] = field(default_factory=Recipe)
    run: RunConfig = field(default_factory=RunConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)


def run(argv: list[str]) -> int:
    """Fit a recipe by a config file or a task, and flags."""
    fixed = {"ladder.aim": Setting(value=ClimbAim.FIT, origin="fit-recipe")}
    flags, resolved, task = read_job(
        Flags, argv, command="fit-recipe", examples=_EXAMPLES, fixed=fixed
    )
    if flags.show_config:
        as_json = flags.output.json
        write(json.dumps(show_json(resolved), indent=2) if as_json else show(resolved))
        return 0
    from stepladder.training.output.display import make_display

    TRACE_FOLDER.set(resolved.job.run.dir)
    display = make_display(json=flags.output.json, quiet=flags.output.quiet)
    fitted = api.climb_job(
        resolved.job, task=task, fresh=flags.fresh, overwrite=flags.overwrite, display=display
    )
    if not (flags.output.json or flags.output.quiet):
        write(f"recipe: {fitted.path / 'config.yaml'}\nreport: {fitted.path / 'report.html'}")
    return 0

"""`stepladder advise`."""

from __future__ import annotations

import json
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
from stepladder.records import to_json

_EXAMPLES = """
  stepladder advise demo.yaml                the one next thing to do, and why not the others
  stepladder advise my_job.py:Digits         on a problem of your own; that file is run
"""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Name the one next thing that makes a job faster; nothing is tried or written."""

    target: Annotated[Positional[Path | None], TARGET] = None
    """A file of options, or a Task of your own as FILE.py:NAME."""
    config_flag: Annotated[Path | None, CONFIG_FLAG] = None
    """The file of options, as a flag."""
    task: str | None = None
    """A Task of your own, as FILE.py:NAME; that file is run."""
    budget: str | None = None
    """Time for the measurements, such as 90s or 10m; the same as --ladder.budget-s."""
    show_config: Switch = False
    """Print each option's value and where it came from, and do nothing else."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)
    recipe: Annotated[Recipe, Unprefixed] = field(default_factory=Recipe)
    run: RunConfig = field(default_factory=RunConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)


def run(argv: list[str]) -> int:
    """Advise on a config file or a task, and flags."""
    flags, resolved, task = read_job(Flags, argv, command="advise", examples=_EXAMPLES)
    if flags.show_config:
        as_json = flags.output.json
        write(json.dumps(show_json(resolved), indent=2) if as_json else show(resolved))
        return 0
    from stepladder.training.output.display import Display, make_display

    quiet = flags.output.quiet or flags.output.json
    with make_display(quiet=quiet) as display:
        assert isinstance(display, Display)
        advice, text = api.advise_job(resolved.job, task=task, display=display)
    write(json.dumps(to_json(advice), indent=2) if flags.output.json else text)
    return 0

"""`stepladder train`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from stepladder import api
from stepladder.cli.crash import TRACE_FOLDER
from stepladder.cli.ladder_flags import config_of, task_as_flag
from stepladder.cli.parse import (
    CONFIG_FLAG,
    TARGET,
    Output,
    Switch,
    Unprefixed,
    flag_settings,
    given_flags,
    job_before_flags,
    parse,
    write,
)
from stepladder.config.load import settings_of_file
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import Recipe
from stepladder.config.resolve import Resolved, resolve
from stepladder.config.show import show, show_json

_EXAMPLES = """
  stepladder train --data.store store --run.dir runs/first
  stepladder train run.yaml --batch.lr 0.01     flags go over the file
  stepladder train run.yaml --dry-run           rehearse two steps, and show the plan
  stepladder train run.yaml --show-config       each value, and where it came from
  stepladder train run.yaml --baseline runs/old stop where it is worse than that run
  stepladder train task.py:Mine                 a problem of your own; that file is run
"""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Train a classifier, or resume where it stopped; then write the report."""

    config: Annotated[Positional[Path | None], TARGET] = None
    """A file of options, which flags go over, or a Task of your own as FILE.py:NAME."""
    config_flag: Annotated[Path | None, CONFIG_FLAG] = None
    """The same, as a flag."""
    task: str | None = None
    """A Task of your own, as FILE.py:NAME; that file is run."""
    dry_run: Switch = False
    """Rehearse two steps, validation, save and load; print the plan; leave nothing behind."""
    overwrite: Switch = False
    """Remove an earlier run in the folder first."""
    accept_new_data: Switch = False
    """Resume although the store has changed."""
    show_config: Switch = False
    """Print each option's value and where it came from, and do nothing else."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)
    recipe: Annotated[Recipe, Unprefixed] = field(default_factory=Recipe)
    run: RunConfig = field(default_factory=RunConfig)


def run(argv: list[str]) -> int:
    """Train by a config file and flags."""
    flags, resolved = read(argv)
    if flags.show_config:
        as_json = flags.output.json
        write(json.dumps(show_json(resolved), indent=2) if as_json else show(resolved))
        return 0
    from stepladder.training.output.display import make_display

    job = resolved.job
    TRACE_FOLDER.set(job.run.dir)
    display = make_display(json=flags.output.json, quiet=flags.output.quiet)
    trained = api.train_job(
        job,
        task=flags.task,
        dry_run=flags.dry_run,
        overwrite=flags.overwrite,
        accept_new_data=flags.accept_new_data,
        display=display,
    )
    if not (flags.dry_run or flags.output.json or flags.output.quiet):
        write(f"report: {trained.path / 'report.html'}")  # the display has told the accuracy
    return 0


def read(argv: list[str]) -> tuple[Flags, Resolved]:
    """Read the flags, and resolve the config under them; `--baseline` is `--run.baseline`."""
    argv = [re.sub(r"^--baseline(?=$|=|-at|-patience)", "--run.baseline", word) for word in argv]
    argv = task_as_flag(argv)
    before = job_before_flags(argv)
    default = Flags(recipe=before.recipe, run=before.run)
    flags = parse(Flags, argv, command="train", examples=_EXAMPLES, default=default)
    file = config_of(flags.config_flag, flags.config, "train")
    from_flags = flag_settings(JobConfig(recipe=flags.recipe, run=flags.run), given_flags(argv))
    return flags, resolve(settings_of_file(file) if file else {}, from_flags)

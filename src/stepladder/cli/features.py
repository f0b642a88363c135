"""`stepladder features`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from stepladder import api
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
from stepladder.config.choices import EngineName
from stepladder.config.load import settings_of_file
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import Recipe
from stepladder.config.resolve import Resolved, resolve
from stepladder.config.show import show, show_json
from stepladder.records import to_json

if TYPE_CHECKING:
    from stepladder.training.features.precompute import ComputedFeatures

_EXAMPLES = """
  stepladder features run.yaml                      then: train run.yaml --features.cached
  stepladder features --data.store store
  stepladder features run.yaml --engine spark       on the executors of a cluster
"""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Compute the features of a job's frozen trunk now, for runs with --features.cached."""

    config: Annotated[Positional[Path | None], TARGET] = None
    """A file of options, which flags go over, or a Task of your own as FILE.py:NAME."""
    config_flag: Annotated[Path | None, CONFIG_FLAG] = None
    """The same, as a flag."""
    task: str | None = None
    """A Task of your own, as FILE.py:NAME; that file is run, and executors run it too."""
    engine: EngineName = EngineName.LOCAL
    """What computes them: this process, or Spark (extra: spark)."""
    show_config: Switch = False
    """Print each option's value and where it came from, and do nothing else."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)
    recipe: Annotated[Recipe, Unprefixed] = field(default_factory=Recipe)
    run: RunConfig = field(default_factory=RunConfig)


def run(argv: list[str]) -> int:
    """Compute features by a config file and flags."""
    flags, resolved = read(argv)
    if flags.show_config:
        as_json = flags.output.json
        write(json.dumps(show_json(resolved), indent=2) if as_json else show(resolved))
        return 0
    from stepladder.training.output.display import make_display

    display = make_display(json=flags.output.json, quiet=flags.output.quiet)
    made = api.features_job(resolved.job, task=flags.task, engine=flags.engine, display=display)
    if flags.output.json:
        write(
            json.dumps({"event": "features", "folder": str(made.folder), **to_json(made.num_rows)})
        )
    elif not flags.output.quiet:
        write(_result(made))
    return 0


def read(argv: list[str]) -> tuple[Flags, Resolved]:
    """Read the flags, and resolve the config under them."""
    argv = task_as_flag(argv)
    before = job_before_flags(argv)
    default = Flags(recipe=before.recipe, run=before.run)
    flags = parse(Flags, argv, command="features", examples=_EXAMPLES, default=default)
    file = config_of(flags.config_flag, flags.config, "features")
    from_flags = flag_settings(JobConfig(recipe=flags.recipe, run=flags.run), given_flags(argv))
    return flags, resolve(settings_of_file(file) if file else {}, from_flags)


def _result(made: ComputedFeatures) -> str:
    counts = ", ".join(f"{count:,} {split}" for split, count in made.num_rows.items())
    return f"features: {made.folder} ({counts})"

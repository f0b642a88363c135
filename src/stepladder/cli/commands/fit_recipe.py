"""`stepladder fit-recipe`."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.api.ladder import fit_recipe
from stepladder.cli.crash import TRACE_FOLDER
from stepladder.cli.job_flags import LadderFlags, print_config, read_job
from stepladder.cli.parse import Switch, write
from stepladder.config.choices import ClimbAim
from stepladder.config.resolve import Setting


@dataclass(frozen=True, kw_only=True)
class Flags(LadderFlags):
    """Fit a recipe: grow the model until it overfits, then add remedies one at a time; then train.

    Each step is a trial as of `climb`. While the model grows, a step stays where the training error
    falls; a remedy stays where held-out examples are got right more often. What a Task of your own
    builds is grown by you: of it, the learning rate and the length of training are tried.

    Examples:
      stepladder fit-recipe demo.yaml               grow, then add remedies that help, then train
      stepladder fit-recipe demo.yaml --budget 30m  measure, try and train in about half an hour
      stepladder fit-recipe my_job.py:Digits        a problem of your own; that file is run
    """

    fresh: Switch = False
    """Try everything anew, whatever was found earlier."""
    overwrite: Switch = False
    """Replace a run in the folder that is no climb of this job."""


def run(argv: list[str]) -> int:
    """Fit a recipe by a config file or a task, and flags."""
    fixed = {"ladder.aim": Setting(value=ClimbAim.FIT, origin="fit-recipe")}
    flags, resolved = read_job(Flags, argv, command="fit-recipe", fixed=fixed)
    if flags.show_config:
        return print_config(resolved, flags.output)
    TRACE_FOLDER.set(resolved.job.run.dir)
    fitted = fit_recipe(
        config=resolved.job,
        task=flags.task,
        fresh=flags.fresh,
        overwrite=flags.overwrite,
        display=flags.output.display(),
    )
    if not (flags.output.json or flags.output.quiet):
        write(f"recipe: {fitted.path / 'config.yaml'}\nreport: {fitted.path / 'report.html'}")
    return 0

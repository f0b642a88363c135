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
    """Fit a recipe: grow the model until it overfits, add remedies one at a time, then train.

    Each step is a trial as in `climb`. Growth steps are kept if the training error decreases;
    remedies are kept if the held-out accuracy increases. The model of your own Task is not grown;
    only its learning rate and the length of training are tried.

    Examples:
      stepladder fit-recipe demo.yaml               grow, then add remedies that help, then train
      stepladder fit-recipe demo.yaml --budget 30m  measure, try and train in about half an hour
      stepladder fit-recipe my_job.py:Digits        a Task of your own; the file is executed
    """

    fresh: Switch = False
    """Try every rung again, and ignore earlier results."""
    overwrite: Switch = False
    """Replace a run in the folder that is not a climb of this job."""


def run(argv: list[str]) -> int:
    """Run the command."""
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

"""`stepladder population`."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepladder.api.population import train_job
from stepladder.cli.job_flags import JobFlags, print_config, read_job
from stepladder.cli.parse import Switch
from stepladder.config.options import PopulationConfig
from stepladder.records import to_json


@dataclass(frozen=True, kw_only=True)
class Flags(JobFlags):
    """Train many models at once whose settings change while they train, and choose the best.

    At intervals, the worst members take the weights of the best, and their settings are perturbed
    (population based training). The page and the numbers are in the run folder: population.html,
    population.json; the best model is in its folder winner. If it is interrupted, the same command
    resumes it.

    Examples:
      stepladder population job.yaml                      with genes in the file
      stepladder population demo.yaml --population.genes "batch.lr 1e-4..1e-1 log"
      stepladder population demo.yaml --population.members 64 --population.interval 2000
    """

    population: PopulationConfig = field(default_factory=PopulationConfig)
    overwrite: Switch = False
    """Remove an earlier population in the folder first."""


def run(argv: list[str]) -> int:
    """Run the command."""
    flags, resolved = read_job(Flags, argv, command="population")
    if flags.show_config:
        return print_config(resolved, flags.output)
    from stepladder.training.output.display import Display
    from stepladder.training.output.make_display import make_display

    quiet = flags.output.quiet or flags.output.json
    with make_display(quiet=quiet) as display:
        assert isinstance(display, Display)
        found, text = train_job(
            resolved.job, task=flags.task, display=display, overwrite=flags.overwrite
        )
    flags.output.print_result(to_json(found), text)
    return 0

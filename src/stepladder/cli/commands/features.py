"""`stepladder features`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepladder.api.cached_features import features
from stepladder.cli.job_flags import JobFlags, print_config, read_job
from stepladder.config.choices import EngineName

if TYPE_CHECKING:
    from stepladder.training.features.feature_stage import ComputedFeatures


@dataclass(frozen=True, kw_only=True)
class Flags(JobFlags):
    """Compute the features of a job's frozen trunk now, for runs with --features.cached.

    Examples:
      stepladder features run.yaml                      then: train run.yaml --features.cached
      stepladder features --data.store store
      stepladder features run.yaml --engine spark       on the executors of a cluster
    """

    task: str | None = None
    """A Task of your own, as FILE.py:NAME; that file is run, and executors run it too."""
    engine: EngineName = EngineName.LOCAL
    """What computes them: this process, or Spark (extra: spark)."""


def run(argv: list[str]) -> int:
    """Compute features by a config file and flags."""
    flags, resolved = read_job(Flags, argv, command="features")
    if flags.show_config:
        return print_config(resolved, flags.output)
    made = features(
        config=resolved.job,
        task=flags.task,
        engine=flags.engine,
        display=flags.output.display(),
    )
    facts = {"event": "features", "folder": made.folder, **made.num_rows}
    flags.output.print_done(facts, _result(made))
    return 0


def _result(made: ComputedFeatures) -> str:
    counts = ", ".join(f"{count:,} {split}" for split, count in made.num_rows.items())
    return f"features: {made.folder} ({counts})"

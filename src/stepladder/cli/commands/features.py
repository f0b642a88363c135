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
    """Precompute the features of a job's frozen trunk, for runs with --features.cached.

    Examples:
      stepladder features run.yaml                      then: train run.yaml --features.cached
      stepladder features --data.store store
      stepladder features run.yaml --engine spark       on the executors of a Spark cluster
    """

    task: str | None = None
    """Your own Task, as FILE.py:NAME; the file is executed, also on Spark executors."""
    engine: EngineName = EngineName.LOCAL
    """Where to compute them: in this process, or on Spark (extra: spark)."""


def run(argv: list[str]) -> int:
    """Run the command."""
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

"""Features of a frozen trunk, computed ahead of the runs that learn from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.api.call import default_display, job_of, made_task
from stepladder.config.choices import EngineName
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe

if TYPE_CHECKING:
    from stepladder.task.contract import Task
    from stepladder.training.features.feature_stage import ComputedFeatures
    from stepladder.training.output.display import Display


def features(
    recipe: Recipe | None = None,
    *,
    store: Path | str | None = None,
    task: Task | str | None = None,
    config: JobConfig | Path | str | None = None,
    engine: EngineName | str = EngineName.LOCAL,
    display: Display | None = None,
    **settings: object,
) -> ComputedFeatures:
    """Compute the features of train, val and test now; runs with `features.cached` find them.

    Args:
        recipe: what will be trained, as an object.
        store: folder that `prepare` wrote; sets `data.store`.
        task: a Task, or "FILE.py:NAME"; none: image classification on the store.
        config: a whole job as an object, or a YAML file.
        engine: what computes them: local, or spark.
        display: where progress goes; none: stderr on a terminal, else nowhere.
        settings: options by their dotted names, over recipe and config.

    Raises:
        UsageError, DataError, ResourceError, InterruptedRun: as the message says.
    """
    job = job_of(recipe, store=store, dir=None, config=config, settings=settings)
    from stepladder.training.features.feature_cache import FeatureEngine
    from stepladder.training.features.feature_stage import compute_features

    made, name = made_task(task, job.recipe)
    by: FeatureEngine | None = None
    if EngineName(engine) is EngineName.SPARK:
        from stepladder.training.features.spark import SparkFeatures

        by = SparkFeatures(name)
    with display or default_display() as shown:
        return compute_features(job, made, display=shown, engine=by)

"""Precompute the features of a frozen trunk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.api.call import default_display, is_own, job_of, made_task
from stepladder.api.pictures import on_store
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
    """Precompute the features of train, val and test, for runs with `features.cached`.

    Args:
        recipe: the recipe to be trained.
        store: store folder, written by `prepare`; sets `data.store`.
        task: a Task, or "FILE.py:NAME"; default: image classification on the store.
        config: a JobConfig, or the path of a YAML file.
        engine: local, or spark.
        display: display of the progress; default: lines on stderr, or in the notebook.
        settings: options by their dotted names; they override recipe and config.

    Raises:
        UsageError, DataError, ResourceError, InterruptedRun: if the features cannot be computed.
    """
    job = job_of(recipe, store=store, dir=None, config=config, settings=settings, task=task)
    from stepladder.training.features.feature_cache import FeatureEngine
    from stepladder.training.features.feature_stage import compute_features

    with display or default_display() as shown:
        job = on_store(job, shown, has_own_task=is_own(task))
        made, name = made_task(task, job.recipe)
        by: FeatureEngine | None = None
        if EngineName(engine) is EngineName.SPARK:
            from stepladder.training.features.spark import SparkFeatures

            by = SparkFeatures(name)
        return compute_features(job, made, display=shown, engine=by)

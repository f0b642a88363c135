"""Compute all features of a job, before any run of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from stepladder.config.options import JobConfig
from stepladder.task.contract import Task
from stepladder.training.features.feature_cache import features_folder, require_features
from stepladder.training.features.feature_stage import go_on_features
from stepladder.training.features.split_features import FeatureEngine
from stepladder.training.output.display import Display
from stepladder.training.setup.build import make_model, open_device, use_threads
from stepladder.training.setup.table_version import name_table_version, open_at_version
from stepladder.training.signals import SignalGuard


@dataclass(frozen=True, kw_only=True)
class ComputedFeatures:
    """Where the features of a job are.

    Attributes:
        folder: of all features of its data.
        num_rows: of each split that it has.
    """

    folder: Path
    num_rows: dict[str, int]


def compute_features(
    job: JobConfig, task: Task, *, display: Display, engine: FeatureEngine | None = None
) -> ComputedFeatures:
    """Compute the features of train, val and test, as far as they are not there.

    Args:
        job: what a run would be given; whether it asks for cached features does not matter.
        task: the task on examples.
        display: where progress goes.
        engine: that computes them; None: this process does.

    Raises:
        UsageError: if features cannot be computed once, or the engine cannot be had.
        DataError: if the data cannot be used.
        ResourceError: if they cannot be written.
        InterruptedRun: after a signal; the same command goes on.
    """
    recipe = replace(job.recipe, features=replace(job.recipe.features, cached=True))
    job = replace(job, recipe=recipe)
    device = open_device(recipe.device.kind)
    use_threads(recipe)
    sources = open_at_version(task, recipe.data.table_version)
    job = name_table_version(job, sources)  # so that executors read the same
    model = make_model(recipe, task, device)
    require_features(recipe, task, model, sources.train)
    with SignalGuard() as guard:
        _, features = go_on_features(
            job,
            task,
            sources,
            model=model,
            device=device,
            loaded=None,
            display=display,
            guard=guard,
            is_test_wanted=True,
            engine=engine,
        )
    splits = {"train": features.train, "val": features.val, "test": features.test}
    num_rows = {name: len(source) for name, source in splits.items() if source is not None}
    return ComputedFeatures(folder=features_folder(job, task), num_rows=num_rows)

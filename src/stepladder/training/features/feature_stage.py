"""Compute the features of a run before its first step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from stepladder.config.options import JobConfig
from stepladder.machine.activity import moved
from stepladder.task.contract import Task
from stepladder.training.checkpoint.checkpoint import check_fits
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.evaluate import EvaluationCancelled
from stepladder.training.features.feature_cache import FeatureEngine
from stepladder.training.features.feature_task import (
    FeatureTask,
    features_folder,
    num_views,
    open_features,
    require_features,
)
from stepladder.training.output.display import Display
from stepladder.training.setup.automatic import make_settled_model
from stepladder.training.setup.build import (
    Sources,
    make_trunk_pass,
    open_device,
    use_threads,
)
from stepladder.training.setup.table_version import name_table_version, open_at_version
from stepladder.training.signals import SignalGuard

_FIX = "To resume, type the same command: the features computed so far are kept."


def go_on_features(
    job: JobConfig,
    task: Task,
    sources: Sources,
    *,
    model: nn.Module,
    device: torch.device,
    loaded: Loaded | None,
    display: Display,
    guard: SignalGuard,
    is_test_wanted: bool = False,
    engine: FeatureEngine | None = None,
) -> tuple[Task, Sources]:
    """Return the task and the sources to train on, with features instead of examples.

    Call `require_features` before.

    Args:
        loaded: the checkpoint that the run resumes from; its frozen weights are the trunk's.
        is_test_wanted: compute the features of test now, and not at their first read.
        engine: computes the features; None: this process does.

    Raises:
        DataError: if the checkpoint belongs to another model.
        ResourceError: if features cannot be written.
        InterruptedRun: after a signal.
    """
    if loaded is not None:
        check_fits(model.state_dict(), loaded)
        model.load_state_dict(loaded.frozen, strict=False)
    pace = _Pace(display)
    with interruption_told(guard):
        features = open_features(
            job.recipe,
            task,
            model,
            sources,
            folder=features_folder(job, task),
            device=device,
            on_progress=pace.show,
            on_message=display.warning,
            is_cancelled=lambda: bool(guard.requested),
            is_checked=True,
            is_test_wanted=is_test_wanted,
            engine=engine,
        )
    return FeatureTask(task, num_views=num_views(job.recipe.features, task)), features


@contextmanager
def interruption_told(guard: SignalGuard) -> Iterator[None]:
    """Add what to type to the error if a signal interrupts the block.

    Raises:
        InterruptedRun: after a signal.
    """
    try:
        yield
    except EvaluationCancelled:
        raise guard.interruption(fix=_FIX) from None


class _Pace:
    """Computes examples per second and seconds left from counts."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._started_s = time.monotonic()
        self._before: int | None = None

    def show(self, done: int, total: int) -> None:
        moved()
        if self._before is None:
            self._before, self._started_s = done, time.monotonic()  # the first batch is slow
            return
        per_s = (done - self._before) / max(time.monotonic() - self._started_s, 1e-9)
        self._display.features(done, total, per_s, (total - done) / per_s if per_s > 0 else None)


@dataclass(frozen=True, kw_only=True)
class ComputedFeatures:
    """The location of a job's features.

    Attributes:
        folder: of all features of its data.
        num_rows: of each split.
    """

    folder: Path
    num_rows: dict[str, int]


def compute_features(
    job: JobConfig, task: Task, *, display: Display, engine: FeatureEngine | None = None
) -> ComputedFeatures:
    """Compute the missing features of train, val and test.

    Args:
        job: the job of a run; its `features.cached` is ignored.
        task: the task on examples.
        display: shows progress.
        engine: computes the features; None: this process does.

    Raises:
        UsageError: if features cannot be cached, or the engine is not available.
        DataError: if the data cannot be used.
        ResourceError: if they cannot be written.
        InterruptedRun: after a signal; the same command resumes.
    """
    recipe = replace(job.recipe, features=replace(job.recipe.features, cached=True))
    job = replace(job, recipe=recipe)
    device = open_device(recipe)
    use_threads(recipe)
    sources = open_at_version(task, recipe.data.table_version)
    job = name_table_version(job, sources)  # so that executors read the same version
    recipe, model, _ = make_settled_model(
        recipe, task, sources, device=device, folder=features_folder(job, task)
    )
    job = replace(job, recipe=recipe)
    way = make_trunk_pass(recipe, task, model, device=device)
    require_features(way, recipe.train, sources.train)
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

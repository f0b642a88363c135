"""The part of a run before its first step in which the features are computed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from stepladder.config.options import JobConfig
from stepladder.task.contract import Task
from stepladder.training.checkpoint.checkpoint import check_fits
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.evaluate import EvaluationCancelled
from stepladder.training.features.feature_cache import (
    FeatureTask,
    features_folder,
    num_views,
    open_features,
)
from stepladder.training.features.split_features import FeatureEngine
from stepladder.training.output.display import Display
from stepladder.training.setup.build import Sources
from stepladder.training.signals import SignalGuard

_FIX = "The same command goes on from here: the features that are computed are kept."


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
    """Give the task and the sources to train on, features in place of the examples.

    `require_features` has been asked before.

    Args:
        loaded: the checkpoint that the run goes on from; its frozen weights are the trunk's.
        is_test_wanted: compute those of test now, and not at their first read.
        engine: that computes them; None: this process does.

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
    return FeatureTask(task, num_views=num_views(job.recipe, task)), features


@contextmanager
def interruption_told(guard: SignalGuard) -> Iterator[None]:
    """Say what to type where a signal ends the computing of features within the block.

    Raises:
        InterruptedRun: after a signal.
    """
    try:
        yield
    except EvaluationCancelled:
        raise guard.interruption(fix=_FIX) from None


class _Pace:
    """Turns counts into examples a second and seconds left."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._started_s = time.monotonic()
        self._before: int | None = None

    def show(self, done: int, total: int) -> None:
        if self._before is None:
            self._before, self._started_s = done, time.monotonic()  # the first batch is slow
            return
        per_s = (done - self._before) / max(time.monotonic() - self._started_s, 1e-9)
        self._display.features(done, total, per_s, (total - done) / per_s if per_s > 0 else None)

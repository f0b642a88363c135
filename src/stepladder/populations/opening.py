"""Open the data of a population: which split chooses members, and which judges the winner."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from stepladder.config.options import JobConfig
from stepladder.data.reading.examples import ArrivalSource
from stepladder.data.reading.rows import rows_of
from stepladder.errors import DataError
from stepladder.populations.slices import Job
from stepladder.task.contract import Task
from stepladder.training.features.feature_stage import go_on_features
from stepladder.training.output.display import Display
from stepladder.training.setup.build import Sources, make_model, open_device
from stepladder.training.setup.table_version import open_at_version
from stepladder.training.signals import SignalGuard

TEST: Final = "test"
HALF_OF_VAL: Final = "half of val"
_SPLIT_SEED: Final = 42


def split_judges(sources: Sources, task: Task) -> tuple[Sources, str]:
    """Return the splits, with a test split that chooses nothing, and its name.

    A population overfits the examples that choose its members. Without a test split, half of the
    validation examples judge the winner instead, and choose nothing.

    Raises:
        DataError: if there is no validation split.
    """
    val = sources.val
    if val is None or isinstance(val, ArrivalSource):
        raise DataError(
            "the task has no validation examples with numbers, by which a population chooses its "
            "members",
            where=type(task).__name__,
            fix="Return a Dataset with __getitem__ from data(Split.VAL).",
        )
    if sources.test is not None:
        return sources, TEST
    if len(val) < 2:
        return sources, ""
    rows = np.random.default_rng(_SPLIT_SEED).permutation(len(val))
    half = len(val) // 2
    chooses, judges = (rows_of([val], np.sort(part)) for part in (rows[half:], rows[:half]))
    return replace(sources, val=chooses, test=judges), HALF_OF_VAL


def as_features(
    job: JobConfig,
    task: Task,
    sources: Sources,
    *,
    device: torch.device,
    display: Display,
    guard: SignalGuard,
) -> tuple[Task, Sources]:
    """Return a task and its splits as features, computed if they are not there."""
    task = copy.copy(task)
    model = make_model(job.recipe, task, device)
    return go_on_features(
        job,
        task,
        sources,
        model=model,
        device=device,
        loaded=None,
        display=display,
        guard=guard,
        is_test_wanted=True,
    )


def job_of(
    job: JobConfig,
    task: Task,
    sources: Sources,
    *,
    folder: Path,
    device: torch.device,
    display: Display,
    guard: SignalGuard,
) -> Job:
    """Return what slices are made of: the examples, or their features if the recipe caches them."""
    if job.recipe.features.cached:
        task, sources = as_features(job, task, sources, device=device, display=display, guard=guard)
    return Job(
        task=task,
        sources=sources,
        device=device,
        folder=folder,
        seed=job.recipe.seed,
        is_cancelled=lambda: bool(guard.requested),
    )


def slice_job(job: JobConfig, task: Task, *, folder: Path, display: Display) -> Job:
    """Return what slices are made of, in a process that trains some of them.

    Args:
        job: of a population that has begun: all choices are made.
    """
    sources = open_at_version(task, job.recipe.data.table_version)
    return job_of(
        job,
        task,
        split_judges(sources, task)[0],
        folder=folder,
        device=open_device(job.recipe),
        display=display,
        guard=SignalGuard(),
    )

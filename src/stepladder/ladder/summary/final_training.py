"""The training at the end of a climb, with everything that was kept."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepladder.config.load import load_job
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.errors import InterruptedRun
from stepladder.ladder.keys import recipe_key
from stepladder.ladder.ledger import KeptTraining, Ledger
from stepladder.ladder.summary.baseline_run import keys_in, seconds_of_used
from stepladder.records import read_json
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification
from stepladder.training.checkpoint.mirror import forget_mirrored
from stepladder.training.features.feature_cache import features_folder
from stepladder.training.output.display import Display
from stepladder.training.output.finish import SUMMARY_FILE
from stepladder.training.run import train
from stepladder.training.setup.run_folder import CHECKPOINTS, CONFIG, RunFolder


def train_kept(
    job: JobConfig,
    task: Task,
    *,
    task_name: str,
    display: Display,
    is_new: bool,
    ledger: Ledger,
    again: str,
) -> float:
    """Train with what was kept; a training of it that is finished is not done again.

    Args:
        job: with the recipe that was kept.
        is_new: replace whatever training the folder holds.
        ledger: tells what an interrupted or finished training of this recipe began with.
        again: what to type after a signal.

    Returns:
        Seconds that features took which the training found ready; they count as its own.
    """
    path = job.run.dir
    if _holds_other_training(path, job, is_new=is_new):
        folder = RunFolder(path)
        with folder.lock():
            forget_mirrored(job.run)
            folder.overwrite(keeps_ledger=True)
    task = task_for(task, job.recipe)
    cache, before, key = features_folder(job, task), summary_in(path), recipe_key(job.recipe)
    has_clock = any((path / CHECKPOINTS).glob("step-*"))  # of the attempt before
    began = ledger.find_training(key) if has_clock else None
    if began is None:
        began = KeptTraining(ready=tuple(sorted(keys_in(cache))), since=time.time())
        ledger.training(began, recipe=key)
    try:
        summary = train(job, task, task_name=task_name, display=display)
    except InterruptedRun as error:
        error.fix = again
        raise
    if summary == before and began.found_s is not None:
        return began.found_s  # it was finished before, and used no features now
    found_s = seconds_of_used(cache, frozenset(began.ready), since=began.since)
    ledger.training(replace(began, found_s=found_s), recipe=key)
    return found_s


def task_for(task: Task, recipe: Recipe) -> Task:
    """Give the task that reads its store as a recipe says; a user's own knows no recipe."""
    return task.as_read_by(recipe) if isinstance(task, ImageClassification) else task


def summary_in(folder: Path) -> dict[str, Any] | None:
    """Read the summary of a folder's training; None where there is none.

    Raises:
        DataError: if it is damaged.
    """
    if not (folder / SUMMARY_FILE).exists():
        return None
    summary: dict[str, Any] = read_json(folder / SUMMARY_FILE)
    return summary


def _holds_other_training(folder: Path, job: JobConfig, *, is_new: bool) -> bool:
    """Say whether the folder holds a training of another recipe, or of the climb before."""
    config = folder / CONFIG
    return config.exists() and (is_new or load_job(config).recipe != job.recipe)

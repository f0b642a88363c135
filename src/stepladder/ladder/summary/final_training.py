"""The final training of a climb, with all kept rungs."""

from __future__ import annotations

import copy
import io
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from stepladder.config.choices import Split
from stepladder.config.load import load_job
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.errors import DivergedError, InterruptedRun, ResourceError
from stepladder.ladder.keys import recipe_key
from stepladder.ladder.lab import Lab
from stepladder.ladder.ledger import KeptTraining, Ledger
from stepladder.measuring.probe import untouched
from stepladder.records import read_json
from stepladder.records.profile import Profile
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification
from stepladder.training.checkpoint.mirror import forget_mirrored
from stepladder.training.features.feature_task import features_folder
from stepladder.training.output.display import Display
from stepladder.training.output.finish import SUMMARY_FILE
from stepladder.training.run import train
from stepladder.training.setup.run_folder import CHECKPOINTS, CONFIG, RunFolder

Launch = Callable[[JobConfig], None]
"""Trains a job on several devices in its run folder, and waits for it."""
_SIGNAL_EXIT: Final = 128
"""Above the number of the signal that ended a run, in its exit code."""


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """Time of the original job, measured in the same way as the result of a climb.

    Attributes:
        total_s: by the training's own clock, plus one-time work outside of it.
        epochs: until it stopped, including a fraction of an unfinished one.
    """

    total_s: float
    epochs: float


def run_whole(lab: Lab, profile: Profile) -> WholeRun | None:
    """Run the original job in full in a private folder, without output and without the test split.

    None if it diverges, or does not fit on the disk.

    Args:
        profile: of the original job.
    """
    folder = lab.cache / "whole"
    run = replace(lab.job.run, dir=folder, mirror=None, mlflow_uri=None)
    job = replace(lab.job, run=run)
    cache = features_folder(job, lab.task)
    ready, began = keys_in(cache), time.time()
    task = _without_test(lab)
    try:
        with untouched(), _Silent(io.StringIO()) as display:
            summary = train(job, task, task_name=type(task).__name__, display=display)
        found_s = seconds_of_used(cache, ready, since=began)
    except (DivergedError, ResourceError):
        return None
    except InterruptedRun as error:  # there is nothing to resume here: the climb ends
        signal.raise_signal(signal.Signals(error.exit_code - _SIGNAL_EXIT))
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outside_s = sum(outside_clock_s(lab, profile, job.recipe).values())
    return WholeRun(
        total_s=float(summary["train_s"]) + found_s + outside_s,
        epochs=epochs_of(summary, lab, job.recipe),
    )


def epochs_of(summary: Mapping[str, Any], lab: Lab, recipe: Recipe) -> float:
    """Return the epochs of a finished training, including a fraction of an unfinished one.

    Args:
        summary: of its run folder.
    """
    return float(summary["steps"]) / lab.steps_per_epoch(recipe)


def outside_clock_s(lab: Lab, profile: Profile, recipe: Recipe) -> dict[str, float]:
    """Return the one-time work outside of a training's own clock, as the ladder measured it.

    The decoded copy that the lab made, and cold compilation. (With cached features, the trunk is
    compiled while they are computed, which the clock includes.)

    Args:
        profile: of the recipe.
    """
    found = lab.one_time_s(recipe)
    is_outside = recipe.device.compile and not recipe.features.cached
    compile_s = profile.time.one_time_s.get("compile", 0.0) if is_outside else 0.0
    return found | ({"compile": compile_s} if compile_s > 0 else {})


def keys_in(cache: Path) -> frozenset[str]:
    """Return the keys of the features that are cached in a folder."""
    return frozenset(path.parent.name for path in cache.glob("*/manifest.json"))


def seconds_of_used(cache: Path, keys: frozenset[str], *, since: float) -> float:
    """Return the seconds that computing the cached features of a training took, without test.

    Args:
        keys: features that were cached before; a training may have removed some.
        since: start of the training, in seconds since the Unix epoch; a use updates the folder's
            mtime.
    """
    left = [cache / key for key in keys & keys_in(cache)]
    used = [path for path in left if path.stat().st_mtime >= since]
    manifests = [read_json(path / "manifest.json") for path in used]
    return sum(float(one["seconds"]) for one in manifests if one["split"] != Split.TEST)


class _Silent(Display):
    """Shows nothing, not even warnings: the final training shows the same ones."""

    def warning(self, text: str) -> None:
        """Ignore the warning."""


def _without_test(lab: Lab) -> Task:
    """Return the task without its test split, which is evaluated only once, at the end."""
    task = copy.copy(lab.task)
    task.__dict__["data"] = lambda split: None if split is Split.TEST else lab.task.data(split)
    return task


def train_kept(
    job: JobConfig,
    task: Task,
    *,
    task_name: str,
    display: Display,
    is_new: bool,
    ledger: Ledger,
    again: str,
    launch: Launch | None = None,
) -> float:
    """Train with the kept rungs; a finished training is not repeated.

    Args:
        job: with the recipe of all kept rungs.
        is_new: replace any training that the folder holds.
        ledger: holds the state at the start of an interrupted or finished training.
        again: what to type after a signal.
        launch: trains on several devices; None: the job uses one.

    Returns:
        Seconds that computing the features took that were already cached; they count as part of
        the training.
    """
    path = job.run.dir
    if _holds_other_training(path, job, is_new=is_new):
        folder = RunFolder(path)
        with folder.lock():
            forget_mirrored(job.run)
            folder.overwrite(keeps_ledger=True)
    task = task_for(task, job.recipe)
    cache, before, key = features_folder(job, task), summary_in(path), recipe_key(job.recipe)
    has_clock = any((path / CHECKPOINTS).glob("step-*"))  # of an earlier attempt
    began = ledger.find_training(key) if has_clock else None
    if began is None:
        began = KeptTraining(ready=tuple(sorted(keys_in(cache))), since=time.time())
        ledger.training(began, recipe=key)
    try:
        if launch is None or job.recipe.device.count == 1:
            summary = train(job, task, task_name=task_name, display=display)
        else:
            launch(job)
            summary = summary_in(path) or {}
    except InterruptedRun as error:
        error.fix = again
        raise
    if summary == before and began.found_s is not None:
        return began.found_s  # it was finished before, and used no features this time
    found_s = seconds_of_used(cache, frozenset(began.ready), since=began.since)
    ledger.training(replace(began, found_s=found_s), recipe=key)
    return found_s


def task_for(task: Task, recipe: Recipe) -> Task:
    """Return the task that reads its store according to a recipe; a user's task is unchanged."""
    return task.as_read_by(recipe) if isinstance(task, ImageClassification) else task


def summary_in(folder: Path) -> dict[str, Any] | None:
    """Read the summary of a folder's training; None if there is no summary.

    Raises:
        DataError: if it is damaged.
    """
    if not (folder / SUMMARY_FILE).exists():
        return None
    summary: dict[str, Any] = read_json(folder / SUMMARY_FILE)
    return summary


def _holds_other_training(folder: Path, job: JobConfig, *, is_new: bool) -> bool:
    """Return True if the folder holds a training of another recipe, or any training if is_new."""
    config = folder / CONFIG
    return config.exists() and (is_new or load_job(config).recipe != job.recipe)

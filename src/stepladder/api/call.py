"""Resolve the arguments of a call: job, task, run folder, display."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.config.choices import TrainMode, WeightsSource
from stepladder.config.load import load_job, settings_of_file
from stepladder.config.naming import with_run_folder_of
from stepladder.config.options import JobConfig
from stepladder.config.recipe import ModelConfig, Recipe
from stepladder.config.resolve import Resolved, resolve, settings_of_call
from stepladder.errors import DataError, ResourceError, UsageError
from stepladder.machine.activity import doing, is_reported
from stepladder.records.near_paths import did_you_mean_path
from stepladder.records.run_files import (
    CONFIG_FILE,
    RUN_MARKS,
    did_you_mean,
    has_any,
    run_of,
    runs_in,
)
from stepladder.records.watch import WATCH_FILE

if TYPE_CHECKING:
    from stepladder.task.contract import Task
    from stepladder.training.output.display import Display

_WROTE = {
    False: "Use a folder written by `stepladder train` or `climb`, such as runs/first.",
    True: "Use a folder written by `stepladder train`, `climb` or `watch`, such as runs/first.",
}
_NOTHING_LEFT = "A watched script that is killed in its first seconds writes no report."


def resolved_call(
    base: JobConfig | None, file: Path | str | None, settings: dict[str, Any]
) -> Resolved:
    """Merge a file and the settings of a call into a base."""
    layers = [settings_of_file(Path(file))] if file is not None else []
    return resolve(*layers, settings_of_call(settings), base=base)


def job_of(
    recipe: Recipe | None,
    *,
    store: Path | str | None,
    dir: Path | str | None,
    config: JobConfig | Path | str | None,
    settings: dict[str, object],
    task: Task | str | None = None,
) -> JobConfig:
    """Resolve the arguments of a call: an object or a file, overridden by settings.

    Args:
        task: names the run folder if there is no file.
    """
    if recipe is not None and config is not None:
        raise UsageError(
            "the arguments recipe and config are both set, but each contains all options of the "
            "training",
            fix="Pass only one of the two.",
        )
    named = {"data.store": store, "run.dir": dir}
    settings = settings | {key: value for key, value in named.items() if value is not None}
    base = JobConfig(recipe=recipe) if recipe is not None else None
    if isinstance(config, JobConfig):
        base = config
    file = Path(config) if isinstance(config, (str, Path)) else None
    job = resolved_call(base, file, settings).job
    return with_run_folder_of(job, file=file, task=_own_task(task))


def is_own(task: Task | str | None) -> bool:
    """Return True for a user's Task, False for the built-in one."""
    return _own_task(task) is not None


def _own_task(task: Task | str | None) -> str | None:
    """Return the name of a user's Task; None for the built-in one."""
    from stepladder.task.load import BUILT_IN

    if task is None or isinstance(task, str):
        return None if task == BUILT_IN else task
    kind = type(task)
    return None if kind.__module__.startswith("stepladder.") else kind.__qualname__


def made_task(task: Task | str | None, recipe: Recipe) -> tuple[Task, str]:
    """Return a task and its name; load it if it is given by name, or not given."""
    from stepladder.task.load import BUILT_IN, load_task, name_of

    name = task if isinstance(task, str) else name_of(task) if task else BUILT_IN
    if task is None or isinstance(task, str):
        task = load_task(name, store=recipe.data.store, recipe=recipe)
    return task, name


def refuse_random_trunk(recipe: Recipe, task: Task) -> None:
    """Check that a frozen trunk has weights: the features of a random one are noise.

    A Task that builds its own model may not use `model.weights`.

    Raises:
        UsageError: if the head would be trained on a trunk with random weights.
    """
    if recipe.train is TrainMode.ALL or recipe.model.weights is not WeightsSource.NONE:
        return
    from stepladder.task.image_classification import ImageClassification

    if getattr(type(task), "build_model", None) is ImageClassification.build_model:
        source = "packaged" if recipe.model.name == ModelConfig.name else "hub"
        raise UsageError(
            f"with --train {recipe.train} only the last layers (head) are trained, but with "
            "--model.weights none the others (trunk) have random weights, so there is little to "
            "learn from",
            fix="To train all weights: --train all. To begin with pretrained weights: "
            f"--model.weights {source}",
        )


def task_of(run: Path, task: Task | str | None) -> Task | None:
    """Load a Task given by name, with the store of the run."""
    if not isinstance(task, str):
        return task
    from stepladder.task.load import load_task

    return load_task(task, store=load_job(run / "config.yaml").recipe.data.store)


def default_display() -> Display:
    """Return a display of the progress: in the output of a notebook's cell, else on stderr."""
    from stepladder.training.output.live_display import NotebookDisplay
    from stepladder.training.output.make_display import is_notebook, make_display

    return NotebookDisplay(sys.stdout) if is_notebook() else make_display(stream=sys.stderr)


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Report what the block does, also where no command or display does: in Python and notebooks.

    Args:
        what: in words, such as `checking the job`.
    """
    with nullcontext() if is_reported() else default_display(), doing(what):
        yield


def run_folder(run: Path | str, *, or_watched: bool = False) -> Path:
    """Return the folder of a run.

    Args:
        run: the folder, as given.
        or_watched: mention folders of watched scripts in the error message.

    Raises:
        DataError: if it does not contain a run.
    """
    folder = Path(run)
    marks = (*RUN_MARKS, WATCH_FILE) if or_watched else RUN_MARKS
    if folder.is_file():
        meant = run_of(folder, marks)
        raise DataError(
            "this is a file, not the folder of a run",
            where=str(folder),
            fix=_WROTE[or_watched] if meant is None else f"Use the run folder {meant}.",
        )
    if not folder.is_dir():
        fix = did_you_mean_path(folder, _WROTE[or_watched], fits=lambda path: has_any(path, marks))
        raise DataError("the folder does not exist", where=str(folder), fix=fix)
    if not has_any(folder, (*RUN_MARKS, CONFIG_FILE)):
        runs = runs_in(folder, marks)
        raise DataError(
            "this is not the folder of a run"
            + (", but it contains folders that are" if runs else ""),
            where=str(folder),
            why=_NOTHING_LEFT if or_watched and not runs else None,
            fix=did_you_mean(runs) if runs else _WROTE[or_watched],
        )
    return folder


def make_folder(folder: Path) -> None:
    """Make the folder of a result.

    Raises:
        ResourceError: if it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"the folder cannot be made ({error.strerror or error})",
            where=str(folder),
            fix="Type --run.dir FOLDER with one that you may write to.",
        ) from error

"""Predict the gain of more data: train on parts of the data, and fit a power law."""

from __future__ import annotations

import copy
import io
import math
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepladder.config.choices import Split
from stepladder.config.options import JobConfig
from stepladder.config.recipe import FeaturesConfig, Recipe
from stepladder.diagnosis.runs.opened_run import OpenedRun
from stepladder.errors import DataError
from stepladder.measuring.probe import untouched
from stepladder.records.diagnosis import LearningCurve
from stepladder.stats.power_law import fit_power_law
from stepladder.task.contract import Task
from stepladder.training.output.display import Display
from stepladder.training.output.results import Judged, read_predictions
from stepladder.training.output.wording import duration
from stepladder.training.run import train
from stepladder.training.setup.build import make_model

FRACTIONS = (0.25, 0.5, 1.0)
NUM_SEEDS = 2
NUM_TRAININGS = len(FRACTIONS) * NUM_SEEDS
NUM_DRAWS = 1000
CONFIDENCE = 0.95  # one-sided, of each bound
MIN_ROWS = 8  # training examples of the smallest part


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """One training: its number of examples, and the loss and hit of each validation example."""

    num_train: int
    judged: Judged


def measure_learning_curve(
    run: OpenedRun,
    *,
    say: Callable[[str], None],
    train_s: float | None,
    num_seeds: int = NUM_SEEDS,
) -> LearningCurve:
    """Train on a quarter, a half and all of the run's data, and predict the gain of doubling it.

    Each training takes as many steps as the run: with less data, each example is seen more often,
    so that only the data differs. Smaller parts are subsets of larger ones. All are evaluated on
    the validation examples of the run. Temporary files are next to the run and are removed.

    Args:
        say: called with the expected duration, before it starts.
        train_s: training time of the run in seconds, for that estimate; None if unknown.
        num_seeds: number of trainings per size.

    Raises:
        DataError: if there is no validation split, or too little data.
        DivergedError: if one of the trainings diverged.
        ResourceError: if the disk is full.
    """
    started = time.perf_counter()
    if run.sources.val is None:
        raise DataError(
            "a learning curve (the error by the number of training examples) needs a validation "
            "split, and this run has none",
            fix="Run stepladder prepare again with --val-frac 0.1; in your own Task, "
            "return a validation split from data(Split.VAL).",
        )
    num_used = _num_used(run)
    if num_used * FRACTIONS[0] < MIN_ROWS:
        raise DataError(
            f"{num_used} training examples are too few for a learning curve (the error by the "
            "number of training examples)",
            fix=f"Train on at least {math.ceil(MIN_ROWS / FRACTIONS[0])} examples.",
        )
    num = len(FRACTIONS) * num_seeds
    each = f", about {duration(num * train_s)} in all" if train_s else ""
    say(f"training {num} times on parts of the data for a learning curve{each}")
    task, recipe = _task_and_recipe(run)
    folder = Path(tempfile.mkdtemp(prefix=".diagnose-", suffix=".tmp", dir=run.run))
    try:
        trained = [
            _train(run.job, task, _part(recipe, share, seed), folder)
            for share in FRACTIONS
            for seed in range(run.job.recipe.seed, run.job.recipe.seed + num_seeds)
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return curve_through(
        [item.num_train for item in trained],
        [item.judged for item in trained],
        num_seeds=num_seeds,
        took_s=time.perf_counter() - started,
    )


def has_enough(run: OpenedRun) -> bool:
    """Return True if a run has enough data for a learning curve, and a validation split."""
    return run.sources.val is not None and _num_used(run) * FRACTIONS[0] >= MIN_ROWS


def _num_used(run: OpenedRun) -> int:
    return round(len(run.sources.train) * run.recipe.data.fraction)


def curve_through(
    sizes: list[int], judged: list[Judged], *, num_seeds: int, took_s: float
) -> LearningCurve:
    """Fit the power law, and bound it by a bootstrap over validation examples and trainings.

    Args:
        sizes: number of examples of each training, equal sizes next to each other.
        judged: validation examples of each training, the same for all.
    """
    is_share = all(item.hits is not None for item in judged)
    values = np.stack([_errors(item, is_share) for item in judged])  # (t, n)
    names = sorted(set(sizes))
    groups = [[idx for idx, size in enumerate(sizes) if size == name] for name in names]
    means = np.array([values[group].mean() for group in groups])
    law = fit_power_law(names, means)
    draws = fit_power_law(names, _draw(values, groups))
    last, double = names[-1], 2 * names[-1]
    now, then = float(law.at(last)[0]), float(law.at(double)[0])
    low, high = np.quantile(draws.at(double), [1 - CONFIDENCE, CONFIDENCE])
    gains = draws.at(last) - draws.at(double)
    low_gain, high_gain = np.quantile(gains, [1 - CONFIDENCE, CONFIDENCE])
    return LearningCurve(
        sizes=tuple(sizes),
        errors=tuple(float(row.mean()) for row in values),
        is_share=is_share,
        a=float(law.a[0]),
        b=float(law.b[0]),
        c=float(law.c[0]),
        error_now=now,
        error_at_double=then,
        low_at_double=min(float(low), then),
        high_at_double=max(float(high), then),
        gain=now - then,
        low_gain=min(float(low_gain), now - then),
        high_gain=max(float(high_gain), now - then),
        num_seeds=num_seeds,
        took_s=took_s,
    )


def _draw(values: NDArray[np.float64], groups: list[list[int]]) -> NDArray[np.float64]:
    """Draw the mean error of each size, (NUM_DRAWS, k), with the same examples in each draw.

    Trainings of a size are drawn with replacement as well; their spread is corrected for the small
    number of trainings, as draws of two of them show only half of the variance.
    """
    random = np.random.default_rng(0)
    num = values.shape[1]
    weights = random.multinomial(num, np.full(num, 1 / num), size=NUM_DRAWS) / num  # (draws, n)
    by_training = weights @ values.T  # (draws, t)
    columns = []
    for group in groups:
        chosen = random.choice(group, size=(NUM_DRAWS, len(group)))
        drawn = np.take_along_axis(by_training, chosen, axis=1).mean(1)
        centre = by_training[:, group].mean(1)
        k = len(group)
        columns.append(centre + (drawn - centre) * (math.sqrt(k / (k - 1)) if k > 1 else 1.0))
    return np.stack(columns, axis=1)


def _errors(judged: Judged, is_share: bool) -> NDArray[np.float64]:
    if is_share:
        assert judged.hits is not None
        return 1 - judged.hits
    return judged.losses


def _task_and_recipe(run: OpenedRun) -> tuple[Task, Recipe]:
    """Return what to train: the run's Task without its test split, on features if the run was.

    The features of the whole dataset are computed once; each part is a subset of them.
    """
    recipe = run.job.recipe
    sources = replace(run.sources, test=None)
    task = copy.copy(run.task)
    if recipe.features.cached:
        with untouched():
            task, sources = run.on_features(make_model(recipe, run.task, run.device))
        recipe = replace(recipe, features=FeaturesConfig())
    splits = {Split.TRAIN: sources.train, Split.VAL: sources.val}
    setattr(task, "data", splits.get)  # noqa: B010  (of this copy alone)
    return task, recipe


def _train(job: JobConfig, task: Task, recipe: Recipe, folder: Path) -> _Trained:
    """Train to the end in a separate folder, and remove it."""
    target = folder / "run"
    alone = replace(
        job.run,
        dir=target,
        mirror=None,
        tensorboard=False,
        mlflow_uri=None,
        baseline=None,
        checkpoint_every_s=3600.0,
    )
    summary = train(
        replace(job, recipe=recipe, run=alone),
        task,
        task_name="learning curve",
        display=Display(io.StringIO()),
    )
    judged = read_predictions(target, "val")
    if judged is None:
        raise DataError(
            "the learning curve cannot be drawn: one of its trainings, on a part of the examples, "
            "ended before its first validation",
            fix="Find out why with a training on such a part: stepladder train --data.fraction "
            "0.25",
        )
    shutil.rmtree(target)
    return _Trained(num_train=int(summary["num_train"]), judged=judged)


def _part(recipe: Recipe, share: float, seed: int) -> Recipe:
    """Return the recipe for a part of the data, with as many steps and validations as before."""
    times = round(1 / share)
    schedule, stopping = recipe.schedule, recipe.stopping
    horizon = schedule.horizon_epochs
    return replace(
        recipe,
        seed=seed,
        data=replace(recipe.data, fraction=recipe.data.fraction * share),
        schedule=replace(
            schedule,
            max_epochs=schedule.max_epochs * times,
            horizon_epochs=None if horizon is None else horizon * times,
        ),
        stopping=replace(stopping, validate_every_epochs=stopping.validate_every_epochs * times),
    )

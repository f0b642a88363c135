"""Run the fast checks before the first step, within a twentieth of the time of the training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

from stepladder.checks.contract import Tier
from stepladder.checks.job import CheckedJob
from stepladder.checks.order import CHECKS
from stepladder.checks.report_file import find_kept
from stepladder.checks.run import FAST_FRAC, FAST_S, run_checks
from stepladder.config.recipe import Recipe
from stepladder.data.reading.examples import ArrivalSource
from stepladder.measuring.probe import untouched
from stepladder.records.findings import CheckReport

_LEAST_S = 0.1  # with less, there is nothing useful to check
_PATIENCES = 4  # early stopping ends a run after about this many


def check_before_training(
    job: CheckedJob, *, key: Callable[[], str], folder: Path
) -> CheckReport | str:
    """Run the fast checks on a job, or return the report in its folder.

    They take at most 10 s and at most a twentieth of the training time, which is predicted from one
    forward pass. If that is less than a tenth of a second, nothing is checked.

    Args:
        job: with its model, from `make_model`.
        key: returns the identity of job, code and machine.
        folder: of the run.

    Returns:
        The report; or why nothing was checked.
    """
    if isinstance(job.sources.train, ArrivalSource):
        return "an example of an IterableDataset that is read would be lost"
    started = time.perf_counter()
    try:
        limit_s = min(FAST_S, FAST_FRAC * predicted_s(job))
    except Exception:  # the first step would fail as well: the checks may report why
        limit_s = FAST_S
    if limit_s < _LEAST_S:
        return "the training is too short for them"
    identity = key()
    kept = find_kept(folder, key=identity, tier=Tier.FAST)
    if kept is not None:
        return kept
    left_s = limit_s - (time.perf_counter() - started)
    if left_s < _LEAST_S:  # a report without a check that ran is useless
        return "the training is short: a twentieth of its time was over before they could start"
    return run_checks(job, CHECKS, tier=Tier.FAST, key=identity, limit_s=left_s)


def predicted_s(job: CheckedJob) -> float:
    """Predict the minimum training time in seconds from the forward pass of one batch."""
    batch = job.train_batches(1)[0]
    assert job.given is not None
    with untouched(job.given), torch.no_grad():
        job.loss(job.given, batch)  # the first one is slower
        started = time.perf_counter()
        job.loss(job.given, batch)
        if job.device.type == "cuda":
            torch.cuda.synchronize(job.device)
        step_s = time.perf_counter() - started
    num_train = max(1, round(len(job.sources.train) * job.recipe.data.fraction))
    steps_per_epoch = math.ceil(num_train / job.recipe.batch.global_batch_size)
    steps = expected_epochs(job.recipe) * steps_per_epoch
    return step_s * min(steps, job.recipe.schedule.max_steps or math.inf)


def expected_epochs(recipe: Recipe) -> float:
    """Estimate how many epochs pass examples through the whole model."""
    if recipe.features.cached:
        return 1.0
    stopping, longest = recipe.stopping, recipe.schedule.max_epochs
    return min(longest, _PATIENCES * stopping.patience) if stopping.early else longest

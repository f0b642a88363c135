"""Seconds of a step of a training that judges a trial, by a few steps as they will be taken."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from stepladder.config.recipe import Recipe
from stepladder.ladder.accuracy.folds import Parts
from stepladder.ladder.trainings.head_task import HeadTask
from stepladder.ladder.trainings.stacked import learn_stacked
from stepladder.ladder.trainings.trial_training import learn
from stepladder.measuring.blocks.workload import Workload
from stepladder.measuring.probe import untouched
from stepladder.records.profile import Provenance
from stepladder.task.contract import Task
from stepladder.training.setup.build import Sources

_NUM_TIMED: Final = 40
_NUM_STACKED: Final = 20
_NUM_BEFORE: Final = 2  # the first steps take longer
_BLOCK_S: Final = 0.1


def real_step_s(
    recipe: Recipe, task: Task, sources: Sources, *, device: torch.device, cache: Path
) -> float:
    """Time a block of real steps."""
    workload = Workload(recipe, task, sources, device=device, cache=cache)
    try:
        return workload.block(_BLOCK_S).step_s
    finally:
        workload.close()


def replayed_step_s(recipe: Recipe, head: HeadTask, parts: Parts, *, device: torch.device) -> float:
    """Time a short training of a head on features.

    Args:
        recipe: of the replay.
    """
    parts = _unjudged(parts)

    def seconds(num_steps: int) -> tuple[float, float]:
        started = time.perf_counter()
        outcome = learn(
            _of_steps(recipe, num_steps),
            head,
            parts,
            seed=0,
            device=device,
            provenance=Provenance.REPLAYED,
        )
        return time.perf_counter() - started, outcome.epochs

    seconds(_NUM_BEFORE)
    took_s, epochs = seconds(_NUM_TIMED)
    num_rows = len(parts.sources.train) * recipe.data.fraction
    return took_s / max(1.0, epochs * num_rows / recipe.batch.global_batch_size)


def stacked_step_s(
    recipe: Recipe, head: HeadTask, parts: Parts, *, num: int, device: torch.device
) -> float:
    """Time a step of so many heads at once, without what comes before the first.

    How much longer it takes than that of one depends on the head, the batch, the cores, and what
    else they do: twenty small heads may take twice as long, or thirty times.

    Args:
        recipe: of the replay, one that can be stacked.

    Raises:
        Exception: as `learn_stacked`.
    """
    heads, all_parts = [head] * num, [_unjudged(parts)] * num

    def seconds(num_steps: int) -> float:
        started = time.perf_counter()
        with untouched():
            learn_stacked(_of_steps(recipe, num_steps), heads, all_parts, device=device)
        return time.perf_counter() - started

    before_s = seconds(_NUM_BEFORE)
    took_s = seconds(_NUM_BEFORE + _NUM_STACKED) - before_s
    return max(0.0, took_s) / _NUM_STACKED


def _of_steps(recipe: Recipe, num_steps: int) -> Recipe:
    """Give the recipe of a training that ends after so many steps, and of epochs enough for it."""
    most = max(num_steps, recipe.schedule.max_epochs)
    schedule = replace(recipe.schedule, max_steps=num_steps, max_epochs=most)
    return replace(recipe, schedule=schedule, stopping=replace(recipe.stopping, early=False))


def _unjudged(parts: Parts) -> Parts:
    return replace(parts, sources=replace(parts.sources, val=None, test=None))

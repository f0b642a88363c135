"""The learning-rate range test: a short training with a rising learning rate."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from stepladder.config.choices import Where
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.diagnosis.runs.opened_run import OpenedRun
from stepladder.measuring.subject import Subject, open_subject
from stepladder.records.diagnosis import LrVerdict, RangeTest
from stepladder.stats.scatter import scatter
from stepladder.training.setup.build import make_stage_parts
from stepladder.training.stage import stages_of

NUM_STEPS = 120
MIN_STEPS = 40
SPAN = 1e4  # from lr / SPAN to lr * SPAN
BEGINS = 0.1  # share of the total fall at which the loss has begun to fall
BLOWN_UP = 3.0  # times the first loss: the test stops
SMOOTHING = 0.85
FALL = 5.0  # times its scatter that the smoothed loss must fall: a minimum of many is low by chance
INSIDE = 3.0  # the suggested rate is the highest usable one divided by this


def range_test(run: OpenedRun, *, budget_s: float, num_steps: int = NUM_STEPS) -> RangeTest:
    """Train from the run's initial weights with an exponentially rising learning rate.

    The run's own Task, data, batch size and optimizer are used; nothing of the run is changed. It
    ends when the loss has blown up or the time is up.

    Args:
        budget_s: time limit in seconds; with less time, fewer steps span the same range.

    Source: Smith 2017, "Cyclical Learning Rates for Training Neural Networks", 3.3,
    arXiv:1506.01186.
    """
    started = time.perf_counter()
    with _steps_of(run, deadline=started + budget_s) as subject:
        lr = subject.lr
        reader = subject.reader()
        with closing(reader):
            batches = reader.endless()
            try:
                left_s = max(0.0, started + budget_s - time.perf_counter())
                lrs, losses = _sweep(subject, batches, num_steps=num_steps, budget_s=left_s)
            finally:
                batches.close()
    found = read_range(lrs, losses)
    return RangeTest(
        lrs=tuple(lrs),
        losses=tuple(found.smooth),
        low=found.low,
        high=found.high,
        suggested=found.suggested,
        lr=lr,
        verdict=found.verdict(lr),
        took_s=time.perf_counter() - started,
    )


@dataclass(frozen=True, kw_only=True)
class LrRange:
    """The result of a sweep.

    Attributes:
        smooth: the losses, smoothed, (n,).
        low, high, suggested: None if the loss fell by no more than its noise.
    """

    smooth: list[float]
    low: float | None = None
    high: float | None = None
    suggested: float | None = None

    def verdict(self, lr: float) -> LrVerdict:
        """Compare a learning rate with the range."""
        if self.low is None or self.high is None:
            return LrVerdict.NOT_TOLD
        if lr > self.high:
            return LrVerdict.TOO_HIGH
        # the test has few steps per rate: a slightly lower one still learns in a full run
        return LrVerdict.TOO_LOW if lr < self.low / INSIDE else LrVerdict.IN_RANGE


def read_range(lrs: list[float], losses: list[float]) -> LrRange:
    """Find the usable range in the losses of a sweep.

    Args:
        lrs: increasing, (n,).
        losses: of the batch of each step, before the step, (n,).
    """
    smooth = _smooth(losses)
    if len(smooth) < MIN_STEPS // 2:
        return LrRange(smooth=smooth)
    lowest = int(np.argmin(smooth))
    start = float(np.median(losses[: max(3, len(losses) // 10)]))
    fall = start - smooth[lowest]
    noise = (scatter(losses) or 0.0) * math.sqrt((1 - SMOOTHING) / (1 + SMOOTHING))
    if fall <= FALL * noise or fall <= 0 or lowest < 3:
        return LrRange(smooth=smooth)
    above = [idx for idx in range(lowest) if smooth[idx] > start - BEGINS * fall]
    begins = above[-1] + 1 if above else 0
    low, high = lrs[begins], lrs[lowest]
    return LrRange(smooth=smooth, low=low, high=high, suggested=max(high / INSIDE, low))


@contextmanager
def _steps_of(run: OpenedRun, *, deadline: float) -> Iterator[Subject]:
    """Open the run's own steps; on features if the run was trained on features."""
    recipe = _plain(run.job.recipe)
    with open_subject(recipe, run.task, run.sources, device=run.device) as subject:
        if not recipe.features.cached:
            yield subject
            return
        task, sources = run.on_features(subject.model, deadline=deadline)
        parts = make_stage_parts(
            subject.recipe,
            stages_of(recipe.train, recipe.batch)[-1],
            task,
            subject.model,
            device=run.device,
            clock=subject.clock,
        )
        yield replace(subject, task=task, sources=sources, parts=parts)


def _sweep(
    subject: Subject, batches: Iterator[Batch], *, num_steps: int, budget_s: float
) -> tuple[list[float], list[float]]:
    """Run the steps; return the learning rates and the losses of the batches before each step."""
    deadline = time.perf_counter() + budget_s
    lr = subject.lr / SPAN
    for idx in range(2):  # the first one prefetches and allocates memory
        began = time.perf_counter()
        _step(subject, next(batches), idx=idx, lr=lr)
    step_s = time.perf_counter() - began
    num_steps = min(num_steps, math.floor((deadline - time.perf_counter()) / step_s))
    if num_steps < MIN_STEPS:
        return [], []
    lrs: list[float] = []
    losses: list[float] = []
    growth = (SPAN * SPAN) ** (1 / (num_steps - 1))
    for idx in range(num_steps):
        loss = _step(subject, next(batches), idx=idx + 2, lr=lr)
        if not math.isfinite(loss) or time.perf_counter() > deadline + budget_s:
            break
        lrs.append(lr)
        losses.append(loss)
        if idx >= MIN_STEPS and min(losses[-3:]) > BLOWN_UP * losses[0]:
            break
        lr *= growth
    return lrs, losses


def _step(subject: Subject, batch: Batch, *, idx: int, lr: float) -> float:
    """Run one step and return the mean loss of its batch before it."""
    moved = subject.task.augment(subject.to_device(batch), seed=subject.recipe.seed, epoch=0)
    subject.parts.step(moved, step=idx, lr=lr)
    return subject.parts.step.take_window().loss


def _smooth(losses: list[float]) -> list[float]:
    """Return the exponential moving average of the losses, with bias correction."""
    smooth, mean = [], 0.0
    for idx, loss in enumerate(losses, start=1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        smooth.append(mean / (1 - SMOOTHING**idx))
    return smooth


def _plain(recipe: Recipe) -> Recipe:
    """Remove what takes longer than a short test, and what limits a step.

    Clipping would hide a learning rate that is too high.
    """
    return replace(
        recipe,
        data=replace(recipe.data, where=Where.STREAM),
        optimizer=replace(recipe.optimizer, clip_norm=None),
        device=replace(recipe.device, compile=False),
    )

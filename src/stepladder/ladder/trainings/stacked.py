"""Many trainings of a head at once: their weights stacked, one step taken for all of them.

A step on a few features costs what calling torch costs, not what it computes: twenty heads in one
step take little longer than one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.config.choices import Precision, ScheduleKind, Where
from stepladder.config.recipe import Recipe, StoppingConfig
from stepladder.data.batch import Batch
from stepladder.ladder.accuracy.folds import Parts
from stepladder.ladder.trainings.head_task import MIN_WEIGHTS_OF_TWO_THREADS, HeadTask
from stepladder.ladder.trainings.stacked_run import StackedRun, stack, stacked_scorer, unstack
from stepladder.optim.optimizers import build_optimizer, set_lr, step_function
from stepladder.optim.table import spec_of
from stepladder.records.ladder import Outcome
from stepladder.training.setup.build import step_precision
from stepladder.training.stage import stages_of
from stepladder.training.step import autocast
from stepladder.training.stopping import Weights

MAX_STACKED_BYTES: Final = 1_000_000_000
CANNOT_STACK: Final = (RuntimeError, TypeError, ValueError, AttributeError)
"""What a task raises whose loss cannot be taken for many heads at once."""
_PRECISIONS: Final = (Precision.FP32, Precision.BF16)


def why_not_stacked(recipe: Recipe) -> str | None:
    """Say what of a recipe cannot be done for many heads in one step, or None."""
    reasons = {
        "the optimiser measures whole weights, and stacked they look like one": (
            not spec_of(recipe.optimizer.name).is_elementwise
        ),
        "the gradient of each head is clipped by its own norm": recipe.optimizer.clip_norm,
        "weight decay spares vectors, and stacked they look like matrices": (
            recipe.optimizer.weight_decay
        ),
        "the learning rate falls over each training's own steps": (
            recipe.schedule.kind is not ScheduleKind.CONSTANT
        ),
        "validations count in steps": recipe.stopping.validate_every_steps,
        "random views change with the epoch": recipe.features.cached_views,
        "fp16 scales each loss by itself": recipe.device.precision not in _PRECISIONS,
        "features are those of a sample": recipe.data.fraction < 1,
        "batches are accumulated": recipe.batch.micro_batch_size,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def differ_in_their_end(recipe: Recipe, other: Recipe) -> bool:
    """Say whether one training tells what both recipes learn: they stop, and no more, otherwise."""
    stopping = replace(
        other.stopping,
        early=recipe.stopping.early,
        patience=recipe.stopping.patience,
        min_improvement_frac=recipe.stopping.min_improvement_frac,
        allow_noise=recipe.stopping.allow_noise,
        monitor=recipe.stopping.monitor,
        restore_best=recipe.stopping.restore_best,
    )
    return recipe != other and recipe == replace(other, stopping=stopping)


def learn_stacked(
    recipe: Recipe,
    tasks: Sequence[HeadTask],
    parts: Sequence[Parts],
    *,
    device: torch.device,
    also: Sequence[StoppingConfig] = (),
) -> list[tuple[Outcome, ...]]:
    """Train heads to their ends by one recipe, as `learn` trains each, to rounding.

    Dropout draws other numbers than in a training by itself.

    Args:
        recipe: for which `why_not_stacked` gives None.
        tasks: one a head, with its seed.
        parts: features that each learns from and is judged on.
        also: other ways to end the same training (see `differ_in_their_end`).

    Returns:
        Of each head the outcome by the recipe, and those of the other ways in their order.

    Raises:
        Exception: one of CANNOT_STACK, if the task's loss cannot be taken for many heads at once.
    """
    recipe = replace(recipe, data=replace(recipe.data, where=Where.STREAM))
    ways = (recipe.stopping, *also)
    runs = [
        StackedRun.begin(replace(recipe, seed=task.seed), task, one, device, ways)
        for task, one in zip(tasks, parts, strict=True)
    ]
    threads = torch.get_num_threads()
    try:
        learning = _Stack(recipe, runs, device)
        if learning.num_weights < MIN_WEIGHTS_OF_TWO_THREADS:
            torch.set_num_threads(1)
        learning.train()
        return [run.outcomes() for run in runs]
    finally:
        torch.set_num_threads(threads)
        for run in runs:
            run.close()


class _Stack:
    """The weights of all heads that still learn, as one tensor for each weight of a head.

    Args:
        runs: the trainings; each has as many steps behind it as any other that still learns.
    """

    def __init__(self, recipe: Recipe, runs: Sequence[StackedRun], device: torch.device) -> None:
        self._recipe = recipe
        self._device = device
        self._active = list(runs)
        heads = [dict(run.head.named_parameters()) for run in runs]
        self._params = {
            name: stack([head[name] for head in heads]).requires_grad_()
            for name, weight in heads[0].items()
            if weight.requires_grad
        }
        names = frozenset(self._params)
        self._score = stacked_scorer(copy.deepcopy(runs[0].head).train(), names)
        self._task = runs[0].task
        self._precision = step_precision(recipe, self._task, runs[0].head, device)
        self._open_optimizer()
        self._gather()

    @property
    def num_weights(self) -> int:
        """Weights that learn, of all heads."""
        return sum(weight.numel() for weight in self._params.values())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Give each stacked weight with its name, as an optimiser is built over them."""
        yield from self._params.items()  # type: ignore[misc]

    def train(self) -> None:
        """Train until none is left."""
        step = 0
        while self._active:
            num_steps = min(run.steps_left for run in self._active)
            rows = np.stack([run.take(num_steps) for run in self._active], axis=1)
            are_finite = self._take_steps(torch.from_numpy(rows).to(self._device), first=step)
            step += num_steps
            for idx, (run, is_finite) in enumerate(zip(self._active, are_finite, strict=True)):
                run.is_finite &= is_finite
                if not run.steps_left:
                    run.decide(lambda idx=idx: self._weights_of(idx))  # type: ignore[misc]
            self._drop_ended()

    def _take_steps(self, rows: Tensor, *, first: int) -> list[bool]:
        """Take steps; rows is (steps, heads, batch).

        Returns:
            Of each head, whether its losses and weights are finite.
        """
        num_steps, num_heads, size = rows.shape
        course = self._active[0].ways[0]  # a constant schedule is that of any
        sums = torch.zeros(num_heads, device=self._device)
        is_there = (rows >= 0).float()
        shares = is_there / is_there.sum(dim=2, keepdim=True)  # mean over what is there
        starts = torch.arange(num_heads, device=self._device) * self._num_rows
        flat_rows = (rows.clamp_min(0) + starts.unsqueeze(1)).flatten(1)  # (steps, heads * batch)
        ids = torch.arange(num_heads * size)
        for idx in range(num_steps):
            at = flat_rows[idx]
            batch = Batch(self._inputs.index_select(0, at), self._targets.index_select(0, at), ids)
            losses = self._losses(batch, shares[idx])
            losses.sum().backward()  # type: ignore[no-untyped-call]
            set_lr(self._optimizer, course.lr_at(first + idx))
            self._take_step()
            for weight in self._params.values():
                weight.grad = None
            sums += losses.detach()
        are_finite = torch.isfinite(sums)
        for weight in self._params.values():
            are_finite &= torch.isfinite(weight.detach()).reshape(len(weight), -1).all(dim=1)
        return [bool(is_finite) for is_finite in are_finite]

    def _losses(self, batch: Batch, shares: Tensor) -> Tensor:
        """Give the mean loss of each head, (heads,).

        The task sees the examples of all heads as one batch: its losses are one an example.

        Args:
            shares: of each example in the mean of its head, (heads, n).
        """

        def model(flat: Tensor) -> Tensor:
            each = flat.reshape(*shares.shape, *flat.shape[1:])
            return self._score(self._params, each).flatten(0, 1)

        with autocast(self._device, self._precision):
            result = self._task.loss(model, batch)  # type: ignore[arg-type]
        losses = result[0] if isinstance(result, tuple) else result
        each: Tensor = losses.float().reshape(shares.shape) * shares
        return each.sum(dim=1)

    def _weights_of(self, idx: int) -> Weights:
        return {name: unstack(weight, idx) for name, weight in self._params.items()}

    def _drop_ended(self) -> None:
        keep = [idx for idx, run in enumerate(self._active) if not run.is_over]
        if len(keep) == len(self._active):
            return
        self._active = [self._active[idx] for idx in keep]
        if not keep:
            return
        old = {name: self._optimizer.state[weight] for name, weight in self._params.items()}
        at = torch.tensor(keep, device=self._device)
        size = {name: weight.shape for name, weight in self._params.items()}
        self._params = {
            name: weight.detach()[at].requires_grad_() for name, weight in self._params.items()
        }
        self._open_optimizer()
        for name, weight in self._params.items():
            self._optimizer.state[weight] = {
                key: value[at] if _is_like(value, size[name]) else value
                for key, value in old[name].items()
            }
        self._gather()

    def _open_optimizer(self) -> None:
        lr = stages_of(self._recipe)[-1].lr
        optimizer = build_optimizer(self._recipe.optimizer, self, lr=lr)
        self._optimizer = optimizer
        self._take_step = step_function(optimizer)

    def _gather(self) -> None:
        """Lay the features of those that learn one after the other, (heads * rows, ...)."""
        num_rows = max(len(run.inputs) for run in self._active)
        self._num_rows = num_rows
        self._inputs = torch.cat([_padded(run.inputs, num_rows) for run in self._active])
        self._targets = torch.cat([_padded(run.targets, num_rows) for run in self._active])


def _padded(values: Tensor, num_rows: int) -> Tensor:
    missing = num_rows - len(values)
    return (
        values
        if not missing
        else torch.cat([values, values[:1].expand(missing, *values.shape[1:])])
    )


def _is_like(value: object, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape

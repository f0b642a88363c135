"""Train many heads at once: their weights are stacked, and each step updates all of them.

The time of a step on a few features is mostly the overhead of calling torch: twenty heads in one
step take little longer than one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from stepladder.config.choices import GradientCompression, LrRule, Precision, ScheduleKind, Where
from stepladder.config.recipe import Recipe, StoppingConfig
from stepladder.data.batch import Batch
from stepladder.data.order.order import Order
from stepladder.data.reading.reader import Reader, Source
from stepladder.ladder.accuracy.folds import Parts, learnt_sample
from stepladder.ladder.trainings.trial_training import DIVERGED, judged_by
from stepladder.optim.optimizers import build_optimizer, set_lr, step_function
from stepladder.optim.table import spec_of
from stepladder.records.ladder import Outcome
from stepladder.records.profile import Provenance
from stepladder.training.course import Course
from stepladder.training.evaluate import Evaluation, evaluate
from stepladder.training.features.head_task import MIN_WEIGHTS_OF_TWO_THREADS, HeadTask
from stepladder.training.setup.build import make_held_out_reader, make_train_reader, step_precision
from stepladder.training.stage import stages_of
from stepladder.training.step import autocast
from stepladder.training.stopping import ValidationRule, Weights

MAX_STACKED_BYTES: Final = 1_000_000_000
CANNOT_STACK: Final = (RuntimeError, TypeError, ValueError, AttributeError)
"""What a task raises if its loss does not support many heads at once."""
_PRECISIONS: Final = (Precision.FP32, Precision.BF16)


_MAX_ROWS_KEPT: Final = 2048  # of an epoch; for a longer one, shuffling takes less than training
_MAX_EPOCHS_KEPT: Final = 4096  # 64 MB at most


Scorer = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""Maps stacked weights by name and inputs (heads, n, ...) to scores (heads, n, ...)."""

_CONTIGUOUS: Final = torch.contiguous_format
_Layer = Callable[[Mapping[str, Tensor], Tensor], Tensor]
_POINTWISE: Final = (
    nn.Identity,
    nn.Dropout,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.SiLU,
    nn.GELU,
    nn.Hardswish,
    nn.Tanh,
    nn.Sigmoid,
)


def stacked_scorer(head: nn.Module, names: frozenset[str]) -> Scorer:
    """Return the forward pass of stacked heads like this one.

    A sequence of linear layers and pointwise functions is called directly on all heads; any other
    head by torch's vmap, which doubles the time of a small step.

    Args:
        head: in the mode, training or evaluation, to compute scores in.
        names: weights that are stacked; the others are this head's own.
    """
    layers = list(_layers(head, names, ""))
    if None in layers:
        return _by_vmap(head)

    def score(weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        for layer in layers:
            assert layer is not None
            inputs = layer(weights, inputs)
        return inputs

    return score


def stack(weights: Sequence[Tensor]) -> Tensor:
    """Stack a weight of each head."""
    stacked = torch.stack([weight.detach() for weight in weights])
    return stacked.mT.contiguous() if stacked.dim() == 3 else stacked


def unstack(stacked: Tensor, idx: int) -> Tensor:
    """Return a copy of the weight of one head."""
    weight = stacked.detach()[idx]
    return (weight.mT if stacked.dim() == 3 else weight).clone(memory_format=_CONTIGUOUS)


def _layers(
    module: nn.Module | None, names: frozenset[str], prefix: str
) -> Iterator[_Layer | None]:
    """Yield the layers of a head in order; None for one that is not supported."""
    if module is None or module._forward_hooks or module._forward_pre_hooks:
        yield None
    elif type(module) is nn.Sequential:
        for name, child in module._modules.items():  # a repeated layer is repeated
            yield from _layers(child, names, f"{prefix}{name}.")
    elif type(module) is nn.Linear:
        yield _linear(module, names, prefix)
    elif type(module) in _POINTWISE:
        yield lambda _, inputs: module(inputs)
    else:
        yield None


def _linear(module: nn.Linear, names: frozenset[str], prefix: str) -> _Layer | None:
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    if weight not in names or (module.bias is not None and bias not in names):
        return None

    def call(weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        matrix = weights[weight]  # (heads, in, out)
        rows = inputs.flatten(1, -2)  # (heads, n, in)
        if module.bias is None:
            scores = torch.bmm(rows, matrix)
        else:
            scores = torch.baddbmm(weights[bias].unsqueeze(1), rows, matrix)
        return scores.reshape(*inputs.shape[:-1], -1)

    return call


def _by_vmap(head: nn.Module) -> Scorer:
    def score_one(weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        scores: Tensor = functional_call(head, dict(weights), (inputs,))
        return scores

    def score(weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        as_in_head = {name: w.mT if w.dim() == 3 else w for name, w in weights.items()}
        scores: Tensor = vmap(score_one, randomness="different")(as_in_head, inputs)
        return scores

    return score


@dataclass(kw_only=True)
class Way(Course):
    """One way to stop a training: its decisions, and where it ended.

    Attributes:
        ended: why it ended; None: it is still training.
        weights: the final weights; None if it diverged.
    """

    ended: str | None = None
    weights: Weights | None = None


def _held_out_reader(recipe: Recipe, source: Source | None) -> Reader | None:
    return make_held_out_reader(source, recipe.batch, recipe.loader, recipe.data.where)


@dataclass(kw_only=True)
class StackedRun:
    """One of the trainings.

    Attributes:
        inputs, targets: all its training features, (n, ...), and their targets.
        ways: ways to stop; those that have not ended are at the same step.
        is_finite: whether all losses and weights were finite so far.
    """

    recipe: Recipe
    task: HeadTask
    head: nn.Module
    parts: Parts
    device: torch.device
    reader: Reader
    val_reader: Reader | None
    judge_reader: Reader | None
    inputs: Tensor
    targets: Tensor
    ways: tuple[Way, ...]
    is_finite: bool = True
    _is_epoch_end: bool = False
    _rows: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 0), np.int64))

    @classmethod
    def begin(
        cls,
        recipe: Recipe,
        task: HeadTask,
        parts: Parts,
        device: torch.device,
        ways: Sequence[StoppingConfig],
    ) -> StackedRun:
        """Open the readers of a training, and its first epoch."""
        sources, stage = parts.sources, stages_of(recipe.train, recipe.batch)[-1]
        all_rows = sources.train.read(np.arange(len(sources.train)))
        reader = make_train_reader(recipe, sources.train)
        val_reader = _held_out_reader(recipe, sources.val)
        run = cls(
            recipe=recipe,
            task=task,
            head=task.build_model(recipe).to(device),
            parts=parts,
            device=device,
            reader=reader,
            val_reader=val_reader,
            judge_reader=_held_out_reader(recipe, sources.test),
            inputs=all_rows.inputs.to(device),
            targets=all_rows.targets.to(device),
            ways=tuple(
                Way(
                    recipe=replace(recipe, stopping=way),
                    stage=stage,
                    train_reader=reader,
                    val_reader=val_reader,
                    rule=ValidationRule(way),
                )
                for way in ways
            ),
        )
        run._open_epoch()
        return run

    def close(self) -> None:
        """Close the readers."""
        for reader in (self.reader, self.val_reader, self.judge_reader):
            if reader is not None:
                reader.close()

    @property
    def going(self) -> list[Way]:
        """The ways to stop that have not ended."""
        return [way for way in self.ways if way.ended is None]

    @property
    def steps_left(self) -> int:
        """Steps until the next decision: the end of the epoch, or the last step of training."""
        left, limit = len(self._rows), self.recipe.schedule.max_steps
        return left if limit is None else min(left, limit - self.going[0].position.stage_step)

    def take(self, num_steps: int) -> NDArray[np.int64]:
        """Return the rows of the next steps, (num_steps, batch); -1 where a batch is shorter."""
        rows, self._rows = self._rows[:num_steps], self._rows[num_steps:]
        num_examples = int((rows >= 0).sum())
        for way in self.going:
            self._is_epoch_end = way.count(num_examples, num_steps=num_steps)
        return rows

    @property
    def is_over(self) -> bool:
        """Whether all ways have ended."""
        return not self.going

    def decide(self, weights: Callable[[], Weights]) -> None:
        """Validate if that is due, and keep the weights if training ends.

        Args:
            weights: returns a copy of the current weights.
        """
        if self.is_finite:
            self._validate(weights)
        for way in self.going:
            way.ended = way.reason_to_stop() if self.is_finite else DIVERGED
            if way.ended is not None and self.is_finite:
                chosen = way.rule.chosen
                way.weights = weights() if chosen is None else chosen.weights
        if self._is_epoch_end and not self.is_over:
            self._open_epoch()

    def outcomes(self) -> tuple[Outcome, ...]:
        """Evaluate the final weights of each way."""
        return tuple(self._outcome(way) for way in self.ways)

    def _outcome(self, way: Way) -> Outcome:
        outcome = Outcome(
            seed=self.recipe.seed,
            fold=self.parts.fold,
            epochs=way.position.stage_step / self.reader.steps_per_epoch,
            num_validations=way.rule.num_validations,
            provenance=Provenance.REPLAYED,
            why_not=DIVERGED if way.ended == DIVERGED else None,
        )
        if self.judge_reader is None or way.weights is None:
            return outcome
        held_out = self._evaluate(self.judge_reader, way.weights)
        reader = _held_out_reader(self.recipe, learnt_sample(self.parts))
        assert reader is not None
        with closing(reader):
            learnt = self._evaluate(reader, way.weights)
        return judged_by(outcome, held_out, learnt, self.parts)

    def _open_epoch(self) -> None:
        reader, size = self.reader, self.reader.global_batch_size
        num = reader.num_examples
        is_kept = num <= _MAX_ROWS_KEPT
        epoch = self.going[0].position.epoch
        rows = (_known_rows if is_kept else _draw_rows)(reader.order, epoch, num)
        padded = np.full(reader.steps_per_epoch * size, -1, dtype=np.int64)
        padded[: len(rows)] = rows
        self._rows = padded.reshape(-1, size)

    def _validate(self, weights: Callable[[], Weights]) -> None:
        """Evaluate once for all ways with a due validation, unless it decides nothing."""
        due = [way for way in self.going if way.is_validation_due(self._is_epoch_end)]
        if self.val_reader is None or not any(way.rule.decides for way in due):
            for way in due:
                way.rule.pass_over()
            return
        now = weights()
        result = self._evaluate(self.val_reader, now)
        for way in due:
            at = way.position
            way.rule.judge(result, step=at.step, epoch=at.epoch, weights=lambda: now)

    def _evaluate(self, reader: Reader, weights: Weights) -> Evaluation:
        self.head.load_state_dict(weights, strict=False)
        precision = self.recipe.device.precision
        return evaluate(self.task, self.head, reader, device=self.device, precision=precision)


def _draw_rows(order: Order, epoch: int, num_examples: int) -> NDArray[np.int64]:
    """Return the rows of an epoch."""
    rows: NDArray[np.int64] = order.samples(epoch, 0, num_examples)
    return rows


_known_rows = lru_cache(maxsize=_MAX_EPOCHS_KEPT)(_draw_rows)
"""Cached, as trainings of other recipes with the same seed and fold ask again. Read-only."""


def why_not_stacked(recipe: Recipe) -> str | None:
    """Return why a recipe cannot train many heads in one step, or None."""
    reasons = {
        "the optimizer uses whole weights, which stacking would mix": (
            not spec_of(recipe.optimizer.name).is_elementwise
        ),
        "gradient clipping uses the norm of each head": recipe.optimizer.clip_norm,
        "weight decay excludes vectors, which stacking turns into matrices": (
            recipe.optimizer.weight_decay
        ),
        "the learning rate schedule depends on each training's own steps": (
            recipe.schedule.kind is not ScheduleKind.CONSTANT
        ),
        "validations are scheduled by steps": recipe.stopping.validate_every_steps,
        "random views change with the epoch": recipe.features.cached_views,
        "fp16 scales each loss separately": recipe.device.precision not in _PRECISIONS,
        "the features are those of a sample": recipe.data.fraction < 1,
        "gradients are accumulated": recipe.batch.micro_batch_size,
        "workers train": recipe.asynchronous.is_on,
        "AdaScale compares the gradients of each head": (recipe.batch.lr_rule is LrRule.ADASCALE),
        "gradients are rounded before each step": (
            recipe.device.gradient_compression is not GradientCompression.NONE
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def differ_in_their_end(recipe: Recipe, other: Recipe) -> bool:
    """Return True if two recipes differ only in how they stop, so that one training covers both."""
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
    """Train heads in full with one recipe, with the same result as `learn` up to rounding.

    Dropout draws other numbers than in a separate training.

    Args:
        recipe: one for which `why_not_stacked` returns None.
        tasks: one per head, with its seed.
        parts: features that each head is trained and evaluated on.
        also: other ways to stop the same training (see `differ_in_their_end`).

    Returns:
        For each head, the outcome of the recipe, then those of the other ways in order.

    Raises:
        Exception: one of CANNOT_STACK, if the task's loss does not support many heads at once.
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
    """The weights of all heads that are still training, as one tensor per weight of a head.

    Args:
        runs: the trainings; those that have not ended are at the same step.
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
        """Number of trained weights, of all heads."""
        return sum(weight.numel() for weight in self._params.values())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield each stacked weight with its name, for the optimizer."""
        yield from self._params.items()  # type: ignore[misc]

    def train(self) -> None:
        """Train until all trainings have ended."""
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
            For each head, whether its losses and weights are finite.
        """
        num_steps, num_heads, size = rows.shape
        course = self._active[0].ways[0]  # a constant schedule is the same for all
        sums = torch.zeros(num_heads, device=self._device)
        is_there = (rows >= 0).float()
        shares = is_there / is_there.sum(dim=2, keepdim=True)  # mean over the examples in the batch
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
        """Return the mean loss of each head, (heads,).

        The task sees the examples of all heads as one batch: it returns one loss per example.

        Args:
            shares: weight of each example in the mean of its head, (heads, n).
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
        lr = stages_of(self._recipe.train, self._recipe.batch)[-1].lr
        config = self._recipe.optimizer
        if spec_of(config.name).can_fuse(self._device.type):  # equal up to rounding
            config = replace(config, fused=True)
        optimizer = build_optimizer(config, self, lr=lr)
        self._optimizer = optimizer
        self._take_step = step_function(optimizer)

    def _gather(self) -> None:
        """Concatenate the features of all active trainings, (heads * rows, ...)."""
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

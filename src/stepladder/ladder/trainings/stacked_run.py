"""One of many trainings that take their steps together: what it reads, and where it ends."""

from __future__ import annotations

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

from stepladder.config.recipe import Recipe, StoppingConfig
from stepladder.data.order.order import Order
from stepladder.data.reading.reader import Reader
from stepladder.ladder.accuracy.folds import Parts, learnt_sample
from stepladder.ladder.trainings.head_task import HeadTask
from stepladder.ladder.trainings.trial_training import DIVERGED, judged_by
from stepladder.records.ladder import Outcome
from stepladder.records.profile import Provenance
from stepladder.training.course import Course
from stepladder.training.evaluate import Evaluation, evaluate
from stepladder.training.setup.build import make_held_out_reader, make_train_reader
from stepladder.training.stage import stages_of
from stepladder.training.stopping import ValidationRule, Weights

_MAX_ROWS_KEPT: Final = 2048  # of an epoch; a longer one takes longer to learn than to shuffle
_MAX_EPOCHS_KEPT: Final = 4096  # 64 MB at most


Scorer = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""From stacked weights by name and (heads, n, ...) inputs to (heads, n, ...) scores."""

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
    """Give the forward pass of heads like this one.

    Linear layers and functions of single numbers, one after the other, are called on all heads as
    they are; any other head by torch's vmap, which costs a small step twice its time.

    Args:
        head: in the mode, training or evaluation, that scores are wanted in.
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
    """Give a copy of the weight of one head."""
    weight = stacked.detach()[idx]
    return (weight.mT if stacked.dim() == 3 else weight).clone(memory_format=_CONTIGUOUS)


def _layers(
    module: nn.Module | None, names: frozenset[str], prefix: str
) -> Iterator[_Layer | None]:
    """Give what a head does, in order; None where that is not known."""
    if module is None or module._forward_hooks or module._forward_pre_hooks:
        yield None
    elif type(module) is nn.Sequential:
        for name, child in module._modules.items():  # one that comes twice, twice
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
    """One way to stop a training: all that is decided by it, and where it ended.

    Attributes:
        ended: why it ended; None: it goes on.
        weights: those that it ended with; None where it diverged.
    """

    ended: str | None = None
    weights: Weights | None = None


@dataclass(kw_only=True)
class StackedRun:
    """One of the trainings.

    Attributes:
        inputs, targets: all its training features, (n, ...), and their targets.
        ways: to stop; those that go on stand at the same step.
        is_finite: whether no loss or weight was anything else so far.
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
        """Open what a training reads, and its first epoch."""
        sources, stage = parts.sources, stages_of(recipe)[-1]
        all_rows = sources.train.read(np.arange(len(sources.train)))
        reader = make_train_reader(recipe, sources.train)
        val_reader = make_held_out_reader(recipe, sources.val)
        run = cls(
            recipe=recipe,
            task=task,
            head=task.build_model(recipe).to(device),
            parts=parts,
            device=device,
            reader=reader,
            val_reader=val_reader,
            judge_reader=make_held_out_reader(recipe, sources.test),
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
        """End the readers."""
        for reader in (self.reader, self.val_reader, self.judge_reader):
            if reader is not None:
                reader.close()

    @property
    def going(self) -> list[Way]:
        """The ways by which it has not ended."""
        return [way for way in self.ways if way.ended is None]

    @property
    def steps_left(self) -> int:
        """Steps until something may be decided: the epoch ends, or training by its steps."""
        left, limit = len(self._rows), self.recipe.schedule.max_steps
        return left if limit is None else min(left, limit - self.going[0].position.stage_step)

    def take(self, num_steps: int) -> NDArray[np.int64]:
        """Give the rows of the next steps, (num_steps, batch); -1 where a batch is shorter."""
        rows, self._rows = self._rows[:num_steps], self._rows[num_steps:]
        num_examples = int((rows >= 0).sum())
        for way in self.going:
            self._is_epoch_end = way.count(num_examples, num_steps=num_steps)
        return rows

    @property
    def is_over(self) -> bool:
        """Whether it has ended in every way."""
        return not self.going

    def decide(self, weights: Callable[[], Weights]) -> None:
        """Validate where that is due, and keep the weights where training ends.

        Args:
            weights: copies those of now.
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
        """Judge the weights that it ended with, in each way."""
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
        reader = make_held_out_reader(self.recipe, learnt_sample(self.parts))
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
        """Evaluate once for all ways by which a validation is due; not where it decides nothing."""
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
    """Give the rows of an epoch."""
    rows: NDArray[np.int64] = order.samples(epoch, 0, num_examples)
    return rows


_known_rows = lru_cache(maxsize=_MAX_EPOCHS_KEPT)(_draw_rows)
"""The same, kept: other recipes' trainings of the same seed and fold ask again. To read only."""

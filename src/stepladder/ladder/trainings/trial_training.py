"""One training to its end as `train` does it, but without a run folder; judged on held-out rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stepladder.config.choices import Where
from stepladder.config.recipe import Recipe
from stepladder.data.reading.reader import Reader, resolve_where
from stepladder.ladder.accuracy.folds import Parts, learnt_sample
from stepladder.ladder.trainings.head_task import MIN_WEIGHTS_OF_TWO_THREADS, HeadTask
from stepladder.measuring.probe import untouched
from stepladder.optim.schedule import lr_at
from stepladder.records.ladder import Outcome
from stepladder.records.profile import Provenance
from stepladder.task.contract import Task
from stepladder.training.best import BestWeights
from stepladder.training.evaluate import Evaluation, evaluate
from stepladder.training.position import Position
from stepladder.training.setup.build import (
    MEMORY_FORMATS,
    StageParts,
    make_clock,
    make_held_out_reader,
    make_model,
    make_stage_parts,
    make_train_reader,
    use_threads,
)
from stepladder.training.stage import Stage, frozen_names, stages_of
from stepladder.training.stopping import EarlyStopping

DIVERGED: Final = "diverged"

OnValidation = Callable[[float, Evaluation], bool]
"""Told the epochs so far and a validation; says whether that is enough."""
Weights = Mapping[str, Tensor]
OnEnd = Callable[[Weights], None]
"""Given a copy of the weights that training ends with, on the host."""


def learn(
    recipe: Recipe,
    task: Task,
    parts: Parts,
    *,
    seed: int,
    device: torch.device,
    provenance: Provenance,
    on_validation: OnValidation | None = None,
    on_end: OnEnd | None = None,
) -> Outcome:
    """Train to the end by the recipe, and judge the weights that it ends with.

    A wall-clock limit of the recipe (max_time_s) does not count. Random states and the number of
    threads are as before afterwards.

    Args:
        task: on what the sources hold: examples, or features.
        seed: takes the place of the recipe's.
        provenance: REPLAYED where the sources hold features.
        on_validation: told each validation; where it says that it is enough, training ends.
        on_end: given the weights, unless training diverged.

    Returns:
        The outcome; `why_not` says "diverged" where the loss was not finite.
    """
    with _open(recipe, task, parts, seed, device) as training:
        outcome = _run(training, parts, provenance, on_validation)
        if outcome.why_not is not None:
            return outcome
        _restore_best(training)
        if on_end is not None:
            weights = training.learned_weights()
            on_end({name: weight.to("cpu", copy=True) for name, weight in weights.items()})
        return _judged(training, outcome, parts)


def judge_weights(
    recipe: Recipe,
    task: Task,
    weights: Weights,
    outcome: Outcome,
    parts: Parts,
    *,
    device: torch.device,
) -> Outcome:
    """Judge the weights that a training ended with on other examples.

    Args:
        recipe, task: of the training.
        outcome: of the training.
        parts: whose test judges now.
    """
    with _open(recipe, task, parts, outcome.seed, device) as training:
        training.model.load_state_dict(weights, strict=False)
        return _judged(training, outcome, parts)


@contextmanager
def _open(
    recipe: Recipe, task: Task, parts: Parts, seed: int, device: torch.device
) -> Iterator[_Training]:
    """Open a training, and leave random states and the number of threads as they were."""
    threads = torch.get_num_threads()
    with untouched():
        use_threads(recipe)
        try:
            seeded = _resolved(replace(recipe, seed=seed), parts)
            training = _begin(seeded, copy.copy(task), parts, device)
            if isinstance(task, HeadTask) and training.num_weights < MIN_WEIGHTS_OF_TWO_THREADS:
                torch.set_num_threads(1)
            try:
                yield training
            finally:
                training.close()
        finally:
            torch.set_num_threads(threads)


@dataclass(kw_only=True)
class _Training:
    """What one training works with."""

    recipe: Recipe
    task: Task
    model: nn.Module
    device: torch.device
    stage: Stage
    stage_parts: StageParts
    reader: Reader
    val_reader: Reader | None
    judge_reader: Reader | None
    stopping: EarlyStopping
    best: BestWeights
    at: Position
    is_enough: bool = False

    @property
    def epochs(self) -> float:
        """Epochs so far, the open one as a part of one."""
        return self.at.stage_step / self.reader.steps_per_epoch

    @property
    def num_weights(self) -> int:
        """Weights that learn."""
        return sum(w.numel() for w in self.model.parameters() if w.requires_grad)

    def close(self) -> None:
        """End the readers."""
        for reader in (self.reader, self.val_reader, self.judge_reader):
            if reader is not None:
                reader.close()

    def evaluate(self, reader: Reader) -> Evaluation:
        """Measure the model."""
        return evaluate(
            self.task,
            self.model,
            reader,
            device=self.device,
            precision=self.recipe.device.precision,
            memory_format=MEMORY_FORMATS[self.recipe.device.memory_format],
        )

    def learned_weights(self) -> dict[str, Tensor]:
        """Give the tensors that can change, by name."""
        frozen = frozen_names(self.model, self.stage_parts.frozen)
        state = self.model.state_dict()
        return {name: tensor for name, tensor in state.items() if name not in frozen}


def _resolved(recipe: Recipe, parts: Parts) -> Recipe:
    data = recipe.data
    where = resolve_where(parts.sources.train, data.where, fraction=data.fraction)
    return replace(recipe, data=replace(data, where=where))


def _begin(recipe: Recipe, task: Task, parts: Parts, device: torch.device) -> _Training:
    sources, stage = parts.sources, stages_of(recipe)[-1]
    model = make_model(recipe, task, device)
    stage_parts = make_stage_parts(
        recipe, stage, task, model, device=device, clock=make_clock(device)
    )
    streaming = replace(recipe, data=replace(recipe.data, where=Where.STREAM))
    return _Training(
        recipe=recipe,
        task=task,
        model=model,
        device=device,
        stage=stage,
        stage_parts=stage_parts,
        reader=make_train_reader(recipe, sources.train),
        val_reader=make_held_out_reader(recipe, sources.val),
        judge_reader=make_held_out_reader(streaming, sources.test),
        stopping=EarlyStopping(recipe.stopping),
        best=BestWeights(1),
        at=Position(),
    )


def _run(
    training: _Training, parts: Parts, provenance: Provenance, on_validation: OnValidation | None
) -> Outcome:
    num_validations = 0
    is_finite = True
    while is_finite and not _is_over(training):
        num_validations += _epoch(training, on_validation)
        is_finite = training.stage_parts.update.read_first_bad() is None
    return Outcome(
        seed=training.recipe.seed,
        fold=parts.fold,
        epochs=training.epochs,
        num_validations=num_validations,
        provenance=provenance,
        why_not=None if is_finite else DIVERGED,
    )


def _judged(training: _Training, outcome: Outcome, parts: Parts) -> Outcome:
    """Add what the model gets right, of what is held out and of what it learnt from."""
    if training.judge_reader is None:
        return outcome
    streaming = replace(training.recipe, data=replace(training.recipe.data, where=Where.STREAM))
    reader = make_held_out_reader(streaming, learnt_sample(parts, training.reader.order))
    learnt = None
    if reader is not None:
        with closing(reader):
            learnt = training.evaluate(reader)
    return judged_by(outcome, training.evaluate(training.judge_reader), learnt, parts)


def judged_by(
    outcome: Outcome, held_out: Evaluation, learnt: Evaluation | None, parts: Parts
) -> Outcome:
    """Add to an outcome what its weights get right.

    Args:
        held_out: of what judges.
        learnt: of examples that it learnt from.
    """
    hits = _hits(held_out)
    train_hits = None if learnt is None else _hits(learnt)
    return replace(
        outcome,
        rows=tuple(parts.rows[held_out.rows].tolist()),
        losses=tuple(held_out.losses.tolist()),
        hits=None if hits is None else tuple(hits.tolist()),
        train_loss=None if learnt is None else float(learnt.losses.mean(dtype="float64")),
        train_accuracy=None if train_hits is None else float(train_hits.mean()),
    )


def _hits(result: Evaluation) -> NDArray[np.bool_] | None:
    if result.predicted is None or result.targets is None:
        return None
    return np.asarray(result.predicted == result.targets)


def _epoch(training: _Training, on_validation: OnValidation | None) -> int:
    """Take the steps of an epoch, or fewer if training ends within it.

    Returns:
        The validations that came due.
    """
    recipe, at, reader = training.recipe, training.at, training.reader
    step, task = training.stage_parts.step, training.task
    memory_format = MEMORY_FORMATS[recipe.device.memory_format]
    num_validations = 0
    batches = reader.epoch(at.epoch)
    try:
        for batch in batches:
            moved = batch.to(training.device, memory_format=memory_format)
            moved = task.augment(moved, seed=recipe.seed, epoch=at.epoch)
            step(moved, step=at.step, lr=_lr(training))
            at.take_step(batch.ids.numel())
            is_epoch_end = at.offset >= reader.num_examples
            if is_epoch_end:
                at.end_epoch()
            if _is_validation_due(training, is_epoch_end):
                num_validations += 1
                _validate(training, on_validation)
            if is_epoch_end or _is_over(training):
                break
    finally:
        batches.close()
    return num_validations


def _lr(training: _Training) -> float:
    return lr_at(
        training.at.stage_step,
        base=training.stage.lr,
        schedule=training.recipe.schedule,
        steps_per_epoch=training.reader.steps_per_epoch,
    )


def _is_over(training: _Training) -> bool:
    at, schedule = training.at, training.recipe.schedule
    is_last_step = schedule.max_steps is not None and at.stage_step >= schedule.max_steps
    if training.is_enough or training.stopping.is_exhausted:
        return True
    return at.stage_epoch >= schedule.max_epochs or is_last_step


def _is_validation_due(training: _Training, is_epoch_end: bool) -> bool:
    if training.val_reader is None:
        return False
    stopping = training.recipe.stopping
    if stopping.validate_every_steps is not None:
        return training.at.stage_step % stopping.validate_every_steps == 0
    return is_epoch_end and training.at.stage_epoch % stopping.validate_every_epochs == 0


def _validate(training: _Training, on_validation: OnValidation | None) -> None:
    assert training.val_reader is not None
    result = training.evaluate(training.val_reader)
    values = result.monitored(training.recipe.stopping.monitor)
    training.stopping.judge(values)
    value = float(values.mean(dtype="float64"))
    training.best.offer(
        value if math.isfinite(value) else math.inf,
        step=training.at.step,
        epoch=training.at.epoch,
        weights=training.learned_weights,
    )
    if on_validation is not None:
        training.is_enough = on_validation(training.epochs, result)


def _restore_best(training: _Training) -> None:
    """Put the best weights back, where the recipe wants them and there are any."""
    best = training.best.best
    if best is None or best.weights is None or not training.recipe.stopping.restore_best:
        return
    training.model.load_state_dict(best.weights, strict=False)

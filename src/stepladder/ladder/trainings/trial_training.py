"""One full training like `train`, but without a run folder, evaluated on held-out rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from stepladder.config.choices import Where
from stepladder.config.recipe import Recipe
from stepladder.data.reading.reader import Source, resolve_where
from stepladder.errors import DivergedError
from stepladder.ladder.accuracy.folds import Parts, learnt_sample
from stepladder.measuring.probe import untouched
from stepladder.records.ladder import Outcome
from stepladder.records.profile import Provenance
from stepladder.task.contract import Task
from stepladder.training.asynchronous.attach import Employer, rows_only, train_by_workers
from stepladder.training.evaluate import Evaluation
from stepladder.training.features.head_task import MIN_WEIGHTS_OF_TWO_THREADS, HeadTask
from stepladder.training.loop import fit
from stepladder.training.setup.announcement import num_learning
from stepladder.training.setup.build import (
    make_clock,
    make_held_out_reader,
    make_model,
    use_threads,
)
from stepladder.training.stage import stages_of
from stepladder.training.stopping import Judgement, Weights
from stepladder.training.training import Training

DIVERGED: Final = "diverged"

OnValidation = Callable[[float, Evaluation], bool]
"""Called with the epochs so far and a validation; returns True to stop training."""
OnEnd = Callable[[Weights], None]
"""Called with a copy of the final weights, on the host."""


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
    """Train in full with a recipe, and evaluate the final weights.

    The time limit of the recipe (max_time_s) is ignored. Random states and the number of threads
    are restored afterwards.

    Args:
        task: for the content of the sources: examples, or features.
        seed: replaces the recipe's seed.
        provenance: REPLAYED if the sources hold features.
        on_validation: called with each validation; training ends if it returns True.
        on_end: called with the final weights, unless training diverged.

    Returns:
        The outcome; `why_not` is "diverged" if the loss was not finite.
    """
    with _open(recipe, task, parts, seed, device) as training:
        training.look = on_validation
        why_not = None
        try:
            fit(training)
            training.check_finite()
        except DivergedError:
            why_not = DIVERGED
        outcome = Outcome(
            seed=seed,
            fold=parts.fold,
            epochs=training.epochs,
            num_validations=training.rule.num_validations,
            provenance=provenance,
            why_not=why_not,
        )
        if why_not is not None:
            return outcome
        training.restore_best()
        if on_end is not None:
            on_end(training.copy_weights())
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
    """Evaluate the final weights of a training on other examples.

    Args:
        recipe, task: of the training.
        outcome: of the training.
        parts: with the examples to evaluate on as test.
    """
    with _open(recipe, task, parts, outcome.seed, device) as training:
        training.load_weights(weights)
        return _judged(training, outcome, parts)


@dataclass(kw_only=True)
class _Learning(Training):
    """A training that a callback can end."""

    look: OnValidation | None = None
    is_enough: bool = False

    @property
    def epochs(self) -> float:
        """Epochs so far, including a fraction of the current one."""
        return self.position.stage_step / self.train_reader.steps_per_epoch

    def on_validation(self, result: Evaluation, judgement: Judgement) -> None:  # noqa: ARG002
        """Call `look`, which may end training."""
        if self.look is not None:
            self.is_enough = self.look(self.epochs, result)

    def reason_to_stop(self) -> str | None:
        """Return why training should end now, or None."""
        return "enough" if self.is_enough else super().reason_to_stop()


@contextmanager
def _open(
    recipe: Recipe, task: Task, parts: Parts, seed: int, device: torch.device
) -> Iterator[_Learning]:
    """Open a training; restore random states and the number of threads at the end."""
    threads = torch.get_num_threads()
    with untouched():
        use_threads(recipe)
        try:
            training = _begin(replace(recipe, seed=seed), copy.copy(task), parts, device)
            num_weights = num_learning(training.model)
            if isinstance(task, HeadTask) and num_weights < MIN_WEIGHTS_OF_TWO_THREADS:
                torch.set_num_threads(1)
            with closing(training):
                yield training
        finally:
            torch.set_num_threads(threads)


def _begin(recipe: Recipe, task: Task, parts: Parts, device: torch.device) -> _Learning:
    data = recipe.data
    where = resolve_where(parts.sources.train, data.where, fraction=data.fraction)
    workers = replace(recipe.asynchronous, simulate=True)  # one process, and always the same
    recipe = replace(recipe, data=replace(data, where=where), asynchronous=workers)
    training = _Learning.open(
        recipe,
        task,
        rows_only(parts.sources) if workers.is_on else parts.sources,
        model=make_model(recipe, task, device),
        device=device,
        clock=make_clock(device),
        stage=stages_of(recipe.train, recipe.batch)[-1],
    )
    if workers.is_on:
        train_by_workers(training, parts.sources, Employer(folder=Path()))
    return training


def _judged(training: _Learning, outcome: Outcome, parts: Parts) -> Outcome:
    """Add the results of the model on held-out examples and on training examples."""
    learnt = _evaluated(training, learnt_sample(parts, training.train_reader.order))
    held_out = _evaluated(training, parts.sources.test)
    return outcome if held_out is None else judged_by(outcome, held_out, learnt, parts)


def _evaluated(training: _Learning, source: Source | None) -> Evaluation | None:
    """Evaluate the model on examples in file order; None without examples."""
    recipe = training.recipe
    reader = make_held_out_reader(source, recipe.batch, recipe.loader, Where.STREAM)
    if reader is None:
        return None
    with closing(reader):
        return training.evaluate(reader)


def judged_by(
    outcome: Outcome, held_out: Evaluation, learnt: Evaluation | None, parts: Parts
) -> Outcome:
    """Add the results of evaluations to an outcome.

    Args:
        held_out: on held-out examples.
        learnt: on training examples.
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

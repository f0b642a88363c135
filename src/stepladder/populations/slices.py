"""Members that are trained one after the other, from checkpoint to checkpoint: any job fits."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from stepladder.config.recipe import Recipe
from stepladder.data.reading.reader import Source
from stepladder.errors import DivergedError
from stepladder.measuring.probe import untouched
from stepladder.populations.genes import Values
from stepladder.populations.members import IntervalCancelled
from stepladder.populations.stack import mean_score, schedule_step
from stepladder.records import to_json, write_json
from stepladder.records.from_json import read_record
from stepladder.records.population import Score
from stepladder.task.contract import Task
from stepladder.training.baseline import Against
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.checkpoint.training_state import (
    RunState,
    capture,
    restore,
    restore_position,
)
from stepladder.training.course import Position
from stepladder.training.evaluate import Evaluation
from stepladder.training.loop import fit
from stepladder.training.setup.build import (
    Sources,
    make_clock,
    make_held_out_reader,
    make_model,
    use_threads,
)
from stepladder.training.stage import stages_of
from stepladder.training.training import Training

SLICES: Final = "slices"
_ENOUGH: Final = "enough"
_OF_WEIGHTS: Final = frozenset({"params", "param_names"})
_LEAST_DECAY: Final = 1e-30
"""In place of 0, so that weights with and without decay are in groups of their own."""


@dataclass(kw_only=True)
class Slice(Training):
    """A part of a member's training, which ends after a number of examples.

    Attributes:
        until: examples of the member at its end. A batch is not divided: what it has beyond that,
            the next slice has less.
        is_cancelled: called after each step.
    """

    until: int
    is_cancelled: Callable[[], bool]

    def lr(self) -> float:
        """Return the learning rate of the next step, by the examples so far.

        So it does not depend on the batches of earlier slices, which may have had other sizes.
        """
        if self.is_adaptive:
            return super().lr()
        size, per_epoch = self.recipe.batch.global_batch_size, self.train_reader.steps_per_epoch
        return self.lr_at(schedule_step(self.position, batch=size, steps_per_epoch=per_epoch))

    def reason_to_stop(self) -> str | None:
        """Return why the slice ends, or None; early stopping is left to the population.

        Raises:
            IntervalCancelled: if the population is to end.
        """
        if self.is_cancelled():
            raise IntervalCancelled
        return _ENOUGH if self.position.num_examples_seen >= self.until else None


@dataclass(frozen=True, kw_only=True)
class Job:
    """What slices are made of.

    Attributes:
        task: copied for each slice.
        sources: train; val, which chooses; and test, which judges the winner.
        folder: of the checkpoints.
        seed: of the recipe; weights that are not trained are those of a model with it.
        is_cancelled: returns True if the population is to end.
    """

    task: Task
    sources: Sources
    device: torch.device
    folder: Path
    seed: int
    is_cancelled: Callable[[], bool] = lambda: False


def train_slice(job: Job, recipe: Recipe, *, begin: str | None, name: str, until: int) -> Score:
    """Train a member for an interval, save it, and return its score on the validation split.

    Args:
        recipe: of the member, with its seed and genes.
        begin: name of the checkpoint that it begins from; None: initial weights.
        name: of the checkpoint that is written; none is if training diverged.
        until: examples of the member at the end.
    """
    loaded = None if begin is None else _load(job.folder, begin)
    with untouched():
        use_threads(recipe)
        with closing(_open(job, recipe, loaded, until)) as training:
            try:
                fit(training)
                training.check_finite()
            except DivergedError:
                return Score(loss=float("nan"))
            tensors, values = capture(training, _state())
            Checkpoints(job.folder / name).save(_step(name), tensors, values, {})
            return _score(training, job.sources.val)


def score_of(job: Job, recipe: Recipe, name: str, source: Source) -> Score:
    """Return the score of a saved member on a split."""
    loaded = _load(job.folder, name)
    with untouched(), closing(_open(job, recipe, loaded, 0)) as training:
        return _score(training, source)


@dataclass(frozen=True, kw_only=True)
class Order:
    """A slice that is to be trained.

    Attributes:
        values: genes of the member; seed: of its initial weights and order.
        begin: name of the checkpoint that it begins from; None: initial weights.
        name: of the checkpoint that is written.
        until: examples of the member at its end.
    """

    values: Values
    seed: int
    begin: str | None
    name: str
    until: int


TrainAll = Callable[[Sequence[Order]], list[Score]]
"""Trains slices, in turn or at the same time, and returns their scores in order."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Which checkpoint each member has.

    Attributes:
        names: where the next slices begin.
        last: where the last slices ended; None: the member diverged.
        values: genes in the last slices.
        kept, kept_values: of the best member.
        interval: the next one.
        until: examples of each member so far.
    """

    names: tuple[str | None, ...]
    last: tuple[str | None, ...]
    values: tuple[tuple[float | int | str, ...], ...]
    kept: str | None
    kept_values: tuple[float | int | str, ...]
    interval: int
    until: int

    def needed(self) -> set[str]:
        """Return the names of all checkpoints."""
        return {name for name in (*self.names, *self.last, self.kept) if name is not None}


def weights_of(job: Job, name: str) -> Mapping[str, Tensor]:
    """Return the trained weights of a saved member."""
    return _load(job.folder, name).tensors["model"]


class SliceMembers:
    """A population whose members are checkpoints.

    Args:
        recipe_of: returns the recipe of a member from its genes.
        seeds: of the initial weights and the order of each member.
        train_all: trains the slices of an interval; None: in turn, in this process.
        close: ends what trains them.
    """

    def __init__(
        self,
        job: Job,
        recipe_of: Callable[[Values], Recipe],
        *,
        seeds: Sequence[int],
        train_all: TrainAll | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._job, self._recipe_of, self._seeds = job, recipe_of, tuple(seeds)
        self._train_all = train_all or self._in_turn
        self._close = close
        self._names: list[str | None] = [None] * len(seeds)
        self._last: list[str | None] = list(self._names)  # where the last interval ended
        self._scores: list[Score] = []
        self._kept: tuple[str, Values] | None = None
        self._values: Sequence[Values] = ()
        self._interval = self._until = 0

    def train(self, values: Sequence[Values], num_examples: int) -> None:
        """Train each member for a slice."""
        self._values = tuple(values)
        self._until += num_examples
        orders = [
            Order(
                values=one,
                seed=self._seeds[idx],
                begin=self._names[idx],
                name=f"{self._interval:06d}-{idx:03d}",
                until=self._until,
            )
            for idx, one in enumerate(values)
        ]
        for order in orders:
            shutil.rmtree(self._job.folder / order.name, ignore_errors=True)  # of a killed attempt
        self._scores = self._train_all(orders)
        self._last = [
            order.name if score.is_finite else None
            for order, score in zip(orders, self._scores, strict=True)
        ]
        self._names = list(self._last)
        self._interval += 1

    @property
    def is_head(self) -> bool:
        """Whether the kept weights have the names of the head alone: never."""
        return False

    def _in_turn(self, orders: Sequence[Order]) -> list[Score]:
        """Train slices one after the other."""
        return [train_order(self._job, self._recipe_of, order) for order in orders]

    def scores(self) -> list[Score]:
        """Return the scores at the end of the last slices."""
        return list(self._scores)

    def inherit(self, parents: Sequence[int]) -> None:
        """Begin the next slices at the checkpoints of the parents."""
        self._names = [self._last[parent] for parent in parents]

    def keep(self, member: int) -> None:
        """Keep the checkpoint of a member."""
        name = self._last[member]
        assert name is not None
        self._kept = name, self._values[member]

    def judge(self) -> tuple[Score, Score] | None:
        """Return the score of the kept member, and the mean of all, on test."""
        test = self._job.sources.test
        if test is None or self._kept is None:
            return None
        name, values = self._kept
        all_scores = [
            score_of(self._job, with_groups(self._recipe_of(one)), last, test)
            for last, one in zip(self._last, self._values, strict=True)
            if last is not None
        ]
        return score_of(self._job, with_groups(self._recipe_of(values)), name, test), mean_score(
            all_scores
        )

    def kept_weights(self) -> Mapping[str, Tensor]:
        """Return the trained weights of the kept member."""
        assert self._kept is not None
        return weights_of(self._job, self._kept[0])

    def save(self, folder: Path, name: str) -> None:
        """Write which checkpoint each member has, and remove those that nothing needs."""
        state = Saved(
            names=tuple(self._names),
            last=tuple(self._last),
            values=tuple(self._values),
            kept=None if self._kept is None else self._kept[0],
            kept_values=() if self._kept is None else self._kept[1],
            interval=self._interval,
            until=self._until,
        )
        before = [
            read_record(Saved, path) for path in folder.glob("members-*") if path.name != name
        ]
        write_json(folder / name, to_json(state))
        needed = state.needed().union(*(one.needed() for one in before))
        for path in self._job.folder.glob("[0-9]*-[0-9]*"):
            if path.name not in needed:
                shutil.rmtree(path, ignore_errors=True)

    def load(self, folder: Path, name: str) -> None:
        """Restore which checkpoint each member has."""
        state = read_record(Saved, folder / name)
        self._names, self._last = list(state.names), list(state.last)
        self._values = state.values
        self._kept = None if state.kept is None else (state.kept, state.kept_values)
        self._interval, self._until = state.interval, state.until

    def close(self) -> None:
        """End what trains the slices; each of them has closed its readers."""
        self._close()


def train_order(job: Job, recipe_of: Callable[[Values], Recipe], order: Order) -> Score:
    """Train a slice as ordered."""
    return train_slice(
        job,
        replace(with_groups(recipe_of(order.values)), seed=order.seed),
        begin=order.begin,
        name=order.name,
        until=order.until,
    )


def with_groups(recipe: Recipe) -> Recipe:
    """Return the recipe with a weight decay, so that weights with and without it are in groups."""
    decay = max(recipe.optimizer.weight_decay, _LEAST_DECAY)
    return replace(recipe, optimizer=replace(recipe.optimizer, weight_decay=decay))


def _open(job: Job, recipe: Recipe, loaded: Loaded | None, until: int) -> Slice:
    """Open the training of a member where a checkpoint ends.

    What is not trained, such as a trunk with drawn weights, is the same in all members: they take
    only trained weights from each other.
    """
    task = copy.copy(job.task)
    begins = loaded is None and recipe.seed != job.seed
    first = make_model(recipe, copy.copy(job.task), job.device) if begins else None
    model = make_model(replace(recipe, seed=job.seed), task, job.device)
    position = Position() if loaded is None else restore_position(loaded)
    training = Slice.open(
        recipe,
        task,
        Sources(train=job.sources.train, val=None, test=None),
        model=model,
        device=job.device,
        clock=make_clock(job.device),
        stage=stages_of(recipe.train, recipe.batch)[-1],
        position=position,
        until=until,
        is_cancelled=job.is_cancelled,
    )
    if first is not None:
        names, drawn = training.learned_weights().keys(), first.state_dict()
        training.load_weights({name: drawn[name] for name in names})
    if loaded is not None:
        groups = training.parts.update.optimizer.param_groups
        own = [{key: group[key] for key in group.keys() - _OF_WEIGHTS} for group in groups]
        restore(training, _state(), loaded)  # with the options of the parent
        for group, options in zip(groups, own, strict=True):
            group.update(options)
    return training


def _score(training: Slice, source: Source | None) -> Score:
    recipe = training.recipe
    reader = make_held_out_reader(source, recipe.batch, recipe.loader, recipe.data.where)
    assert reader is not None
    with closing(reader):
        result: Evaluation = training.evaluate(reader)
    accuracy = result.values.get("accuracy")
    return Score(loss=result.loss().mean, accuracy=accuracy)


def _state() -> RunState:
    return RunState(facts={}, against=Against(None, patience=1, min_frac=0.0))


def _step(name: str) -> str:
    return f"step-{int(name.partition('-')[0]):09d}"


def _load(folder: Path, name: str) -> Loaded:
    return Checkpoints(folder / name).load(_step(name))

"""A recipe, built and ready for timing: blocks of real steps, validation and trunk passes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepladder.config.choices import OrderMode, Where
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.data.reading.examples import PictureSource, Source
from stepladder.data.reading.reader import Reader
from stepladder.errors import DivergedError, UsageError
from stepladder.measuring.blocks.block import BlockTimes, Plan, align_plans, training_time
from stepladder.measuring.blocks.cold import cold_compiler, compiler_start_s
from stepladder.measuring.blocks.timing import seconds_of, wait_for
from stepladder.measuring.model.head import measure_trunk, on_features
from stepladder.measuring.reading.validation import hold_batches, open_validation
from stepladder.measuring.steps import difference
from stepladder.measuring.subject import Subject, open_subject
from stepladder.models.features import evaluating
from stepladder.parallel.world import ALONE, World
from stepladder.stats import autocorrelation_length
from stepladder.task.contract import Task
from stepladder.training.asynchronous.attach import Employer
from stepladder.training.clock import Phase
from stepladder.training.evaluate import evaluate
from stepladder.training.features.feature_pass import batch_size_on
from stepladder.training.setup.build import Sources, use_threads

__all__ = ["BlockTimes", "Plan", "Workload", "align_plans", "training_time"]

_MAX_WARM_UP: Final = 20
_MAX_STRETCH: Final = 4  # times min_s that a block may take because of its autocorrelation
_SHARE: Final = 0.25  # of min_s for validation, and for the head if features are cached
_NUM_READ: Final = 2  # batches: the first may be partly read already
_MIN_WAIT_FRAC: Final = 0.05  # fraction of data wait above which prefetched batches bias the time


_MAX_NAMED: Final = 8


def diverged_error(subject: Subject, *, step: int, rows: NDArray[np.int64] | None) -> DivergedError:
    """Return the error of a non-finite step, with the examples that cause it.

    No weight has changed since, so the step's losses can be computed again.

    Args:
        step: the first non-finite step.
        rows: of its examples in the training split; None if unknown.
    """
    fix = (
        f"Lower the learning rate (--batch.lr {subject.lr / 10:g}) or clip the gradient "
        "(--optimizer.clip-norm 1)."
    )
    why = None
    if rows is not None:
        bad, kind = _bad_examples(subject, rows)
        is_data = 0 < len(bad) < len(rows) or kind == "inputs"
        why = _words(subject.sources.train, rows, bad, kind)
        fix = "Fix or remove these training examples." if is_data else fix
    return DivergedError(
        f"the loss or its gradient became NaN or infinite at step {step} of training",
        where=type(subject.task).__name__,
        why=why,
        fix=fix,
    )


def _words(source: Source, rows: NDArray[np.int64], bad: NDArray[np.int64], kind: str) -> str:
    shown = bad if len(bad) else rows
    named = ", ".join(f"{row} ({source.describe(row)})" for row in shown[:_MAX_NAMED].tolist())
    named += ", ..." if len(shown) > _MAX_NAMED else ""
    if not len(bad):
        return f"All {len(rows)} losses are finite, but their gradient is not: {named}."
    have = "has" if len(bad) == 1 else "have"
    return f"{len(bad)} of its {len(rows)} training examples {have} non-finite {kind}: {named}."


def _bad_examples(subject: Subject, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], str]:
    """Return the rows with non-finite inputs or, if all inputs are finite, with such losses."""
    batch = subject.to_device(_read(subject.sources.train, rows))
    is_finite = _finite_rows(batch.inputs, len(rows))
    kind = "inputs"
    if is_finite.all():
        kind = "loss"
        batch = subject.task.augment(batch, seed=subject.recipe.seed, epoch=0)
        with torch.no_grad(), subject.autocast():
            result = subject.task.loss(subject.model, batch)
        losses: Tensor = result[0] if isinstance(result, tuple) else result
        is_finite = torch.isfinite(losses).cpu()
    return rows[~is_finite.numpy()], kind


def _read(source: Source, rows: NDArray[np.int64]) -> Batch:
    """Read rows as a reader does: images as uint8 NCHW."""
    inputs, targets = source.read(rows)
    if isinstance(source, PictureSource):
        inputs = torch.from_numpy(inputs).permute(0, 3, 1, 2)
        targets = torch.from_numpy(targets)
    return Batch(inputs, targets, torch.from_numpy(rows))


def _finite_rows(value: Any, num: int) -> Tensor:
    """Return for each example whether all of its numbers are finite, in nested values too."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or value.dim() == 0 or len(value) != num:
            return torch.ones(num, dtype=torch.bool)
        return torch.isfinite(value).reshape(num, -1).all(1).cpu()
    parts = list(value.values()) if isinstance(value, Mapping) else value
    found = torch.ones(num, dtype=torch.bool)
    if isinstance(parts, (list, tuple)):
        for part in parts:
            found &= _finite_rows(part, num)
    return found


class Workload:
    """Runs a recipe in blocks, each of which continues the training state of the one before.

    If features are cached, a block is some batches through the trunk, in each of the cached views,
    and steps of the head on features. If the recipe holds images in memory, only some of them are
    loaded, which makes no difference to a step.

    Args:
        recipe: the recipe to run.
        sources: as the recipe reads them.
        cache: folder for temporary files such as compiled code; empty, or does not exist.
        world: the ranks that run it together, which call the same methods; times are those of the
            slowest rank, and an example counts once.

    Attributes:
        plan: the work of a block; fixed by the warm-up.
        pilot: times of the warm-up, as of a block; from few steps, without the first.
        one_time_s: work done once, by name (compile), timed cold by the first warm-up.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        sources: Sources,
        *,
        device: torch.device,
        cache: Path,
        world: World = ALONE,
    ) -> None:
        self._world = world
        self.one_time_s: dict[str, float] = {}
        self._cache = cache
        self._stack = ExitStack()
        self.plan = Plan()
        self.pilot = BlockTimes(step_s=0.0, num_steps=0, validation_s=0.0)
        self._trunk_batches: Iterator[Batch] | None = None
        self._rows_of: dict[int, NDArray[np.int64]] = {}  # by step since the last check
        employer = Employer(folder=cache)
        opened = open_subject(recipe, task, sources, device=device, world=world, employer=employer)
        self._base = base = self._stack.enter_context(opened)
        self._way = base.trunk_pass()
        size = batch_size_on(device)
        self._pass_size = size * world.size
        if recipe.features.cached:
            self._trunk_batches = self._stack.enter_context(_stored_batches(base, size))

    @property
    def is_compiled(self) -> bool:
        """Whether the recipe compiles its model."""
        return self._base.recipe.device.compile

    @property
    def planned_s(self) -> float:
        """Return the estimated seconds of a block, from the warm-up."""
        plan, pilot, reader = self.plan, self.pilot, self._val_reader
        trunk_s = plan.num_trunk_batches * self._pass_size * (pilot.trunk_s or 0.0)
        share = 0.0 if reader is None else plan.num_val_batches / reader.steps_per_epoch
        return trunk_s + plan.num_steps * pilot.step_s + share * pilot.validation_s

    def block(self, min_s: float, *, like: BlockTimes | None = None) -> BlockTimes:
        """Time a fixed number of steps with their validation share, for about min_s seconds.

        The number is fixed by the warm-up, so that all blocks do the same work.

        Args:
            like: a block of a recipe that computes the same features; they are not timed again.

        Raises:
            DivergedError: if the loss is not finite, with the step and its examples.
        """
        use_threads(self._base.recipe)
        if self.plan.num_steps == 0:
            self.warm_up(min_s)
        started = time.perf_counter()
        if like is None:
            trunk_s, held_out_trunk_s = self._time_features()
        else:
            trunk_s, held_out_trunk_s = like.trunk_s, like.held_out_trunk_s
        timed = self._time_steps(self.plan.num_steps)
        validation_s = self._time_validation(self.plan.num_val_batches)
        self._check_finite()
        return replace(
            timed,
            validation_s=validation_s,
            trunk_s=trunk_s,
            held_out_trunk_s=held_out_trunk_s,
            wall_s=time.perf_counter() - started,
        )

    def _time_features(self) -> tuple[float | None, float | None]:
        """Time the trunk on training examples; scale the pilot's ratio for held-out ones."""
        if self._trunk_batches is None:
            return None, None
        trunk_s = self._time_trunk(self.plan.num_trunk_batches)
        pilot = self.pilot
        if pilot.held_out_trunk_s is None or not pilot.trunk_s:
            return trunk_s, None
        return trunk_s, trunk_s * pilot.held_out_trunk_s / pilot.trunk_s

    def _check_finite(self) -> None:
        bad = self._subject.parts.update.read_first_bad()
        rows = None if bad is None else self._rows_of.get(bad)
        self._rows_of.clear()
        if bad is None:
            return
        are_known = self._subject is self._base  # features are repeated from some examples
        raise diverged_error(self._base, step=bad, rows=rows if are_known else None)

    def close(self) -> None:
        """Close the readers, free the model, and restore threads and random states."""
        self._stack.close()
        readers = ("_reader", "_batches", "_val_reader", "_trunk_batches")
        for name in ("_base", "_way", "_subject", *readers):
            self.__dict__.pop(name, None)

    def warm_up(self, min_s: float) -> None:
        """Take the first steps, which are slow, and fix the number of steps in min_s seconds.

        A second call takes only one step: compiled code is lost when another workload starts cold.
        """
        use_threads(self._base.recipe)
        if self.plan.num_steps:
            if self._trunk_batches is not None:
                self._time_trunk(1)
            self._time_steps(1)
            self._time_validation(self.plan.num_val_batches)
            return
        device = self._base.device
        with cold_compiler(self._base.recipe.device, self._cache, device):
            extra_s = 0.0 if self._trunk_batches is None else self._pilot_trunk(min_s)
            self._open_steps()
            started = time.perf_counter()
            self._time_steps(self._base.unit)
            first_s = time.perf_counter() - started
            extra_s += first_s - self._pilot_steps(min_s)
            first_s, batch_s = self._pilot_validation(min_s)
            extra_s += first_s - batch_s
        if self._base.has_workers:
            self.one_time_s["start"] = max(0.0, extra_s)
        if self.is_compiled:
            self.one_time_s["compile"] = max(0.0, extra_s) + compiler_start_s(device)

    def _open_steps(self) -> None:
        """Open the readers of steps and validation; of features, if only the head is trained."""
        base, is_cached = self._base, self._trunk_batches is not None
        self._subject = head_of(base) if is_cached else base
        self._reader = self._subject.reader()
        self._stack.callback(self._reader.close)
        self._batches = self._reader.endless()
        self._stack.callback(self._batches.close)
        recipe = base.recipe
        self._val_reader = open_validation(
            self._subject.sources.val, recipe.batch, recipe.loader, recipe.data.where, self._world
        )
        if self._val_reader is not None:
            self._stack.callback(self._val_reader.close)

    def _pilot_trunk(self, min_s: float) -> float:
        """Fix the number of trunk batches; return the extra seconds of the first."""
        if self._base.trunk_and_head is None:
            raise _no_head(self._base)
        first_s, second_s = self._time_trunk(1), self._time_trunk(1)
        trunk_s = second_s
        if self._reading_sets_the_pace():
            self.plan = replace(self.plan, trunk_begins_dry=True)
            trunk_s = self._time_trunk(1)
        fits = round(min_s / (trunk_s * self._pass_size))
        if self.plan.trunk_begins_dry:  # each thread reads a batch, so they arrive in groups
            fits = max(1, fits) * self._base.reading_threads
        self.plan = replace(self.plan, num_trunk_batches=max(1, fits))
        self.pilot = replace(self.pilot, trunk_s=trunk_s)
        if self._way.num_views:
            self._time_trunk(1, num_views=0)
            held_out_s = self._time_trunk(self.plan.num_trunk_batches, num_views=0)
            self.pilot = replace(self.pilot, held_out_trunk_s=held_out_s)
        return (first_s - second_s) * self._pass_size

    def _reading_sets_the_pace(self) -> bool:
        """Return True if reading a batch, without prefetching, takes longer than the trunk."""
        way, batches = self._way, self._trunk_batches
        assert batches is not None
        self._forget_read_ahead(batches)
        started = time.perf_counter()
        read = [next(batches) for _ in range(_NUM_READ)]
        read_s = (time.perf_counter() - started) / _NUM_READ

        def compute() -> None:
            way.features(read[-1], num_views=way.num_views)

        with evaluating(way.model):
            return self._world.from_main(read_s > seconds_of(compute, way.device))

    def _forget_read_ahead(self, batches: Iterator[Batch]) -> None:
        for _ in range(self._base.recipe.loader.prefetch_batches):
            next(batches)

    def _slowest(self, seconds: float) -> float:
        """Return the seconds of the slowest rank; the same on all, so that they decide alike."""
        return max(self._world.gather(seconds))

    def _pilot_steps(self, min_s: float) -> float:
        """Fix the number of steps in a block; return the seconds of one."""
        steps_s: list[float] = []
        unit = self._base.unit
        while len(steps_s) < 2 or (len(steps_s) < _MAX_WARM_UP and sum(steps_s[1:]) < min_s):
            steps_s.append(self._time_steps(unit).step_s)
        settled = steps_s[len(steps_s) // 2 :]
        of_steps_s = min_s if self._trunk_batches is None else min_s * _SHARE
        num_steps = unit * max(1, round(of_steps_s * len(settled) / sum(settled) / unit))
        pilot = self._time_steps(num_steps)
        waited_s = self._slowest(pilot.phases_s.get(Phase.DATA_WAIT, 0.0))
        begins_dry = waited_s > _MIN_WAIT_FRAC * pilot.step_s
        apart = self._world.from_main(autocorrelation_length(pilot.steps_s))
        apart = min(apart, _MAX_STRETCH * num_steps)
        num_steps = unit * max(num_steps // unit, round(apart / unit))
        self.plan = replace(self.plan, num_steps=num_steps, begins_dry=begins_dry)
        self.pilot = replace(self.pilot, step_s=pilot.step_s, num_steps=pilot.num_steps)
        return pilot.step_s

    def _pilot_validation(self, min_s: float) -> tuple[float, float]:
        """Fix the number of validation batches; return the seconds of the first two."""
        reader = self._val_reader
        if reader is None:
            return 0.0, 0.0
        hold_batches(reader, 1)
        seconds = []
        for _ in range(2):
            started = time.perf_counter()
            validation_s = self._time_validation(1)
            seconds.append(self._slowest(time.perf_counter() - started))
        fits = round(min_s * _SHARE / seconds[1])
        self.plan = replace(self.plan, num_val_batches=min(max(1, fits), reader.steps_per_epoch))
        self.pilot = replace(self.pilot, validation_s=validation_s)
        return seconds[0], seconds[1]

    def _time_steps(self, num_steps: int) -> BlockTimes:
        """Time steps; a short one at the end of an epoch counts as a part of one."""
        subject, device = self._subject, self._subject.device
        if self.plan.begins_dry:
            self._forget_read_ahead(self._batches)
            subject.num_skipped += subject.recipe.loader.prefetch_batches
        wait_for(device)
        self._world.barrier()
        device_timeline = subject.clock.device
        before = device_timeline.close() if device_timeline else subject.clock.host()
        num_examples, marks = 0, [time.perf_counter()]
        for _ in range(num_steps):
            step = subject.num_steps
            batch = subject.step_on(self._batches)
            self._rows_of[step] = batch.ids.numpy()
            num_examples += subject.num_in_step(step, batch)
            marks.append(time.perf_counter())
        wait_for(device)
        seconds = self._slowest(time.perf_counter() - marks[0])
        after = device_timeline.close() if device_timeline else subject.clock.host()
        full_steps = num_examples / self._reader.global_batch_size
        phases = difference(before, after).phases_s
        ends = itertools.pairwise(marks)
        return BlockTimes(
            step_s=seconds / full_steps,
            num_steps=num_steps,
            validation_s=0.0,
            phases_s={name: s / full_steps for name, s in phases.items() if s > 0},
            steps_s=() if device_timeline else tuple(end - start for start, end in ends),
        )

    def _time_validation(self, num_batches: int) -> float:
        """Time the first batches of the split, and scale the time to the whole split."""
        reader, subject = self._val_reader, self._subject
        if reader is None:
            return 0.0
        hold_batches(reader, num_batches)
        wait_for(subject.device)
        self._world.barrier()
        started = time.perf_counter()
        result = evaluate(
            subject.task,
            subject.model,
            reader,
            device=subject.device,
            precision=subject.recipe.device.precision,
            memory_format=subject.memory_format,
            max_batches=num_batches,
            world=self._world,
            divided=subject.parts.divided,
            stand_in=subject.stand_in,
        )
        seconds = self._slowest(time.perf_counter() - started)
        per_example_s = seconds / max(1, result.rows.size)
        return per_example_s * reader.num_examples

    def _time_trunk(self, num_batches: int, *, num_views: int | None = None) -> float:
        """Read batches and run them through the trunk; return the seconds per example.

        Args:
            num_views: of each example; 0: the unmodified example; None: as in training.
        """
        way, batches = self._way, self._trunk_batches
        assert batches is not None
        views = way.num_views if num_views is None else num_views
        with evaluating(way.model):
            if self.plan.trunk_begins_dry:
                self._forget_read_ahead(batches)
                # meanwhile the next batch is read, as usual
                way.features(next(batches), num_views=views).cpu()
            wait_for(way.device)
            self._world.barrier()
            started, num_examples = time.perf_counter(), 0
            for _ in range(num_batches):
                batch = next(batches)
                way.features(batch, num_views=views).cpu()
                num_examples += batch.ids.numel()
        return self._slowest(time.perf_counter() - started) / (num_examples * self._world.size)


@contextmanager
def _stored_batches(base: Subject, batch_size: int) -> Iterator[Iterator[Batch]]:
    """Yield endless batches of real training examples, in stored order."""
    loader = base.recipe.loader
    reader = Reader(
        base.sources.train,
        seed=0,
        global_batch_size=batch_size,
        mode=OrderMode.SEQUENTIAL,
        threads=loader.num_threads,
        prefetch_batches=loader.prefetch_batches,
        where=Where.STREAM,
    )
    batches = reader.endless()
    try:
        yield batches
    finally:
        batches.close()
        reader.close()


def head_of(base: Subject) -> Subject:
    """Return the subject whose steps train the head on features.

    Raises:
        UsageError: if the model has no trunk, or targets are not a single tensor.
    """
    trunk = measure_trunk(base, budget_s=0.0)
    head = on_features(base, trunk) if trunk is not None else None
    if head is None:
        raise _no_head(base)
    return head


def _no_head(base: Subject) -> UsageError:
    return UsageError(
        "features.cached trains only the head (last layers) of the model, on stored outputs of "
        "the rest; but the Task does not say which part of its model is the head",
        where=type(base.task).__name__,
        fix="Add a method split(model) to the Task that returns (trunk, head), or train with "
        "--features.no-cached.",
    )

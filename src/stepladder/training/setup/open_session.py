"""Open a session: fresh, or in the state of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stepladder.config.options import JobConfig
from stepladder.data.batch import Batch
from stepladder.data.reading.examples import ArrivalSource, Source
from stepladder.data.reading.reader import Reader
from stepladder.models.features import evaluating
from stepladder.parallel.world import ALONE, World
from stepladder.task.contract import Task
from stepladder.training.asynchronous.attach import Employer, rows_only, train_by_workers
from stepladder.training.baseline import Against, read_baseline
from stepladder.training.checkpoint.checkpoint import Checkpoints, check_fits
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.checkpoint.training_state import RunState, restore, restore_position
from stepladder.training.clock import Clock, Phase
from stepladder.training.course import Position
from stepladder.training.output.display import Display
from stepladder.training.output.events import EventLog
from stepladder.training.randomness import capture_random_state, restore_random_state
from stepladder.training.session import Session
from stepladder.training.setup.build import Sources
from stepladder.training.signals import SignalGuard
from stepladder.training.stage import stages_of
from stepladder.training.step import autocast, split_batch
from stepladder.training.training import Training


def warm_up(run: Training) -> None:
    """Compile what steps and validation call, for every batch size that will occur.

    Runs forward and backward passes and validation on the first batches and discards the results:
    weights, buffers, gradients, random states and positions do not change. The time is counted in
    the caller's open phase. Does nothing if features are cached, as nothing calls the trunk, or for
    an IterableDataset, whose examples can be read only once: there the first step compiles.

    Raises:
        ResourceError: if the code cannot be compiled.
    """
    if run.recipe.features.cached or isinstance(run.train_reader.source, ArrivalSource):
        return
    random_tensors, random_values = capture_random_state()
    buffers = {name: buffer.clone() for name, buffer in run.model.named_buffers()}
    try:
        _train(run)
        if run.val_reader is not None:
            _validate(run, run.val_reader)
    finally:
        with torch.no_grad():
            for name, before in buffers.items():
                buffer = run.model.get_buffer(name)
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
        for weight in run.model.parameters():
            weight.grad = None
        restore_random_state(random_tensors, random_values)


def _train(run: Training) -> None:
    """Run forward and backward passes as steps do, without the update."""
    at, recipe = run.position, run.recipe
    for batch in _batches(run, run.train_reader, epoch=at.epoch, start=at.offset):
        changed = run.task.augment(batch, seed=recipe.seed, epoch=at.epoch)
        with autocast(run.device, recipe.device.precision):
            result = run.task.loss(run.model, changed)
        losses = result[0] if isinstance(result, tuple) else result
        losses.float().sum().backward()  # type: ignore[no-untyped-call]


def _validate(run: Training, reader: Reader) -> None:
    with evaluating(run.model), autocast(run.device, run.recipe.device.precision):
        for batch in _batches(run, reader):
            run.task.metrics(run.model, batch)


def _batches(run: Training, reader: Reader, *, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
    """Yield one batch of each size that occurs in an epoch, the largest first."""
    batches = reader.epoch(epoch, start=start)
    try:
        batch = next(batches, None)
    finally:
        batches.close()
    if batch is None:
        return
    batch = batch.to(run.device, memory_format=run.memory_format)
    micro = run.recipe.batch.micro_batch_size if reader is run.train_reader else None
    tail = reader.num_examples % reader.global_batch_size
    wholes = [batch, *([next(split_batch(batch, tail))] if tail else [])]
    sizes = {part.ids.numel(): part for whole in wholes for part in split_batch(whole, micro)}
    for _, part in sorted(sizes.items(), reverse=True):
        yield part


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a session writes to and listens to."""

    checkpoints: Checkpoints
    events: EventLog
    display: Display
    guard: SignalGuard


def open_session(
    job: JobConfig,
    task: Task,
    sources: Sources,
    *,
    model: nn.Module,
    device: torch.device,
    clock: Clock,
    around: Surroundings,
    facts: dict[str, Any],
    loaded: Loaded | None,
    world: World = ALONE,
    downloaded: Source | None = None,
    has_new_data: bool = False,
) -> Session:
    """Build a session, and restore a checkpoint if one is given.

    Args:
        model: as returned by `make_model`.
        facts: JSON values in every checkpoint of the run (task, describe, environment).
        downloaded: the examples whose downloads are counted by host.
        has_new_data: the data differs from that of the checkpoint: its epoch starts again.

    Raises:
        DataError: if the checkpoint belongs to another model.
    """
    recipe = job.recipe
    position = restore_position(loaded) if loaded is not None else Position()
    if has_new_data:
        position.offset = 0
    if loaded is not None:
        check_fits(model.state_dict(), loaded)
    against = Against(
        read_baseline(job.run),
        patience=job.run.baseline_patience,
        min_frac=recipe.stopping.min_improvement_frac,
    )
    run = Session.open(
        recipe,
        task,
        rows_only(sources) if recipe.asynchronous.is_on else sources,
        model=model,
        device=device,
        clock=clock,
        stage=stages_of(recipe.train, recipe.batch)[position.stage],
        position=position,
        num_kept=job.run.save_top_k,
        world=world,
        downloaded=downloaded,
        config=job.run,
        events=around.events,
        display=around.display,
        guard=around.guard,
        checkpoints=around.checkpoints,
        state=RunState(facts=facts, against=against),
    )
    if recipe.asynchronous.is_on:
        train_by_workers(run, sources, Employer.of(job.run))
    try:
        if loaded is not None:
            clock.go_on_from(**loaded.state["clock"])
            restore(run, run.state, loaded)
            run.committed_step = run.position.step
        if recipe.device.compile and not recipe.asynchronous.is_on:
            warm_up(run)
    except BaseException:
        run.parts.step.close()
        raise
    return run


def start_next_stage(run: Session) -> None:
    """Start the next stage from the best weights of this one.

    The best weights are written to disk first: the copy in memory lacks the weights that this stage
    froze, and the next stage changes those.

    Raises:
        DivergedError: if a loss was not finite.
        ResourceError: if they cannot be written.
    """
    run.commit()
    run.restore_best()
    run.rule.best.forget_weights()
    run.begin_next_stage()
    if run.recipe.device.compile:
        with run.clock.phase(Phase.SETUP):
            warm_up(run)

"""The first pass through code that is still to be compiled, before the first step needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stepladder.data.examples import ArrivalSource
from stepladder.train.randomness import capture_random_state, restore_random_state
from stepladder.train.step import autocast, split_batch

if TYPE_CHECKING:
    from stepladder.train.session import Session


def warm_up(run: Session) -> None:
    """Compile what steps and validation call, on the batches that they begin with.

    One forward and backward pass and one validation batch, whose results are thrown away: weights,
    buffers, gradients, random states and positions are left as they were. Its time belongs to the
    phase that the caller has open. Where features are cached nothing calls the trunk any more; and
    the examples of an IterableDataset are gone once they are read, so that there the first step
    compiles.

    Raises:
        ResourceError: if the code cannot be compiled.
    """
    if run.recipe.features.cached or isinstance(run.train_reader.source, ArrivalSource):
        return
    random_tensors, random_values = capture_random_state()
    buffers = {name: buffer.clone() for name, buffer in run.model.named_buffers()}
    try:
        _one_step(run)
        if run.val_reader is not None:
            run.evaluate(run.val_reader, max_batches=1)
    finally:
        with torch.no_grad():
            for name, before in buffers.items():
                buffer = run.model.get_buffer(name)
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
        for weight in run.model.parameters():
            weight.grad = None
        restore_random_state(random_tensors, random_values)


def _one_step(run: Session) -> None:
    """Pass a batch forward and back, as a step does, but for the update."""
    at, recipe = run.position, run.recipe
    batches = run.train_reader.epoch(at.epoch, start=at.offset)
    try:
        batch = next(batches, None)
    finally:
        batches.close()
    if batch is None:
        return
    batch = batch.to(run.device, memory_format=run.memory_format)
    batch = run.task.augment(batch, seed=recipe.seed, epoch=at.epoch)
    part = next(split_batch(batch, recipe.batch.micro_batch_size))
    with autocast(run.device, recipe.device.precision):
        result = run.task.loss(run.model, part)
    losses = result[0] if isinstance(result, tuple) else result
    losses.float().sum().backward()  # type: ignore[no-untyped-call]

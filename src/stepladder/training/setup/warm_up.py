"""The first pass through code that is still to be compiled, before the first step needs it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from stepladder.data.batch import Batch
from stepladder.data.reading.examples import ArrivalSource
from stepladder.data.reading.reader import Reader
from stepladder.models.features import evaluating
from stepladder.training.randomness import capture_random_state, restore_random_state
from stepladder.training.step import autocast, split_batch
from stepladder.training.training import Training


def warm_up(run: Training) -> None:
    """Compile what steps and validation call, for every size of batch that they will meet.

    Forward and backward passes and validation on the batches that come first, whose results are
    thrown away: weights, buffers, gradients, random states and positions are left as they were. The
    time belongs to the phase that the caller has open. Where features are cached nothing calls the
    trunk any more; and the examples of an IterableDataset are gone once they are read, so that
    there the first step compiles.

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
    """Pass batches forward and back, as steps do, but for the update."""
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
    """Give a batch of each size that the model will see of an epoch, the largest first."""
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

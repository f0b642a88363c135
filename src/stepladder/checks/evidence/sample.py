"""Small batches for checks, from training batches of any nested structure."""

from __future__ import annotations

import copy
import hashlib
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepladder.checks.job import CheckedJob
from stepladder.data.batch import Batch
from stepladder.measuring.probe import untouched
from stepladder.training.randomness import seed_everything

MAX_EXAMPLES = 64
LEAST_EXAMPLES = 4
PASS_S = 0.5  # for one pass over a sample
_NUM_TIMED = 3  # passes, of which the fastest counts: the machine may be shared
_HOLDERS = (Tensor, Mapping, list, tuple)


def training_sample(job: CheckedJob, num_examples: int, *, is_augmented: bool = True) -> Batch:
    """Return the first training examples of an epoch, augmented as in the run, on the device.

    Fewer if an epoch has fewer, or a pass over so many would take too long.

    Args:
        num_examples: at most `MAX_EXAMPLES`.
        is_augmented: False: not augmented, unless the loss needs what augment() returns, such as
        two views.
    """
    wanted = num_examples
    if num_examples > LEAST_EXAMPLES:
        wanted = min(wanted, max(LEAST_EXAMPLES, int(PASS_S / example_seconds(job))))
    key = f"sample.{wanted}" if is_augmented else f"sample.{wanted}.plain"
    whole: Batch = job.remember(key, lambda: _read(job, wanted, is_augmented=is_augmented))
    return whole


def example_seconds(job: CheckedJob) -> float:
    """Return the seconds that the loss of one example takes, without gradients."""
    return job.remember("example_s", lambda: _example_s(job))


def _example_s(job: CheckedJob) -> float:
    """Time the loss of a few examples, per example."""
    first = job.augmented(job.train_batches(1)[0])
    few = take(first, torch.arange(min(2, first.ids.numel())))
    model = job.model().eval()
    took_s = []
    with untouched(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # checks find what torch warns about
        job.loss(model, few)  # the first one is slower
        for _ in range(_NUM_TIMED):
            started = time.perf_counter()
            job.loss(model, few)
            if job.device.type == "cuda":
                torch.cuda.synchronize(job.device)
            took_s.append(time.perf_counter() - started)
    return max(min(took_s), 1e-6) / few.ids.numel()


def _read(job: CheckedJob, num_examples: int, *, is_augmented: bool) -> Batch:
    per_batch = max(1, min(job.recipe.batch.global_batch_size, len(job.sources.train)))
    batches = job.train_batches(-(-min(num_examples, MAX_EXAMPLES) // per_batch))
    plain = [] if is_augmented or not _takes(job, batches[0]) else batches
    merged = merge(plain or [job.augmented(batch) for batch in batches])
    return take(merged, torch.arange(min(num_examples, merged.ids.numel())))


def _takes(job: CheckedJob, batch: Batch) -> bool:
    """Return True if the loss accepts a batch that was not augmented."""
    few = take(batch, torch.arange(min(LEAST_EXAMPLES, batch.ids.numel())))
    try:
        with untouched(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(job.loss(job.model().eval(), few).isfinite().all())
    except Exception:  # of the user's code: it expects what augment() returns
        return False


def take(batch: Batch, rows: Tensor) -> Batch:
    """Return some examples of a batch by position, in the given order."""

    def pick(value: Tensor) -> Tensor:
        return value[rows.to(value.device)]

    return Batch(each_tensor(pick, batch.inputs), each_tensor(pick, batch.targets), batch.ids[rows])


def merge(batches: list[Batch]) -> Batch:
    """Concatenate batches."""
    if len(batches) == 1:
        return batches[0]
    inputs = _cat([batch.inputs for batch in batches])
    targets = _cat([batch.targets for batch in batches])
    return Batch(inputs, targets, torch.cat([batch.ids for batch in batches]))


def each_tensor(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to each tensor in nested dicts, lists and tuples."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: each_tensor(change, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(each_tensor(change, item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(each_tensor(change, item) for item in value)
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """List the tensors in nested dicts, lists and tuples."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    each_tensor(note, value)
    return found


def clone(batch: Batch) -> Batch:
    """Return a batch whose tensors are copies, which may be changed in place."""
    return Batch(*(each_tensor(Tensor.clone, part) for part in batch))


def augmented_again(job: CheckedJob, batch: Batch, *, epoch: int, state: int) -> Batch:
    """Augment a copy of a batch with a copy of the Task, from a given random state."""
    with untouched():
        seed_everything(state)
        return copy.copy(job.task).augment(clone(batch), seed=job.recipe.seed, epoch=epoch)


def same_tensors(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Return True if two lists hold bitwise equal tensors."""
    return len(one) == len(other) and all(map(torch.equal, one, other))


def digest_of(tensors: Iterable[Tensor]) -> bytes:
    """Return a digest of tensors: of their dtypes, shapes and values."""
    result = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        result.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        result.update(plain.view(torch.uint8).numpy().data)
    return result.digest()


def _cat(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat(values)
    if isinstance(first, Mapping):
        return {key: _cat([value[key] for value in values]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_cat(list(parts)) for parts in zip(*values, strict=True)))
    if isinstance(first, list) and not (first and isinstance(first[0], _HOLDERS)):
        return [item for value in values for item in value]  # names and the like
    if isinstance(first, (list, tuple)):
        return type(first)(_cat(list(parts)) for parts in zip(*values, strict=True))
    return first

"""Examples for data checks: evenly spaced over a split, read once, and shared."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from stepladder.checks.evidence.sample import each_tensor, take, tensors_of
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split, WeightsSource
from stepladder.data.batch import Batch
from stepladder.data.reading.examples import ArrivalSource
from stepladder.measuring.probe import untouched
from stepladder.models.features import evaluating
from stepladder.models.freezing import is_frozen
from stepladder.models.trunk import Trunk

FAST_EXAMPLES = 128
FAST_S = 0.25  # for reading a sample in a fast check
_MAX_BYTES = 64_000_000  # of a sample that is held
_CHUNK = 16
_MAX_WIDTH = 768  # length of a vector that describes an example
_GROUND = 12  # side to which pictures are pooled, if that is narrow enough
_MAX_DESCRIBED = 128  # by a trunk: a pass of 32 pictures takes about 0.4 s on two cores
_MAX_POOLED = 768
_DESCRIBE_FRAC = 1 / 8  # of the time left, per split
_HUGE = 1e9
_SEED = 20_000

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Some examples of a split, in the order of their rows.

    Attributes:
        rows: which, (n,).
        batches: them, in parts, on the device, before augmentation.
        num_all: examples of the split.
    """

    split: Split
    rows: Ints
    batches: tuple[Batch, ...]
    num_all: int

    @property
    def coverage(self) -> str | None:
        """Return how many examples were checked; None: all of them."""
        return coverage(len(self.rows), self.num_all, self.split)


@dataclass(frozen=True, kw_only=True)
class Described:
    """Examples of a split as vectors.

    Attributes:
        rows: which, (n,).
        vectors: float32 (n, d).
        targets: of each; None: of test, or not a single tensor.
        by_trunk: whether they are features of a pretrained trunk, not the inputs themselves.
        num_all: examples of the split.
    """

    split: Split
    rows: Ints
    vectors: Floats
    targets: Tensor | None
    by_trunk: bool
    num_all: int

    def directions(self, *, like: Described | None = None) -> Floats:
        """Subtract the mean (of `like`, or their own) and scale vectors to length 1."""
        centred = self.vectors - (like or self).vectors.mean(axis=0)
        unit: Floats = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
        return unit


def coverage(num: int, num_all: int, split: Split) -> str | None:
    """Return how many of a split's examples were checked, in words; None: all of them."""
    return None if num >= num_all else f"{num} of the {num_all} {split.value} examples"


def spread_rows(num_all: int, num: int) -> Ints:
    """Return `num` evenly spaced rows; all if there are fewer."""
    return np.unique(np.linspace(0, num_all - 1, min(num, num_all)).astype(np.int64))


def read_chunks(job: CheckedJob, split: Split, rows: Ints, *, seconds: float) -> Iterator[Batch]:
    """Yield rows in parts until the time is up; at least one part.

    Each part covers the whole split, so an early stop leaves a sparser sample.
    """
    ends = time.perf_counter() + seconds
    num_parts = max(1, math.ceil(len(rows) / _CHUNK))
    for part in range(num_parts):
        yield job.rows(split, rows[part::num_parts])
        if time.perf_counter() > ends:
            return


def by_row(job: CheckedJob, split: Split) -> bool:
    """Return True if a split exists and can be read by row."""
    source = job.source(split)
    return source is not None and not isinstance(source, ArrivalSource)


def spread_sample(job: CheckedJob, split: Split) -> Sample | None:
    """Read a small sample of a split once, for all fast checks; None if it has no rows.

    Targets of test are dropped: no check reads them.
    """
    if not by_row(job, split):
        return None
    return job.remember(f"spread.{split.value}", lambda: _read_sample(job, split))


def _read_sample(job: CheckedJob, split: Split) -> Sample:
    source = job.source(split)
    assert source is not None
    num_bytes, batches = 0, []
    for batch in read_chunks(job, split, spread_rows(len(source), FAST_EXAMPLES), seconds=FAST_S):
        batches.append(batch if split is not Split.TEST else batch._replace(targets=None))
        num_bytes += sum(value.nbytes for value in tensors_of(batch.inputs))
        if num_bytes > _MAX_BYTES:
            break
    rows = torch.cat([batch.ids for batch in batches]).numpy()
    return Sample(split=split, rows=rows, batches=tuple(batches), num_all=len(source))


def described(job: CheckedJob, split: Split) -> Described | None:
    """Describe a sample of a split by vectors, once: by a pretrained trunk if there is one.

    None if inputs are not numeric, or cannot be read by row.
    """
    if not by_row(job, split):
        return None
    return job.remember(f"vectors.{split.value}", lambda: _describe(job, split))


def _describe(job: CheckedJob, split: Split) -> Described | None:
    source = job.source(split)
    assert source is not None
    trunk = job.remember("pretrained trunk", lambda: _pretrained_trunk(job))
    num = _MAX_POOLED if trunk is None else _MAX_DESCRIBED
    seconds = max(0.5, _DESCRIBE_FRAC * job.left_s())
    rows, parts, targets = [], [], []
    for batch in read_chunks(job, split, spread_rows(len(source), num), seconds=seconds):
        part = vectors(_read_by_loss(job, batch)) if trunk is None else _through(job, trunk, batch)
        if part is None:
            return None
        parts.append(part)
        rows.append(batch.ids.numpy())
        targets.append(None if split is Split.TEST else batch.targets)
    found = np.concatenate(rows)
    order = np.argsort(found)
    return Described(
        split=split,
        rows=found[order],
        vectors=finite(np.concatenate(parts))[order],
        targets=_in_order(targets, order),
        by_trunk=trunk is not None,
        num_all=len(source),
    )


def _read_by_loss(job: CheckedJob, batch: Batch) -> Any:
    """Return the inputs without those that the loss never reads, such as an index."""
    parts = tensors_of(batch.inputs)
    if len(parts) < 2:
        return batch.inputs
    is_read = job.remember("inputs read", lambda: _which_are_read(job))
    if len(is_read) != len(parts):
        return batch.inputs
    return tuple(part for part, is_one in zip(parts, is_read, strict=True) if is_one)


def _which_are_read(job: CheckedJob) -> tuple[bool, ...]:
    """Permute each tensor of the inputs over examples, and check whether losses change.

    A tensor for which this is unknown, such as one that is the same for all, counts as read.
    """
    whole = job.train_batches(1)[0]
    batch = take(whole, torch.arange(min(_CHUNK, len(whole.ids))))
    parts = tensors_of(batch.inputs)
    model = job.model().eval()
    try:
        before = _losses_dealt(job, model, batch, None)
        is_read = tuple(
            _is_constant(part) or not torch.equal(_losses_dealt(job, model, batch, place), before)
            for place, part in enumerate(parts)
        )
    except Exception:  # a loss that raises: all count as read
        return (True,) * len(parts)
    return is_read if any(is_read) else (True,) * len(parts)


def _losses_dealt(
    job: CheckedJob, model: torch.nn.Module, batch: Batch, dealt: int | None
) -> Tensor:
    """Return the losses with one tensor of the inputs shifted by one example."""
    places = itertools.count()

    def deal(value: Tensor) -> Tensor:
        return value.roll(1, 0) if next(places) == dealt else value

    with untouched(), torch.no_grad():
        torch.manual_seed(_SEED)
        return job.loss(model, batch._replace(inputs=each_tensor(deal, batch.inputs)))


def _is_constant(part: Tensor) -> bool:
    return part.dim() == 0 or torch.equal(part, part.roll(1, 0))


def _in_order(parts: list[Any], order: Ints) -> Tensor | None:
    if not all(isinstance(part, Tensor) and part.dim() > 0 for part in parts):
        return None
    return torch.cat(parts).cpu()[torch.from_numpy(order)]


def _pretrained_trunk(job: CheckedJob) -> torch.nn.Module | None:
    """Return the trunk if it is pretrained: it is frozen at first, or its weights are named.

    A frozen trunk with random weights would be useless to the job itself.
    """
    model = job.model()
    parts = job.task.split(model)
    if parts is None:
        return None
    trunk = parts[0]
    has_weights = isinstance(trunk, Trunk) and job.recipe.model.weights is not WeightsSource.NONE
    is_known = not isinstance(trunk, Trunk) and is_frozen(trunk)
    return trunk if has_weights or is_known else None


def _through(job: CheckedJob, trunk: torch.nn.Module, batch: Batch) -> Floats | None:
    with evaluating(trunk), job.autocast():
        features = trunk(batch.inputs)
    if not isinstance(features, Tensor) or len(features) != len(batch.ids):
        return None
    return vectors(features.float())


def vectors(inputs: Any) -> Floats | None:
    """Return one vector per example: pictures pooled, token ids counted, others flattened.

    None if there are no numeric inputs.

    Returns:
        float32 (n, d).
    """
    parts = [part for value in tensors_of(inputs) if (part := _vector(value)) is not None]
    if not parts or len({len(part) for part in parts}) > 1:
        return None
    return cast("Floats", torch.cat(parts, dim=1).cpu().numpy())


def finite(vectors: Floats) -> Floats:
    """Replace NaN and infinity, and clip values whose squares would be infinite."""
    bounded: Floats = np.nan_to_num(vectors, nan=0.0, posinf=_HUGE, neginf=-_HUGE)
    return bounded.clip(-_HUGE, _HUGE)


def _vector(value: Tensor) -> Tensor | None:
    if value.layout is not torch.strided or value.is_complex() or value.dim() == 0:
        return None
    if value.dtype in (torch.int32, torch.int64) and value.dim() == 2:
        counts = torch.zeros(len(value), _MAX_WIDTH, device=value.device)
        ones = torch.ones_like(value, dtype=torch.float32)
        return counts.scatter_add_(1, value.long() % _MAX_WIDTH, ones).sqrt()  # (n, 768)
    x = value.detach().float()
    if x.dim() == 1:
        x = x.unsqueeze(1)
    if x.dim() == 4:
        x = _pooled(x)
    elif x.dim() > 2:
        x = F.adaptive_avg_pool1d(x.flatten(1).unsqueeze(1), min(_MAX_WIDTH, x[0].numel()))
    x = x.flatten(1)
    if x.shape[1] > _MAX_WIDTH:  # a random projection approximately preserves distances
        generator = torch.Generator().manual_seed(0)
        mixing = torch.randn(x.shape[1], _MAX_WIDTH, generator=generator).to(x.device)
        x = x @ mixing / math.sqrt(_MAX_WIDTH)
    return x


def _pooled(x: Tensor) -> Tensor:
    """Pool pictures (n, c, h, w), or (n, h, w, c), to a small side."""
    if x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        x = x.permute(0, 3, 1, 2)
    channels, height, width = x.shape[1:]
    side = max(1, min(_GROUND + 4, math.isqrt(_MAX_WIDTH // max(1, channels))))
    if height <= side and width <= side:
        return x
    return F.adaptive_avg_pool2d(x, (min(height, side), min(width, side)))

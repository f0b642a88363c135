"""Data, initial weights and random draws depend on the seed, and on nothing else."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, passed
from stepladder.checks.evidence.sample import augmented_again, take, tensors_of
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.data.reading.datasets import as_source
from stepladder.data.reading.examples import ArrivalSource, Source
from stepladder.measuring.probe import untouched
from stepladder.records.findings import Severity
from stepladder.training.randomness import seed_everything
from stepladder.training.setup.build import make_model

NUM_ROWS = 8
_FIX_AUGMENT = "Use a generator seeded by (seed, epoch, ids) only, as documented for Task.augment."


@dataclass
class _Fault:
    name: str
    evidence: str
    fix: str
    severity: Severity | None = None


def seeds(job: CheckedJob) -> Answer:
    """Build data, weights and augmented batches with the same and with other seeds, and compare."""
    for look in (_data, _rows, _weights, _augmentation, _resets):
        fault = look(job)
        if fault is not None:
            return found(fault.name, fault.evidence, fix=fault.fix, severity=fault.severity)
    return passed("data, initial weights and augmentation depend on the seed, and on nothing else")


# --- before the first step


def _data(job: CheckedJob) -> _Fault | None:
    """Load the Task's data again, with other random states, and compare some rows."""
    before = job.sources.train
    if isinstance(before, ArrivalSource) or job.left_s() < 5:
        return None
    for split in (Split.TRAIN, Split.VAL):
        old = job.source(split)
        if old is None:
            continue
        with untouched():
            seed_everything(job.recipe.seed + 12_345)
            data = copy.copy(job.task).data(split)
            new = None if data is None else as_source(data)
        rows = np.linspace(0, len(old) - 1, min(NUM_ROWS, len(old))).astype(np.int64)
        is_alike = new is None or len(new) != len(old) or not _is_steady(old, rows)
        if not is_alike and new is not None:
            is_alike = _equal(_read(old, rows, 0), _read(new, rows, 0))
        if not is_alike:
            return _Fault(
                "seeds_wrong",
                f"data({split.value}) returns different examples when it is called again: a new or "
                "resumed run would have a different split",
                "Use a generator with a fixed seed: torch.Generator().manual_seed(0).",
            )
    return None


def _is_steady(source: Source, rows: np.ndarray) -> bool:
    return _equal(_read(source, rows, 0), _read(source, rows, 1))


def _read(source: Source, rows: np.ndarray, seed: int) -> Any:
    with untouched():
        seed_everything(seed)
        return tuple(source.read(rows))


def _rows(job: CheckedJob) -> _Fault | None:
    """Read the same rows twice with the same random states, and compare."""
    source = job.sources.train
    if isinstance(source, ArrivalSource):
        return None
    rows = np.arange(min(NUM_ROWS, len(source)), dtype=np.int64)
    if _equal(_read(source, rows, 0), _read(source, rows, 0)):
        return None
    return _Fault(
        "seeds_wrong",
        "examples differ when they are read again with the same seeds: the dataset uses an "
        "unseeded generator",
        "Draw random numbers from the global generator of torch, NumPy or Python, which the run "
        "seeds, or from "
        "one seeded by (seed, epoch, row).",
        Severity.WARNING,
    )


def _weights(job: CheckedJob) -> _Fault | None:
    """Build the model twice with one seed, and once with another."""
    first, calls = _build(job, job.recipe.seed)
    again, _ = _build(job, job.recipe.seed)
    differing = [name for name in first if not _equal(first[name], again.get(name))]
    if differing:
        return _Fault(
            "seeds_wrong",
            f"{len(differing)} initial weights differ when the model is built again with the same "
            f"seed, such as {differing[0]}",
            "Initialise weights with torch's global generator, which the run seeds.",
        )
    other, other_calls = _build(job, job.recipe.seed + 1)
    is_random = any(name in other and not _equal(first[name], other[name]) for name in first)
    fixed = [call for call in calls if call in other_calls]
    if is_random or not fixed:
        return None
    return _Fault(
        "seeds_wrong",
        f"build_model calls {fixed[0]}, so the initial weights are the same for every seed of the "
        "recipe",
        "Remove this call: torch is seeded with recipe.seed before build_model.",
        Severity.WARNING,
    )


def _build(job: CheckedJob, seed: int) -> tuple[dict[str, Tensor], list[str]]:
    recipe = replace(job.recipe, seed=seed)
    recipe = replace(recipe, device=replace(recipe.device, compile=False))
    with untouched(), _noting_seeds() as calls:
        model = make_model(recipe, copy.copy(job.task), job.device)
    whole = itertools.chain(model.named_parameters(), model.named_buffers())
    kept = set(model.state_dict())  # non-persistent buffers may hold anything
    tensors = {name: tensor.detach() for name, tensor in whole if name in kept}
    return tensors, [call for call in calls if not call.endswith(f"({seed})")]


@contextmanager
def _noting_seeds() -> Iterator[list[str]]:
    """Record calls of the global seeding functions, such as "torch.manual_seed(42)"."""
    calls: list[str] = []
    places: list[tuple[Any, str, str]] = [
        (torch, "manual_seed", "torch.manual_seed"),
        (np.random, "seed", "numpy.random.seed"),
        (random, "seed", "random.seed"),
    ]
    originals = [getattr(holder, name) for holder, name, _ in places]

    def noter(original: Any, shown: str) -> Any:
        def note(*args: Any, **more: Any) -> Any:
            calls.append(f"{shown}({args[0] if args else ''})")
            return original(*args, **more)

        return note

    for (holder, name, shown), original in zip(places, originals, strict=True):
        setattr(holder, name, noter(original, shown))
    try:
        yield calls
    finally:
        for (holder, name, _), original in zip(places, originals, strict=True):
            setattr(holder, name, original)


# --- within a step


def _augmentation(job: CheckedJob) -> _Fault | None:
    """Augment one batch repeatedly: equal for one seed and epoch, different for others."""
    batch = job.train_batches(1)[0]
    first = _augmented(job, batch, epoch=0, state=0)
    if not _equal(first, _augmented(job, batch, epoch=0, state=0)):
        return _Fault(
            "seeds_wrong",
            "augment() returns a different batch when it is called again with the same seed, epoch "
            "and random states: it uses an unseeded generator",
            _FIX_AUGMENT,
        )
    if not _equal(first, _augmented(job, batch, epoch=0, state=1)):
        return _Fault(
            "seeds_wrong",
            "augment() takes random numbers from the global random state instead of computing them "
            "from (seed, epoch, ids), so a resumed run is augmented differently",
            _FIX_AUGMENT,
            Severity.WARNING,
        )
    if not _equal(first, _augmented(job, batch, epoch=1, state=0)) or not _draws(job, batch):
        return None
    return _Fault(
        "seeds_wrong",
        "augment() uses the same random numbers in every epoch, so each example is always changed "
        "in the same way",
        _FIX_AUGMENT,
        Severity.WARNING,
    )


def _augmented(job: CheckedJob, batch: Batch, *, epoch: int, state: int) -> Any:
    changed = augmented_again(job, batch, epoch=epoch, state=state)
    return changed.inputs, changed.targets


def _draws(job: CheckedJob, batch: Batch) -> bool:
    """Return True if copies of one example differ after augmentation, so it is random."""
    num = min(NUM_ROWS, batch.ids.numel())
    copies = take(batch, torch.zeros(num, dtype=torch.int64))._replace(ids=batch.ids[:num])
    inputs = _augmented(job, copies, epoch=0, state=0)[0]
    return any(
        len(tensor) == num and not _equal(tensor, tensor[:1].expand_as(tensor))
        for tensor in tensors_of(inputs)
    )


def _resets(job: CheckedJob) -> _Fault | None:
    """Check if a step sets a global seed, so that dropout draws the same each time."""
    model = job.model()
    with untouched(), torch.no_grad(), _noting_seeds() as calls:
        batch = job.augmented(job.train_batches(1)[0])
        job.loss(model, batch)
        job.loss(model, batch)
    fixed = sorted({call for call in calls if calls.count(call) > 1})
    if not fixed:
        return None
    return _Fault(
        "seeds_wrong",
        f"every step calls {fixed[0]}, so dropout uses the same random numbers in every step",
        "Remove this call: the run is seeded once, before training.",
        Severity.WARNING,
    )


def _equal(a: Any, b: Any) -> bool:
    """Return True if two nested values hold equal tensors; NaN equals NaN."""
    first, second = _flat(a), _flat(b)
    if len(first) != len(second):
        return False
    return all(
        x.shape == y.shape and torch.equal(torch.nan_to_num(x), torch.nan_to_num(y))
        for x, y in zip(first, second, strict=True)
    )


def _flat(value: Any) -> list[Tensor]:
    parts = value if isinstance(value, tuple) else (value,)
    made = [torch.from_numpy(part) if isinstance(part, np.ndarray) else part for part in parts]
    return [tensor for part in made for tensor in tensors_of(part)]


def broken() -> Example:
    """Initial weights from an unseeded NumPy generator."""

    class Unseeded(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            assert isinstance(model, nn.Sequential)
            head = model[-1]
            assert isinstance(head, nn.Linear)
            drawn = np.random.default_rng().normal(0, 0.05, tuple(head.weight.shape))
            with torch.no_grad():
                head.weight.copy_(torch.from_numpy(drawn))
            return model

    return Example(task=Unseeded())


CHECK = Check(
    name="seeds",
    reason="Unseeded draws are not reproducible, and if the seed has no effect, a comparison over "
    "seeds is worthless.",
    source="Godbole et al. 2023, Deep Learning Tuning Playbook; PyTorch, notes on reproducibility",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("seeds_wrong",),
    run=seeds,
    broken=broken,
    least_s=3.0,
)

"""Validation reads the same examples each time: not augmented, not shuffled."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.sample import tensors_of
from stepladder.checks.evidence.spread import by_row, coverage, spread_rows
from stepladder.checks.examples import Example, SoundPictures, draw
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.data.batch import Batch
from stepladder.data.reading.examples import ArrivalSource
from stepladder.records.findings import Severity

_NUM_READ = 48
_NUM_ARRIVED = 64


def validation_repeats(job: CheckedJob) -> Answer:
    """Read part of validation twice, and compare."""
    source = job.source(Split.VAL)
    if source is None:
        return not_applicable("there is no validation split")
    if isinstance(source, ArrivalSource):
        return _of_stream(source)
    assert by_row(job, Split.VAL)
    rows = spread_rows(len(source), _NUM_READ)
    differing: list[int] = []
    num_shuffled = 0
    for part in range(0, len(rows), 16):
        some = rows[part : part + 16]
        first, second = job.rows(Split.VAL, some), job.rows(Split.VAL, some)
        places = [place for place in range(len(some)) if _differs(first, second, place)]
        differing += [int(some[place]) for place in places]
        num_shuffled += sum(_target_differs(first, second, place) for place in places)
    seen = coverage(len(rows), len(source), Split.VAL)
    if not differing:
        return passed(
            f"{len(rows)} validation examples are the same when read again", coverage=seen
        )
    what = "with other targets (rows are shuffled)" if num_shuffled else "as if augmented"
    return found(
        "augmented_validation",
        f"{len(differing)} of {len(rows)} validation examples differ when read again, {what}, "
        "so metrics differ between two validations by chance",
        fix="Use a deterministic transform and a fixed order for validation.",
        examples=tuple(job.describe(Split.VAL, row) for row in differing[:6]),
        coverage=seen,
        num_different=len(differing),
        num_shuffled=num_shuffled,
    )


def _differs(first: Batch, second: Batch, place: int) -> bool:
    values = tensors_of(first.inputs), tensors_of(second.inputs)
    pairs = zip(*values, strict=False)
    return any(not _equal(a[place], b[place]) for a, b in pairs) or _target_differs(
        first, second, place
    )


def _target_differs(first: Batch, second: Batch, place: int) -> bool:
    values = tensors_of(first.targets), tensors_of(second.targets)
    pairs = zip(*values, strict=False)
    return any(
        not a.is_floating_point() and a.dim() > 0 and not _equal(a[place], b[place])
        for a, b in pairs
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    """Compare, NaN equal to NaN."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())  # noqa: PLR0124


def _of_stream(source: ArrivalSource) -> Answer:
    """Compare the first examples of two passes over an IterableDataset."""
    passes: list[list[Any]] = [
        list(itertools.islice(source.arrivals(), _NUM_ARRIVED)) for _ in range(2)
    ]
    num = min(len(one) for one in passes)
    if num == 0:
        return not_applicable("the stream is empty in a second pass")
    first, second = (source.collate(one[:num]) for one in passes)
    batches = [Batch(part.inputs, part.targets, torch.arange(num)) for part in (first, second)]
    differing = [place for place in range(num) if _differs(batches[0], batches[1], place)]
    seen = f"the first {num} examples"
    if not differing:
        return passed("two passes over validation begin with the same examples", coverage=seen)
    return found(
        "augmented_validation",
        f"{len(differing)} of the first {num} validation examples differ in a second pass: the "
        "stream is shuffled or augmented",
        fix="Use a deterministic transform and a fixed order for validation.",
        coverage=seen,
        num_different=len(differing),
    )


class _Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Pictures with random flips, as in training."""

    def __init__(self, pictures: Tensor, labels: Tensor) -> None:
        self.pictures, self.labels = pictures, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        picture = self.pictures[row]
        return picture.flip(-1) if torch.rand(()) < 0.5 else picture, self.labels[row]


def broken() -> Example:
    """Validation with the random transform of training."""

    class Mirrored(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            return _Noisy(*draw(split)) if split is Split.VAL else super().data(split)

    return Example(task=Mirrored())


CHECK = Check(
    name="validation_repeats",
    reason="A validation that differs each time adds noise to every decision based on it.",
    source="Godbole et al. 2023, Deep Learning Tuning Playbook (step-to-step variance)",
    severity=Severity.WARNING,
    tier=Tier.FULL,
    faults=("augmented_validation",),
    run=validation_repeats,
    broken=broken,
    least_s=1.0,
)

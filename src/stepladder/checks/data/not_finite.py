"""No NaN or infinity in inputs, in targets that make the loss non-finite, or in the loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, passed
from stepladder.checks.evidence.finite import Gaps, first_gaps, lost_loss
from stepladder.checks.evidence.spread import spread_sample
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.data.batch import Batch
from stepladder.records.findings import Severity


def not_finite(job: CheckedJob) -> Answer:
    """Look for NaN and infinity in a sample of train and validation, and in the first loss."""
    coverage = []
    num_numbers = 0
    for split in (Split.TRAIN, Split.VAL):
        batches, seen = _some(job, split)
        if seen:
            coverage.append(seen)
        gaps = Gaps()
        for batch in batches:
            gaps.add(batch)
        num_numbers += gaps.num_numbers
        answer = first_gaps(job, split, gaps, coverage=seen)
        if answer is not None:
            return answer
    answer = _of_loss(job)
    if answer is not None:
        return answer
    return passed(
        f"all {num_numbers} values are finite" if num_numbers else "the data are integers",
        coverage=", ".join(coverage) or None,
    )


def _of_loss(job: CheckedJob) -> Answer | None:
    try:
        return lost_loss(job)
    except Exception:  # other checks report a loss that fails
        return None


def _some(job: CheckedJob, split: Split) -> tuple[tuple[Batch, ...], str | None]:
    seen = spread_sample(job, split)
    if seen is not None:
        return seen.batches, seen.coverage
    if split is Split.TRAIN:
        batches = job.train_batches(2)
        return tuple(batches), f"the first {len(batches)} batches"
    return (), None


def broken() -> Example:
    """A NaN in one picture of twenty, as after a division by a standard deviation of 0."""

    class Holes(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            pictures[::20, 0, 0, 0] = torch.nan
            return labelled(pictures, numbers)

    return Example(task=Holes())


CHECK = Check(
    name="not_finite",
    reason="One NaN makes the loss NaN, and then all weights.",
    source="Karpathy 2019, A Recipe for Training Neural Networks: become one with the data",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("not_finite_data", "loss_not_finite"),
    run=not_finite,
    broken=broken,
)

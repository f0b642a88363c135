"""Like `not_finite`, over as much of the data as time allows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.finite import Gaps, first_gaps, is_loss_finite
from stepladder.checks.evidence.sample import tensors_of
from stepladder.checks.evidence.spread import by_row, coverage, read_chunks, spread_sample
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.measuring.probe import untouched
from stepladder.records.findings import Severity

_MAX_S = 2.0  # a split


def not_finite_all(job: CheckedJob) -> Answer:
    """Look for NaN and infinity in all of train and validation, as far as time allows."""
    coverages, num_numbers = [], 0
    for split in (Split.TRAIN, Split.VAL):
        if not by_row(job, split) or not _has_floats(job, split):
            continue
        source = job.source(split)
        assert source is not None
        gaps = Gaps()
        seconds = min(_MAX_S, job.left_s() / 10)
        for batch in read_chunks(job, split, np.arange(len(source)), seconds=seconds):
            gaps.add(batch)
        seen = coverage(gaps.num_examples, len(source), split)
        answer = first_gaps(job, split, gaps, coverage=seen)
        if answer is not None:
            return answer
        num_numbers += gaps.num_numbers
        coverages += [seen] if seen else []
    try:
        answer = _losses(job)
    except Exception:  # other checks report a loss that fails
        answer = None
    if answer is not None:
        return answer
    if not num_numbers:
        return not_applicable("the data are integers, or cannot be read by index")
    return passed(f"all {num_numbers} values are finite", coverage=", ".join(coverages) or None)


def _losses(job: CheckedJob) -> Answer | None:
    """Compute the loss of as many training examples as time allows."""
    if not by_row(job, Split.TRAIN) or not is_loss_finite(job):
        return None  # `not_finite` reports the first batch
    source, model = job.sources.train, job.model().eval()
    lost: list[int] = []
    num, seconds = 0, min(_MAX_S, job.left_s() / 10)
    with untouched(model), torch.no_grad():
        for batch in read_chunks(job, Split.TRAIN, np.arange(len(source)), seconds=seconds):
            losses = job.loss(model, job.augmented(batch))
            num += losses.numel()
            lost += batch.ids.cpu()[~torch.isfinite(losses).cpu()].tolist()
    if not lost:
        return None
    return found(
        "loss_not_finite",
        f"the untrained model has a NaN or infinite loss on {len(lost)} of {num} training "
        "examples: training would stop at the first batch that contains one",
        fix="Look in the model and in loss() for what fails on these examples: a division by 0, "
        "log(0), or a softmax whose inputs are all masked.",
        examples=tuple(job.describe(Split.TRAIN, row) for row in lost[:6]),
        coverage=coverage(num, len(source), Split.TRAIN),
        num=len(lost),
    )


def _has_floats(job: CheckedJob, split: Split) -> bool:
    seen = spread_sample(job, split)
    if seen is None:
        return False
    values = [*tensors_of(seen.batches[0].inputs), *tensors_of(seen.batches[0].targets)]
    return any(value.is_floating_point() for value in values)


def broken() -> Example:
    """An infinity in a single training picture."""

    class OneHole(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            if split is Split.TRAIN:
                pictures[101, 1, 2, 3] = torch.inf
            return labelled(pictures, numbers)

    return Example(task=OneHole())


CHECK = Check(
    name="not_finite_all",
    reason="One NaN makes the loss NaN, and then all weights.",
    source="Karpathy 2019, A Recipe for Training Neural Networks: become one with the data",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("not_finite_data", "loss_not_finite"),
    run=not_finite_all,
    broken=broken,
    least_s=1.0,
)

"""Validation has all classes of train."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.classes import Labels, class_labels, class_name
from stepladder.checks.evidence.spread import coverage, read_chunks
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.records.findings import Severity
from stepladder.training.output.wording import percent

_EXPECTED = 1.0  # examples of a class in validation, if it were a random sample of train
_MAX_NAMED = 6
_HARDLY_EVER = 1e-4  # probability that a random split of this size lacks one of the classes
_MAX_DRAWN = 1024
_READ_S = 0.3  # seconds to read the rows of a split


def missing_classes(job: CheckedJob) -> Answer:
    """Compare the classes of validation with those of train. Labels of test are not read."""
    train, val = class_labels(job, Split.TRAIN), class_labels(job, Split.VAL)
    if train is None or val is None:
        return not_applicable("there is no validation split with one class per example")
    if not val.is_all:
        return _of_samples(job, train, val)
    counts = np.bincount(train.values[train.values >= 0])
    has_any = np.bincount(val.values[val.values >= 0], minlength=len(counts))
    known = set(np.flatnonzero(counts).tolist())
    unknown = [label for label in np.flatnonzero(has_any).tolist() if label not in known]
    if unknown and train.is_all:
        return found(
            "missing_classes",
            f"validation has {len(unknown)} classes that are not in train: {_names(job, unknown)}",
            fix="Split the data again so that every class is in train, or remove the examples of "
            "these classes from validation.",
            num_classes=len(counts),
            missing=[class_name(job, label) for label in unknown],
        )
    missing = np.flatnonzero((counts > 0) & (has_any[: len(counts)] == 0)).tolist()
    expected = counts / counts.sum() * len(val.values)
    telling = [label for label in missing if expected[label] >= _EXPECTED]
    num = int((counts > 0).sum())
    if telling:
        return found(
            "missing_classes",
            f"validation has no examples of {len(missing)} of the {num} classes of train: "
            f"{_names(job, missing)}; the accuracy on them is not measured",
            fix="Use a stratified split, so that validation has examples of each class.",
            num_classes=num,
            missing=[class_name(job, label) for label in missing],
        )
    if len(missing):
        return passed(
            f"validation has no examples of {len(missing)} of the {num} classes, but they are too "
            "rare to be expected there",
            num_classes=num,
        )
    return passed(f"validation has all {num} classes of train", num_classes=num)


def _of_samples(job: CheckedJob, train: Labels, val: Labels) -> Answer:
    """Compare samples if labels are not known in advance; then read more, in random order.

    An evenly spaced sample of periodic labels may hit the same class every time, so a suspicion
    is confirmed with rows drawn at random.
    """
    unknown = not_applicable("not all labels of the validation split are known without reading it")
    if not _seem_lacking(train, val) and not _seem_lacking(val, train):
        return unknown
    train, val = (
        one if one.is_all else _drawn(job, split)
        for one, split in ((train, Split.TRAIN), (val, Split.VAL))
    )
    seen = coverage(len(val.rows), len(job.source(Split.VAL) or ()), Split.VAL)
    for one, other, words in (
        (
            train,
            val,
            "none of {num} validation examples is of {names}, but {share} of train are",
        ),
        (
            val,
            train,
            "none of {num} training examples is of {names}, but {share} of validation are",
        ),
    ):
        lacking = _lacking(one, other)
        if lacking:
            share = float(np.isin(one.values, lacking).mean())
            said = words.format(
                num=len(other.values), names=_names(job, lacking), share=percent(share, 0)
            )
            return found(
                "missing_classes",
                said,
                fix="Split at random or stratified, so that each class is in every split.",
                coverage=seen,
                missing=[class_name(job, label) for label in lacking],
            )
    return unknown


def _seem_lacking(one: Labels, other: Labels) -> bool:
    """Return True if a class of one is missing from the other, where it is expected."""
    kinds, counts = np.unique(one.values[one.values >= 0], return_counts=True)
    expected = counts / max(1, counts.sum()) * len(other.values)
    return bool((~np.isin(kinds, other.values) & (expected >= _EXPECTED)).any())


def _lacking(one: Labels, other: Labels) -> list[int]:
    """List missing classes that a random sample of the other's size would almost surely have."""
    kinds, counts = np.unique(one.values[one.values >= 0], return_counts=True)
    share = counts / max(1, counts.sum())
    is_sure = len(kinds) * (1 - share) ** len(other.values) < _HARDLY_EVER
    return [int(kind) for kind in kinds[is_sure] if kind not in other.values]


def _drawn(job: CheckedJob, split: Split) -> Labels:
    """Read the classes of examples in random order, as many as time allows."""
    source = job.source(split)
    assert source is not None
    rows = np.random.default_rng(0).permutation(len(source))[:_MAX_DRAWN]
    parts = list(read_chunks(job, split, rows, seconds=_READ_S))
    values = torch.cat([part.targets for part in parts]).cpu().numpy().astype(np.int64)
    read = torch.cat([part.ids for part in parts]).numpy()
    return Labels(rows=read, values=values, is_all=len(read) == len(source))


def _names(job: CheckedJob, labels: list[int]) -> str:
    names = [class_name(job, label) for label in labels[:_MAX_NAMED]]
    more = len(labels) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def broken() -> Example:
    """A validation split without the last of four classes."""

    class ThreeOfFour(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            is_in = numbers < 3 if split is Split.VAL else numbers >= 0
            return labelled(pictures[is_in], numbers[is_in])

    return Example(task=ThreeOfFour())


CHECK = Check(
    name="missing_classes",
    reason="A class that is missing from validation counts neither in early stopping nor in the "
    "accuracy.",
    source="Kohavi 1995, A Study of Cross-Validation and Bootstrap (stratification)",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("missing_classes",),
    run=missing_classes,
    broken=broken,
)

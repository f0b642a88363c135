"""Validation has every class that train has."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.classes import class_labels, class_name
from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.records.findings import Severity

_EXPECTED = 1.0  # examples of a class that validation would have, were it a fair draw from train
_MAX_NAMED = 6


def missing_classes(job: CheckedJob) -> Answer:
    """Compare the classes of validation with those of train. Labels of test are not read."""
    train, val = class_labels(job, Split.TRAIN), class_labels(job, Split.VAL)
    if train is None or val is None:
        return not_applicable("there is no validation split whose examples have one class each")
    counts = np.bincount(train.values[train.values >= 0])
    has_any = np.bincount(val.values[val.values >= 0], minlength=len(counts))
    if not val.is_all:
        return not_applicable("the classes of validation are not all known without reading it")
    known = set(np.flatnonzero(counts).tolist())
    unknown = [label for label in np.flatnonzero(has_any).tolist() if label not in known]
    if unknown and train.is_all:
        return found(
            "missing_classes",
            f"validation has {len(unknown)} classes that train lacks: {_names(job, unknown)}",
            fix="Split so that every class is in train, or leave these out of validation.",
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
            f"validation lacks {len(missing)} of the {num} classes of train: "
            f"{_names(job, missing)}; nothing is known of the accuracy on them",
            fix="Put examples of each class into validation: split by class.",
            num_classes=num,
            missing=[class_name(job, label) for label in missing],
        )
    if len(missing):
        return passed(
            f"validation lacks {len(missing)} of {num} classes, each too rare for its size to tell",
            num_classes=num,
        )
    return passed(f"validation has all {num} classes of train", num_classes=num)


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
    reason="Of a class that validation lacks, neither stopping nor any accuracy knows anything.",
    source="Kohavi 1995, A Study of Cross-Validation and Bootstrap (stratification)",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("missing_classes",),
    run=missing_classes,
    broken=broken,
)

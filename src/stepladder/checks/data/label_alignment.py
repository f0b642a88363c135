"""Labels belong to their inputs: a probe predicts them better than permuted labels."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.classes import class_labels
from stepladder.checks.evidence.probe import NUM_DEALT, Probed, labels_of, probe, probed
from stepladder.checks.evidence.spread import read_chunks, vectors
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.data.batch import Batch
from stepladder.records.findings import Severity
from stepladder.stats.clusters import dependence_p, find_clusters
from stepladder.stats.ridge import predict
from stepladder.stats.two_samples import principal_parts
from stepladder.training.output.wording import percent

_LEAST_TRAIN = 48
_LEAST_VAL = 32
_CLEAR_GAIN = 0.15  # above chance, to prove that a probe can learn from these inputs
_SHIFTS = (-2, -1, 1, 2)  # offsets of labels, in rows
_NUM_AUGMENTED = 256
_AUGMENT_S = 1.5
_MOVED = 0.2  # of the distance to its own input: below, an input is that of another example
_STRONG = 0.5  # of the way from chance to 1: a probe whose failure is informative
_SLACK = 4.0  # standard errors
_MAX_GROUPS = 20
_LEAST_OF_GROUP = 10
_CLEARER = 0.1  # than in a single cluster: see `Clusters.clearness`
_SAME_SIZES = 0.1  # of the examples may be in other groups, by sizes alone
_INDEPENDENT = 0.05

_FIX = "Check the code that sorts, shuffles or filters inputs and labels separately."


def label_alignment(job: CheckedJob) -> Answer:
    """Fit probes to the labels of train and validation, each a control of the other."""
    train = probed(job, Split.TRAIN)
    if train is None or len(train.rows) < _LEAST_TRAIN:
        return not_applicable(
            "there are too few training examples with a class or a number as target"
        )
    val = probed(job, Split.VAL)
    if train.is_clear:
        return _augmented(job, train) or _of_val(train, val) or _fine(train, val)
    answer = _of_train(train, val) or _slipped(job, train) or _of_groups(train)
    if answer is not None:
        return answer
    return not_applicable(
        f"a probe (a small classifier) cannot predict the labels of {len(train.rows)} training "
        f"inputs ({_of(train)}), and nothing shows whether that is due to the labels or to the "
        "probe"
    )


def _of(one: Probed) -> str:
    return f"balanced accuracy {one.accuracy:.2f}, {one.chance:.2f} with permuted labels"


def _fine(train: Probed, val: Probed | None) -> Answer:
    more = f"; validation: {_of(val)}" if val is not None else ""
    return passed(
        f"a probe predicts the labels of {len(train.rows)} training inputs, cross-validated: "
        f"{_of(train)}{more}",
        accuracy=train.accuracy,
        chance=train.chance,
        p=train.p,
    )


def _of_train(train: Probed, val: Probed | None) -> Answer | None:
    """Find random labels in train, if those of validation can be learnt from fewer examples."""
    if val is None or not val.is_clear or val.accuracy < val.chance + _CLEAR_GAIN:
        return None
    if len(val.rows) < _LEAST_VAL or len(train.rows) < len(val.rows):
        return None
    return found(
        "labels_misaligned",
        f"a probe (a small classifier) learns the labels of {len(val.rows)} validation inputs "
        f"({_of(val)}) but not those of {len(train.rows)} training inputs ({_of(train)}), so the "
        "training labels probably belong to other inputs",
        fix=_FIX,
        train_accuracy=train.accuracy,
        val_accuracy=val.accuracy,
        chance=train.chance,
    )


def _slipped(job: CheckedJob, train: Probed) -> Answer | None:
    """Find labels that are shifted by a few rows."""
    known = class_labels(job, Split.TRAIN)
    if known is None or len(known.rows) != len(job.sources.train) or not known.is_all:
        return None
    for shift in _SHIFTS:
        slipped = known.values[np.roll(np.arange(len(known.values)), -shift)][train.rows]
        other = probe(train.vectors, slipped, rows=train.rows, by_trunk=train.by_trunk)
        if other.is_clear and other.accuracy > other.chance + _CLEAR_GAIN:
            return found(
                "labels_misaligned",
                f"training labels are shifted: each belongs to the example {abs(shift)} "
                f"row{'s' if abs(shift) > 1 else ''} {'before' if shift > 0 else 'after'}. A probe "
                f"(a small classifier) reaches {_of(other)} with the labels shifted back, and "
                f"{_of(train)} now",
                fix="Check for an off-by-one error where inputs and labels are paired.",
                accuracy=train.accuracy,
                slipped_accuracy=other.accuracy,
                shift=shift,
            )
    return None


def _of_groups(train: Probed) -> Answer | None:
    """Find labels that are independent of clusters with the number and sizes of the classes.

    Clusters of other numbers or sizes may be anything, such as days or cameras.
    """
    _, sizes = np.unique(train.labels, return_counts=True)
    num = len(sizes)
    if num > _MAX_GROUPS or len(train.rows) < _LEAST_OF_GROUP * num:
        return None
    parts = principal_parts(train.vectors, max(2, num))
    if not parts.size:
        return None  # all inputs are the same
    groups = find_clusters(parts, num, seed=0)
    if groups.clearness < groups.clearness_by_chance + _CLEARER:
        return None
    found_sizes = np.bincount(groups.marks, minlength=num)
    differing = np.abs(np.sort(sizes) - np.sort(found_sizes)).sum() / 2 / len(train.rows)
    p = dependence_p(groups.marks, train.labels, num_draws=NUM_DEALT, seed=0)
    if differing > _SAME_SIZES or p < _INDEPENDENT:
        return None
    return found(
        "labels_misaligned",
        f"{len(train.rows)} training inputs form {num} clusters that are as large as the {num} "
        f"classes, but the labels do not follow the clusters ({_of(train)}), so the labels "
        "probably belong to other inputs",
        fix=_FIX,
        severity=Severity.WARNING,
        clearness=groups.clearness,
        clearness_by_chance=groups.clearness_by_chance,
        p=p,
    )


def _of_val(train: Probed, val: Probed | None) -> Answer | None:
    """Find random labels in validation, or labels with another numbering."""
    if val is None or len(val.rows) < _LEAST_VAL or train.vectors.shape[1] != val.vectors.shape[1]:
        return None
    if train.accuracy < train.chance + _STRONG * (1 - train.chance):
        return None  # the failure of a weak probe means nothing
    predicted = _predict(train, val)
    hits = _balanced(predicted, val.labels)
    noise = _SLACK * math.sqrt(train.accuracy * (1 - train.accuracy) / len(val.rows) + 1e-4)
    if hits > train.chance + (train.accuracy - train.chance) / 4 or train.accuracy - hits < noise:
        return None
    numbers: dict[str, Any] = {
        "train_accuracy": train.accuracy,
        "val_accuracy": hits,
        "own": val.accuracy,
    }
    renamed = _balanced(_renamed(predicted, val.labels), val.labels)
    if val.is_clear and renamed > train.chance + _STRONG * (train.accuracy - train.chance):
        return found(
            "labels_misaligned",
            "a probe (a small classifier) that was fitted to the training data has a balanced "
            f"accuracy of {percent(hits, 0)} on validation, but of {percent(renamed, 0)} if its "
            "classes are numbered in another order: the two splits number their classes "
            "differently",
            fix="Make the mapping from class names to numbers once, and use it for every split.",
            **numbers,
        )
    if val.is_clear:
        return None  # its labels fit its inputs: a distribution shift, which another check reports
    return found(
        "labels_misaligned",
        f"a probe (a small classifier) learns the labels of {len(train.rows)} training inputs "
        f"({_of(train)}), but its balanced accuracy on validation is {percent(hits, 0)}, and a "
        f"probe fitted to validation fails too ({_of(val)}), so the validation labels probably "
        "belong to other inputs",
        fix=_FIX,
        **numbers,
    )


def _predict(train: Probed, val: Probed) -> NDArray[np.int64]:
    kinds, marks = np.unique(train.labels, return_inverse=True)
    one_hot = np.eye(len(kinds))[marks]
    mean = one_hot.mean(axis=0)
    scores = predict(train.vectors, one_hot - mean, val.vectors) + mean
    predicted: NDArray[np.int64] = kinds[scores.argmax(axis=1)]
    return predicted


def _balanced(predicted: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    return float(np.mean([(predicted[labels == k] == k).mean() for k in np.unique(labels)]))


def _renamed(predicted: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber predicted classes one to one to match most labels, greedily."""
    kinds = itertools.product(np.unique(predicted).tolist(), np.unique(labels).tolist())
    counted = [(int(((predicted == a) & (labels == b)).sum()), a, b) for a, b in kinds]
    names: dict[int, int] = {}
    for _, one, other in sorted(counted, reverse=True):
        if one not in names and other not in names.values():
            names[one] = other
    return np.array([names.get(int(one), -1) for one in predicted], dtype=np.int64)


def _augmented(job: CheckedJob, train: Probed) -> Answer | None:
    """Find an augmentation that permutes inputs within a batch but not their targets."""
    num_moved = num_wrong = num = 0
    rows = train.rows[:: max(1, len(train.rows) // _NUM_AUGMENTED)]
    for batch in read_chunks(job, Split.TRAIN, rows, seconds=_AUGMENT_S):
        changed = job.augmented(batch)
        if changed.inputs is batch.inputs and changed.targets is batch.targets:
            return None
        sides = vectors(batch.inputs), vectors(changed.inputs)
        labels = [_marks(batch), _marks(changed)]
        if sides[0] is None or sides[1] is None or sides[0].shape != sides[1].shape:
            return None
        if labels[0] is None or labels[1] is None:
            return None  # soft labels, as in MixUp
        apart = np.linalg.norm(sides[1][:, None] - sides[0][None], axis=2)  # (after, before)
        nearest = apart.argmin(axis=1)
        is_moved = apart.min(axis=1) < _MOVED * np.diag(apart)
        num += len(nearest)
        num_moved += int(is_moved.sum())
        num_wrong += int((is_moved & (labels[1] != labels[0][nearest])).sum())
    if num_moved < _STRONG * num or num_wrong < _STRONG * num_moved * (1 - train.chance):
        return None
    return found(
        "labels_misaligned",
        f"augment() moved {num_moved} of the {num} inputs of a batch to the place of another "
        f"example, but not their labels, so {num_wrong} of them have a wrong label",
        fix="In augment(), apply the same permutation to inputs and targets.",
        num_moved=num_moved,
        num_wrong=num_wrong,
    )


def _marks(batch: Batch) -> NDArray[np.int64] | None:
    targets = batch.targets
    return labels_of(targets.cpu()) if isinstance(targets, Tensor) else None


def broken() -> Example:
    """Training labels shuffled separately from their pictures."""

    class Apart(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(1))
            return labelled(pictures, numbers[order] if split is Split.TRAIN else numbers)

    return Example(task=Apart())


CHECK = Check(
    name="label_alignment",
    reason="A model memorises labels that do not belong to their inputs, and the loss still falls.",
    source="Alain and Bengio 2016, arXiv:1610.01644 (linear probes); Ojala and Garriga 2010, JMLR "
    "11 (permutation tests)",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("labels_misaligned",),
    run=label_alignment,
    broken=broken,
    least_s=4.0,
)

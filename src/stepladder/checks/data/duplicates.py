"""No example occurs many times, or in more than one split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.copies import Contents, contents, copies_between, copies_within
from stepladder.checks.evidence.spread import coverage, described
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.data.prepare.near_duplicates import count_near
from stepladder.records.findings import Severity
from stepladder.training.output.wording import percent

_WRONG_FRAC = 0.05  # of a held-out split is in train too: its accuracy means little
_WORTH_FRAC = 0.01  # public test sets have up to 3 %, which seldom changes the accuracy visibly
_LEAST = 2
_NEARLY_ALL = 0.5  # of train is one example, or blank
_SAME_FEATURES = 0.98  # cosine of centred features
_SAME_CLASS_FRAC = 0.7  # of similar pairs within train
_MAX_NAMED = 6
_PAIRS = ((Split.TRAIN, Split.VAL), (Split.TRAIN, Split.TEST), (Split.VAL, Split.TEST))


def duplicates(job: CheckedJob) -> Answer:
    """Compare examples byte for byte, and pictures by similarity."""
    train = contents(job, Split.TRAIN)
    if train is None:
        return not_applicable("examples have no tensors, or the dataset is a stream")
    answers = [_leak(job, train, split) for split in (Split.VAL, Split.TEST)]
    answers += [_chosen_on_test(job)]
    answers += [_groups(job, *pair) for pair in _PAIRS]
    answers += [_within(job, train)] if train.is_telling else []
    alarms = [answer for answer in answers if answer is not None]
    if alarms:
        return min(alarms, key=lambda answer: answer.severity is not None)
    num_copies = sum(len(group) - 1 for group in copies_within(train))
    if not train.is_telling and num_copies > _WORTH_FRAC * len(train.rows):
        return not_applicable("examples are so small that some are expected to be equal by chance")
    held_out = [split.value for split in (Split.VAL, Split.TEST) if contents(job, split)]
    return passed(
        f"{num_copies} of {len(train.rows)} training examples are duplicates; at most a few are "
        f"also in {' or '.join(held_out) or 'another split'}",
        coverage=coverage(len(train.rows), train.num_all, Split.TRAIN),
        num_copies=num_copies,
    )


def _leak(job: CheckedJob, train: Contents, split: Split) -> Answer | None:
    """Find held-out examples that are in train, or nearly identical to one of train."""
    held_out = contents(job, split)
    if held_out is None:
        return None
    num = len(held_out.rows)
    pairs = copies_between(train, held_out)
    seen = _coverage(held_out, split) or _coverage(train, Split.TRAIN)
    if len(pairs) >= _LEAST and len(pairs) >= _WORTH_FRAC * num:
        return found(
            "split_leakage",
            f"{len(pairs)} of {num} {split.value} examples ({percent(len(pairs) / num)}) are also "
            "in train, byte for byte: the accuracy on them measures memorisation",
            fix="Drop them from train, or deduplicate by content before splitting.",
            severity=None if len(pairs) >= _WRONG_FRAC * num else Severity.WARNING,
            examples=_named(job, split, pairs),
            coverage=seen,
            num_leaked=len(pairs),
            num_held_out=num,
        )
    near = _near(job, train, held_out, split)
    if len(near) < _LEAST or len(near) < _WORTH_FRAC * num:
        return None
    return found(
        "split_leakage",
        f"{len(near)} of {num} {split.value} pictures ({percent(len(near) / num)}) are near "
        "duplicates of a training picture: the accuracy on them is optimistic",
        fix="Keep shots of one scene in one split, for example with --prepare.group-by.",
        severity=Severity.WARNING,
        examples=_named(job, split, near),
        coverage=seen,
        num_near=len(near),
        num_held_out=num,
    )


def _chosen_on_test(job: CheckedJob) -> Answer | None:
    """Find test examples that are also in validation, which early stopping uses."""
    val, test = contents(job, Split.VAL), contents(job, Split.TEST)
    if val is None or test is None:
        return None
    num, pairs = len(test.rows), copies_between(val, test)
    if len(pairs) < _LEAST or len(pairs) < _WRONG_FRAC * num:
        return None
    return found(
        "split_leakage",
        f"{len(pairs)} of {num} test examples ({percent(len(pairs) / num)}) are also in val, byte "
        "for byte: early stopping and model selection use test examples",
        fix="Drop them from val.",
        severity=Severity.WARNING,
        examples=_named(job, Split.TEST, pairs, of=Split.VAL),
        coverage=_coverage(test, Split.TEST) or _coverage(val, Split.VAL),
        num_shared=len(pairs),
        num_held_out=num,
    )


def _coverage(some: Contents, split: Split) -> str | None:
    return coverage(len(some.rows), some.num_all, split)


def _named(
    job: CheckedJob, split: Split, pairs: list[tuple[int, int]], *, of: Split = Split.TRAIN
) -> tuple[str, ...]:
    return tuple(
        f"{job.describe(split, row)} = {job.describe(of, other)}"
        for row, other in pairs[:_MAX_NAMED]
    )


def _near(
    job: CheckedJob, train: Contents, held_out: Contents, split: Split
) -> list[tuple[int, int]]:
    """Return (held-out row, train row) of pictures with similar pixels or features."""
    pairs: dict[int, int] = {}
    sides = described(job, Split.TRAIN), described(job, split)
    if sides[0] is not None and sides[1] is not None and sides[0].by_trunk:
        features = sides[0].directions(), sides[1].directions(like=sides[0])
        if _is_of_one_class(train, _near_within(sides[0].rows, features[0], _near_features)):
            pairs |= _near_features((sides[1].rows, features[1]), (sides[0].rows, features[0]))
    if train.looks is not None and held_out.looks is not None:
        looks = train.looks.numpy(), held_out.looks.numpy()
        if _is_of_one_class(train, _near_within(train.rows, looks[0], _near_looks)):
            pairs |= _near_looks((held_out.rows, looks[1]), (train.rows, looks[0]))
    return sorted(pairs.items())


_Side = tuple[NDArray[np.int64], NDArray[Any]]  # rows, and what they are compared by


def _near_within(
    rows: NDArray[np.int64], values: NDArray[Any], near: Callable[[_Side, _Side], dict[int, int]]
) -> dict[int, int]:
    """Compare one half of train with the other."""
    return near((rows[::2], values[::2]), (rows[1::2], values[1::2]))


def _is_of_one_class(train: Contents, pairs: dict[int, int]) -> bool:
    """Return True if similar examples within train have one class, as shots of one scene do.

    If they do not, pictures of this kind are all similar to each other.
    """
    if train.targets is None or len(pairs) < _LEAST:
        return True
    target = dict(zip(train.rows.tolist(), train.targets, strict=True))
    known = [(a, b) for a, b in pairs.items() if a in target and b in target]
    same = sum(target[a] == target[b] for a, b in known)
    return bool(same >= _SAME_CLASS_FRAC * len(known))


def _near_looks(held_out: _Side, train: _Side) -> dict[int, int]:
    return {
        int(held_out[0][place]): int(train[0][_closest(held_out[1][place], train[1])])
        for place in _near_places(held_out[1], train[1], 0)
    }


def _near_places(held_out: NDArray[np.uint8], train: NDArray[np.uint8], start: int) -> list[int]:
    """Find thumbnails that are similar to one of train, by bisection."""
    if not count_near(held_out, train).num_near:
        return []
    if len(held_out) == 1:
        return [start]
    half = len(held_out) // 2
    return [
        *_near_places(held_out[:half], train, start),
        *_near_places(held_out[half:], train, start + half),
    ]


def _closest(one: NDArray[np.uint8], train: NDArray[np.uint8]) -> int:
    away = np.abs(train.astype(np.int32) - one.astype(np.int32)).sum(axis=1)
    return int(away.argmin())


def _near_features(held_out: _Side, train: _Side) -> dict[int, int]:
    """Return {held-out row: train row} of examples with nearly the same features."""
    if not len(held_out[0]) or not len(train[0]):
        return {}
    cosine = held_out[1] @ train[1].T  # (held out, train)
    best = cosine.argmax(axis=1)
    return {
        int(held_out[0][place]): int(train[0][best[place]])
        for place in range(len(best))
        if cosine[place, best[place]] >= _SAME_FEATURES
    }


def _groups(job: CheckedJob, of: Split, split: Split) -> Answer | None:
    """Find groups, if the data have `group_ids`, that are in both splits."""
    sides = [
        getattr(getattr(job.source(side), "data", None), "group_ids", None) for side in (of, split)
    ]
    if any(side is None for side in sides):
        return None
    first, held_out = (set(np.asarray(side).tolist()) for side in sides)
    both = sorted(first & held_out, key=str)
    if not both:
        return None
    return found(
        "split_leakage",
        f"{len(both)} of {len(held_out)} groups of {split.value} are also in {of.value}: examples "
        f"of a group are similar, so metrics on {split.value} are too optimistic",
        fix="Split by group, so that each group is in one split.",
        severity=Severity.WARNING,
        examples=tuple(f"group {name}" for name in both[:_MAX_NAMED]),
        num_groups=len(both),
    )


def _within(job: CheckedJob, train: Contents) -> Answer | None:
    """Find a train split with many duplicates or blank examples."""
    num = len(train.rows)
    groups = copies_within(train)
    num_blank = sum(train.is_constant)
    largest = len(groups[0]) if groups else 0
    seen = coverage(num, train.num_all, Split.TRAIN)
    if num >= _LEAST and max(largest, num_blank) > _NEARLY_ALL * num:
        what = "are identical" if largest >= num_blank else "are blank (a single value)"
        rows = groups[0] if largest >= num_blank else np.flatnonzero(train.is_constant).tolist()
        return found(
            "duplicated_inputs",
            f"{max(largest, num_blank)} of {num} training inputs {what}",
            fix="Check how the dataset reads an example: it may ignore the index, or miss a file.",
            examples=tuple(job.describe(Split.TRAIN, int(row)) for row in rows[:_MAX_NAMED]),
            coverage=seen,
            num_alike=max(largest, num_blank),
        )
    num_copies = sum(len(group) - 1 for group in groups)
    num_conflicts = _conflicts(train, groups)
    if max(num_copies, num_blank, num_conflicts) < max(_LEAST, _WORTH_FRAC * num):
        return None
    blank = f", {num_blank} are blank (a single value)" if num_blank else ""
    conflict = (
        f"; {num_conflicts} groups of duplicates have different labels" if num_conflicts else ""
    )
    return found(
        "duplicated_inputs",
        f"{num_copies} of {num} training inputs are duplicates{blank}{conflict}",
        fix="Drop duplicates and blank examples, unless duplicates are meant as weights.",
        severity=Severity.WARNING,
        examples=tuple(
            " = ".join(job.describe(Split.TRAIN, row) for row in group[:3])
            for group in groups[:_MAX_NAMED]
        ),
        coverage=seen,
        num_copies=num_copies,
        num_blank=num_blank,
        num_conflicts=num_conflicts,
    )


def _conflicts(train: Contents, groups: list[list[int]]) -> int:
    if train.targets is None:
        return 0
    target = dict(zip(train.rows.tolist(), train.targets, strict=True))
    return sum(len({target[row] for row in group}) > 1 for group in groups)


def broken() -> Example:
    """A validation split of which a quarter is from train."""

    class Leaky(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            if split is Split.VAL:
                train, train_numbers = draw(Split.TRAIN)
                pictures = torch.cat([train[:32], pictures[32:]])
                numbers = torch.cat([train_numbers[:32], numbers[32:]])
            return labelled(pictures, numbers)

    return Example(task=Leaky())


CHECK = Check(
    name="duplicates",
    reason="Held-out examples that are also in train measure memorisation, not generalisation.",
    source="Barz and Denzler 2020, Do We Train on Test Data?, J. Imaging 6(6)",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("split_leakage", "duplicated_inputs"),
    run=duplicates,
    broken=broken,
    least_s=5.0,
)

"""No example occurs many times, or in more than one split."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.copies import (
    Contents,
    contents,
    copies_between,
    copies_within,
    picture_of,
)
from stepladder.checks.evidence.spread import coverage
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.data.decoding.resize import Pixels
from stepladder.data.prepare.findings import grouping
from stepladder.data.prepare.near_duplicates import find_near, num_compared_of
from stepladder.data.prepare.near_file import NEAR_NAME, are_many, near_fix, near_words, read_near
from stepladder.data.store.store_split import StoreSplit
from stepladder.machine.activity import doing
from stepladder.records.findings import PicturePair, Severity
from stepladder.training.output.wording import percent

_WRONG_FRAC = 0.05  # of a held-out split is in train too: its accuracy means little
_WORTH_FRAC = 0.01  # public test sets have up to 3 %, which seldom changes the accuracy visibly
_LEAST = 2
_NEARLY_ALL = 0.5  # of train is one example, or blank
_MAX_NAMED = 6
_MAX_LISTED = 500
_THUMB_SIDE = 96
_PAIRS = ((Split.TRAIN, Split.VAL), (Split.TRAIN, Split.TEST), (Split.VAL, Split.TEST))


def duplicates(job: CheckedJob) -> Answer:
    """Compare examples byte for byte, and pictures by their looks."""
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
    near = _near(job, train, held_out, split)
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
            num_near=len(near.pairs),
            num_held_out=num,
        )
    if not are_many(len(near.pairs), near.num_compared):
        return None
    return found(
        "split_leakage",
        near_words(len(near.pairs), near.num_compared, split.value),
        fix=f"{near.fix[0].upper()}{near.fix[1:]}.",
        severity=Severity.WARNING,
        examples=_named(job, split, near.pairs, num=_MAX_LISTED),
        pictures=_pictures(job, split, near.pairs),
        coverage=None if near.is_listed else seen,
        num_near=len(near.pairs),
        num_held_out=near.num_compared,
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
    job: CheckedJob,
    split: Split,
    pairs: Sequence[tuple[int, int]],
    *,
    of: Split = Split.TRAIN,
    num: int = _MAX_NAMED,
) -> tuple[str, ...]:
    return tuple(
        f"{job.describe(split, row)} = {job.describe(of, other)}" for row, other in pairs[:num]
    )


@dataclass(frozen=True, kw_only=True)
class _Near:
    """Near-duplicates between a held-out split and train.

    Attributes:
        pairs: (held-out row, train row).
        fix: what to do.
        is_listed: whether `prepare` compared all pictures and listed the pairs.
    """

    pairs: list[tuple[int, int]]
    num_compared: int
    fix: str
    is_listed: bool


def _near(job: CheckedJob, train: Contents, held_out: Contents, split: Split) -> _Near:
    """Return the pairs that `prepare` listed in the store, else those of the examples read."""
    source = job.source(split)
    if isinstance(source, StoreSplit) and source.folder is not None:
        listed = read_near(source.folder, split)
        if listed is not None:
            can_group, group_by = grouping(source.folder, split)
            return _Near(
                pairs=[(pair.row, pair.train_row) for pair in listed],
                num_compared=num_compared_of(len(source), train.num_all),
                fix=near_fix(
                    split.value,
                    can_group=can_group,
                    listed=str(source.folder / NEAR_NAME),
                    group_by=group_by,
                ),
                is_listed=True,
            )
    pairs: list[tuple[int, int]] = []
    if train.looks is not None and held_out.looks is not None:
        with doing(f"searching {split.value} for near-duplicates of train"):
            near = find_near(held_out.looks.numpy(), train.looks.numpy())
        rows = held_out.rows[near.held_out].tolist(), train.rows[near.train].tolist()
        pairs = list(zip(*rows, strict=True))
    fix = f"remove them from {split.value}; checks.json in the run folder lists them"
    return _Near(pairs=pairs, num_compared=len(held_out.rows), fix=fix, is_listed=False)


def _pictures(
    job: CheckedJob, split: Split, pairs: Sequence[tuple[int, int]]
) -> tuple[PicturePair, ...]:
    """Return the first pairs as small JPEGs."""
    shown = pairs[:_MAX_NAMED]
    sides = [
        (side, job.rows(side, np.array([pair[at] for pair in shown])))
        for at, side in enumerate((split, Split.TRAIN))
    ]
    found = []
    for place, pair in enumerate(shown):
        jpegs = [_jpeg(picture_of(batch, place)) for _, batch in sides]
        names = [job.describe(side, row) for (side, _), row in zip(sides, pair, strict=True)]
        found.append(PicturePair(names=(names[0], names[1]), jpegs=(jpegs[0], jpegs[1])))
    return tuple(found)


def _jpeg(pixels: Pixels | None) -> str:
    """Return a picture as a small JPEG in base64; empty if it is not a picture."""
    if pixels is None:
        return ""
    image = Image.fromarray(pixels)
    image.thumbnail((_THUMB_SIDE, _THUMB_SIDE))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=80)
    return base64.b64encode(data.getvalue()).decode("ascii")


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
    blank = f", {num_blank} are blank (all values are equal)" if num_blank else ""
    conflict = (
        f"; in {num_conflicts} groups of duplicates, one input has different labels"
        if num_conflicts
        else ""
    )
    return found(
        "duplicated_inputs",
        f"{num_copies} of {num} training inputs are duplicates{blank}{conflict}",
        fix=("Correct the labels that differ. " if num_conflicts else "")
        + "Drop duplicates and blank examples, unless some are repeated on purpose, so that they "
        "count more.",
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

"""The splits come from one distribution: a classifier cannot distinguish them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.spread import Described, coverage, described
from stepladder.checks.evidence.workers import random_dataset
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.records import Json
from stepladder.records.findings import Severity
from stepladder.stats.two_samples import (
    Separation,
    held_out_scores,
    holm,
    principal_parts,
    separation,
)

MIN_AUC = 0.65  # minimum of the lower bound: a smaller shift seldom matters
MAX_P = 1e-3  # corrected for the number of pairs
LEAST_EXAMPLES = 20  # of each split
_NUM_PARTS = 32
_NEAR = 0.75  # cosine of centred features from which two shots count as one
_NUM_NAMED = 3  # of each split
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """Two splits, and how well a classifier distinguishes their examples.

    Attributes:
        telling: the most typical examples of either split.
    """

    first: Split
    second: Split
    apart: Separation
    telling: tuple[str, ...]
    num: tuple[int, int]
    by_trunk: bool


def distribution(job: CheckedJob) -> Answer:
    """Train a classifier to distinguish validation from test, and train from validation.

    Labels of test are not read.
    """
    pairs = [(Split.VAL, Split.TEST)]
    if random_dataset(job) is None:  # augmented examples differ from others
        pairs.append((Split.TRAIN, Split.VAL))
    compared = [one for pair in pairs if (one := _compare(job, *pair)) is not None]
    if not compared:
        return not_applicable(
            f"fewer than two splits have {LEAST_EXAMPLES} examples or more with numeric inputs"
        )
    corrected = holm([one.apart.p for one in compared])
    shifted = [
        one
        for one, p in zip(compared, corrected, strict=True)
        if one.apart.auc.low > MIN_AUC and p < MAX_P
    ]
    numbers: dict[str, Json] = {
        f"auc_{one.first.value}_{one.second.value}": [
            round(one.apart.auc.estimate, 4),
            round(one.apart.auc.low, 4),
            p,
        ]
        for one, p in zip(compared, corrected, strict=True)
    }
    seen = _coverage(job, compared)
    if not shifted:
        return passed("; ".join(_words(one) for one in compared), coverage=seen, aucs=numbers)
    has_test = shifted[0].second is Split.TEST
    return found(
        "distribution_shift",
        "; ".join(_words(one) for one in shifted),
        fix=_fix(has_test=has_test),
        severity=None if has_test else Severity.WARNING,
        examples=tuple(name for one in shifted for name in one.telling),
        coverage=seen,
        aucs=numbers,
    )


def _fix(*, has_test: bool) -> str:
    if has_test:
        return (
            "Draw validation from the same source as test: what is best on this validation split "
            "may not be best on test."
        )
    return (
        "Split train and validation at random, by scene or group, unless they are meant to differ."
    )


def _words(one: _Compared) -> str:
    auc = one.apart.auc
    what = "features" if one.by_trunk else "inputs"
    return (
        f"a classifier on {what} distinguishes {one.first.value} from {one.second.value} with an "
        f"AUC of {auc.estimate:.2f} (at least {auc.low:.2f})"
    )


def _coverage(job: CheckedJob, compared: list[_Compared]) -> str | None:
    looked_at: dict[Split, int] = {}
    for one in compared:
        for split, num in zip((one.first, one.second), one.num, strict=True):
            looked_at[split] = max(num, looked_at.get(split, 0))
    parts = []
    for split, num in looked_at.items():
        source = job.source(split)
        part = coverage(num, 0 if source is None else len(source), split)
        parts += [part] if part else []
    return ", ".join(parts) or None


def _compare(job: CheckedJob, first: Split, second: Split) -> _Compared | None:
    sides = described(job, first), described(job, second)
    if sides[0] is None or sides[1] is None:
        return None
    if sides[0].vectors.shape[1] != sides[1].vectors.shape[1]:
        return None
    kept = [_thinned(side) for side in (sides[0], sides[1])]
    if min(len(places) for places in kept) < LEAST_EXAMPLES:
        return None
    if not any(np.ptp(side.vectors, axis=0).any() for side in sides if side is not None):
        return None  # every example is the same
    one, other = (side.vectors[places] for side, places in zip(sides, kept, strict=True))  # type: ignore[union-attr]
    return _separate(job, (sides[0], sides[1]), (kept[0], kept[1]), one, other)


def _separate(
    job: CheckedJob,
    sides: tuple[Described, Described],
    kept: tuple[NDArray[np.int64], NDArray[np.int64]],
    one: NDArray[np.float32],
    other: NDArray[np.float32],
) -> _Compared:
    both = np.concatenate([one, other])
    is_second = np.arange(len(both)) >= len(one)
    scores = held_out_scores(principal_parts(both, _NUM_PARTS), is_second, seed=_SEED)
    telling = [
        job.describe(sides[0].split, int(sides[0].rows[kept[0][place]]))
        for place in np.argsort(scores[: len(one)])[:_NUM_NAMED]
    ] + [
        job.describe(sides[1].split, int(sides[1].rows[kept[1][place]]))
        for place in np.argsort(-scores[len(one) :])[:_NUM_NAMED]
    ]
    return _Compared(
        first=sides[0].split,
        second=sides[1].split,
        apart=separation(scores[~is_second], scores[is_second]),
        telling=tuple(telling),
        num=(len(one), len(other)),
        by_trunk=sides[0].by_trunk,
    )


def _thinned(side: Described) -> NDArray[np.int64]:
    """Keep one of each group of similar shots: a scene reveals its split without any shift."""
    if not side.by_trunk:
        return np.arange(len(side.rows))
    unit = side.directions()
    kept: list[int] = []
    for place in np.random.default_rng(_SEED).permutation(len(unit)).tolist():
        if not kept or float((unit[kept] @ unit[place]).max()) < _NEAR:
            kept.append(place)
    return np.array(sorted(kept), dtype=np.int64)


def broken() -> Example:
    """Test pictures with a colour cast, as from another camera."""

    class OtherCamera(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            cast = 0.5 if split is Split.TEST else 0.0
            return labelled(pictures + cast, numbers)

    return Example(task=OtherCamera())


CHECK = Check(
    name="distribution",
    reason="What is chosen on validation is best for test only if both have one distribution.",
    source="Lopez-Paz and Oquab 2017, arXiv:1610.06545; Rabanser et al. 2019, Failing Loudly, "
    "arXiv:1810.11953",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("distribution_shift",),
    run=distribution,
    broken=broken,
    least_s=6.0,
)

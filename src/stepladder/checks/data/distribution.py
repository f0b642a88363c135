"""The splits come from one distribution: a classifier cannot distinguish them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.class_shares import Shares, Side, shares_of
from stepladder.checks.evidence.spread import Described, coverage, described
from stepladder.checks.evidence.workers import random_dataset
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.records import Json
from stepladder.records.findings import Severity
from stepladder.stats.class_shares import equal_shares
from stepladder.stats.two_samples import (
    Separation,
    held_out_scores,
    holm,
    principal_parts,
    separation,
)
from stepladder.training.output.wording import percent

MIN_AUC = 0.65  # minimum of the lower bound: a smaller shift seldom matters
MAX_P = 1e-3  # corrected for the number of pairs
LEAST_EXAMPLES = 20  # of each split
_MAX_SHARE_P = 0.01  # of the class shares; the classifier has found the splits to differ
_NUM_PARTS = 32
_NEAR = 0.75  # cosine of centred features from which two shots count as one
_NUM_NAMED = 3  # of each split
_SEED = 0

Floats = NDArray[np.float64]


class _Cause(StrEnum):
    """Why a classifier distinguishes two splits.

    SHARES: classes have other shares; with equal shares, it distinguishes them less or not at all.
    INPUTS: examples of one class differ.
    UNKNOWN: examples have no classes or clear clusters, or their shares are equal.
    """

    SHARES = "shares of classes"
    INPUTS = "examples of one class"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """Two splits, and how well a classifier distinguishes their examples.

    Attributes:
        sides: the examples of either split.
        telling: the most typical examples of either split.
    """

    sides: tuple[Side, Side]
    apart: Separation
    telling: tuple[str, ...]
    by_trunk: bool

    @property
    def first(self) -> Split:
        """The first split."""
        return self.sides[0].of.split

    @property
    def second(self) -> Split:
        """The second split."""
        return self.sides[1].of.split


@dataclass(frozen=True, kw_only=True)
class _Explained:
    """Two splits that differ, and why.

    Attributes:
        shares: of their classes; None: no classes are known.
        equal: how well a classifier distinguishes them if classes have equal shares.
    """

    compared: _Compared
    cause: _Cause
    shares: Shares | None = None
    equal: Separation | None = None


def distribution(job: CheckedJob) -> Answer:
    """Train a classifier to distinguish validation from test, and train from validation.

    If it does, it is trained again with equal shares of classes: if it then no longer distinguishes
    them, only the shares differ (label shift), which is a warning. Labels of test are not read: its
    shares are those in a store's manifest, or estimated.
    """
    pairs = [(Split.VAL, Split.TEST)]
    if random_dataset(job) is None:  # augmented examples differ from others
        pairs.append((Split.TRAIN, Split.VAL))
    compared = [one for pair in pairs if (one := _compare(job, *pair)) is not None]
    if not compared:
        return not_applicable(
            f"fewer than two splits have {LEAST_EXAMPLES} examples or more with numeric inputs, if "
            "similar shots count as one"
        )
    corrected = holm([one.apart.p for one in compared])
    shifted = [
        _explain(job, one, num_pairs=len(compared))
        for one, p in zip(compared, corrected, strict=True)
        if _is_shift(one.apart, p)
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
    for why in shifted:
        if why.equal is not None:
            pair = f"{why.compared.first.value}_{why.compared.second.value}"
            auc = why.equal.auc
            numbers[f"equal_shares_{pair}"] = [round(auc.estimate, 4), round(auc.low, 4)]
    is_error = any(
        why.cause is not _Cause.SHARES and why.compared.second is Split.TEST for why in shifted
    )
    return found(
        "distribution_shift",
        "; ".join(_explained_words(why) for why in shifted),
        fix=_fix(shifted[0]),
        severity=None if is_error else Severity.WARNING,
        examples=tuple(name for why in shifted for name in why.compared.telling),
        coverage=seen,
        aucs=numbers,
    )


def _is_shift(apart: Separation, p: float) -> bool:
    return apart.auc.low > MIN_AUC and p < MAX_P


def _explain(job: CheckedJob, one: _Compared, *, num_pairs: int) -> _Explained:
    """Compare two splits that differ again, with equal shares of classes."""
    shares = shares_of(job, *one.sides)
    if shares is None:
        return _Explained(compared=one, cause=_Cause.UNKNOWN)
    weights = equal_shares(shares.first, shares.second)
    if min(weights.first.sum(), weights.second.sum()) <= 0:
        return _Explained(compared=one, cause=_Cause.SHARES, shares=shares)
    equal = _separate(one.sides, (weights.first, weights.second))[0]
    if _is_shift(equal, min(1.0, num_pairs * equal.p)):
        cause = _Cause.INPUTS
    else:
        cause = _Cause.SHARES if shares.p < _MAX_SHARE_P else _Cause.UNKNOWN
    return _Explained(compared=one, cause=cause, shares=shares, equal=equal)


def _fix(one: _Explained) -> str:
    has_test = one.compared.second is Split.TEST
    if one.cause is _Cause.SHARES:
        which = "validation and test" if has_test else "train and validation"
        return (
            f"Split {which} stratified by class, or judge by the mean accuracy of the classes "
            "(macro_accuracy), which shares do not change."
        )
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


def _explained_words(one: _Explained) -> str:
    compared, equal = one.compared, one.equal
    if one.cause is _Cause.UNKNOWN or one.shares is None:
        return _words(compared)
    if one.cause is _Cause.INPUTS and equal is not None:
        return (
            f"examples of one class differ: {_words(compared)}, and of {equal.auc.estimate:.2f} "
            f"(at least {equal.auc.low:.2f}) with equal shares of classes"
        )
    name, p, q = one.shares.most_shifted
    about = "about " if one.shares.is_estimated else ""
    said = (
        f"label shift: {name} is {percent(p, 0)} of {compared.first.value} and "
        f"{about}{percent(q, 0)} of {compared.second.value}"
    )
    if equal is None:
        return f"{said}; no class is in both, so examples of one class cannot be compared"
    before = compared.apart.auc
    aucs = f"AUC {before.estimate:.2f}, with equal shares {equal.auc.estimate:.2f}"
    if equal.auc.estimate < before.low:
        return f"{said}; examples of one class do not differ clearly ({aucs})"
    return f"{said}; there are too few examples to compare those of one class ({aucs})"


def _coverage(job: CheckedJob, compared: list[_Compared]) -> str | None:
    looked_at: dict[Split, int] = {}
    for one in compared:
        for side in one.sides:
            num = len(side.places)
            looked_at[side.of.split] = max(num, looked_at.get(side.of.split, 0))
    parts = []
    for split, num in looked_at.items():
        source = job.source(split)
        part = coverage(num, 0 if source is None else len(source), split)
        parts += [part] if part else []
    return ", ".join(parts) or None


def _compare(job: CheckedJob, first: Split, second: Split) -> _Compared | None:
    one, other = described(job, first), described(job, second)
    if one is None or other is None or one.vectors.shape[1] != other.vectors.shape[1]:
        return None
    sides = Side(of=one, places=_thinned(one)), Side(of=other, places=_thinned(other))
    if min(len(side.places) for side in sides) < LEAST_EXAMPLES:
        return None
    if not any(np.ptp(side.of.vectors, axis=0).any() for side in sides):
        return None  # every example is the same
    apart, scores = _separate(sides)
    telling = [
        job.describe(side.of.split, int(side.of.rows[side.places[place]]))
        for side, order in zip(sides, (np.argsort(scores[0]), np.argsort(-scores[1])), strict=True)
        for place in order[:_NUM_NAMED]
    ]
    return _Compared(sides=sides, apart=apart, telling=tuple(telling), by_trunk=one.by_trunk)


def _separate(
    sides: tuple[Side, Side], weights: tuple[Floats, Floats] | None = None
) -> tuple[Separation, tuple[Floats, Floats]]:
    """Return how well a classifier distinguishes two sides, and its held-out scores of both."""
    num = len(sides[0].places)
    both = np.concatenate([side.vectors for side in sides])
    is_second = np.arange(len(both)) >= num
    scores = held_out_scores(
        principal_parts(both, _NUM_PARTS),
        is_second,
        weights=None if weights is None else np.concatenate(weights),
        seed=_SEED,
    )
    parted = scores[:num], scores[num:]
    return separation(*parted, weights=weights), parted


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
    reason="What is chosen on validation is best for test only if both have one distribution. If "
    "only the shares of classes differ, macro accuracy is still comparable.",
    source="Lopez-Paz and Oquab 2017, arXiv:1610.06545; Rabanser et al. 2019, Failing Loudly, "
    "arXiv:1810.11953; Lipton et al. 2018, Label Shift, arXiv:1802.03916",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("distribution_shift",),
    run=distribution,
    broken=broken,
    least_s=6.0,
)

"""Inputs that differ between training and evaluation."""

from __future__ import annotations

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.hooks.tensors import Spread
from stepladder.watching.seen.inputs import EvaluatedInputsSeen, OwnScaleSeen, ShiftSeen
from stepladder.watching.seen.seen import Seen

_MIN_ROWS = 32  # examples in training and in an evaluation
_RATIO = 4.0  # of standard deviations
_APART = 4.0  # standard deviations between the means
_BELOW_ZERO = -0.5  # the lowest value of standardised images is far below 0
_UNIT = 1.001  # and those that are only divided by 255 are in [0, 1]
_MOVED = 0.4  # standard deviations between their means
_LEAST_STD = 1e-6


def distribution_shift(seen: Seen) -> Answer:
    """Compares mean, std and range of a model's inputs in training and with held-out examples.

    An evaluation counts only if all others of the model with held-out examples differ as well: one
    of several may be meant to be of another domain. Held-out inputs are also reported if the source
    fits a scaler to them, as to others, and all of their columns are exactly scaled.
    """
    if seen.own_scales:
        return _own_scale(seen.own_scales[0])
    looked = [
        (one, group)
        for one in seen.shifts
        for group in one.evaluated
        if one.num_rows >= _MIN_ROWS and one.spreads
        if group.num_rows >= _MIN_ROWS and group.spreads
    ]
    if not looked:
        return Unseen(f"no model was trained and evaluated with {_MIN_ROWS} examples of numbers")
    for one, group in looked:
        others = [other for model, other in looked if model is one]
        if not all(_differs(one, other) for other in others):
            continue
        before, now = one.spreads[0], group.spreads[0]
        return Found(
            evidence=f"{one.built} was trained with inputs from {before.low:.3g} to "
            f"{before.high:.3g} (mean {before.mean:.2g}, std {before.std:.2g}) and evaluated with "
            f"inputs from {now.low:.3g} to {now.high:.3g} (mean {now.mean:.2g}, std "
            f"{now.std:.2g}), as if they were preprocessed differently",
            fix="Preprocess held-out examples like those of training: the same scaling, with the "
            "mean and std of the training set, and without augmentation.",
            where=group.where,
            numbers={
                "train_mean": before.mean,
                "train_std": before.std,
                "evaluated_mean": now.mean,
                "evaluated_std": now.std,
            },
        )
    return Sound("inputs have the same scale in training and with held-out examples")


def _own_scale(one: OwnScaleSeen) -> Found:
    scaled = "reach from 0 or -1 to 1" if one.is_range else "have mean 0 and standard deviation 1"
    statistics = "minimum and maximum" if one.is_range else "mean and standard deviation"
    return Found(
        evidence=f"all {one.num_columns} columns of the {one.num_rows:,} held-out inputs at "
        f"{one.evaluated_at} exactly {scaled}: `{one.code}` scales held-out examples with their "
        f"own {statistics}, not with those of the training set",
        fix="Fit the scale on the training examples only and apply it to all others, as in "
        "scaler.transform(x_test).",
        where=one.where,
        numbers={"num_rows": one.num_rows, "num_columns": one.num_columns},
    )


def _differs(one: ShiftSeen, group: EvaluatedInputsSeen) -> bool:
    """Return whether each measured call of an evaluation differs from each one of training."""
    return all(
        _is_other(before, now, is_picture=one.is_picture)
        for before in one.spreads
        for now in group.spreads
    )


def _is_other(before: Spread, now: Spread, *, is_picture: bool) -> bool:
    """Return whether inputs are clearly of another scale or shift."""
    least, most = sorted((before.std, now.std))
    if least < _LEAST_STD:
        return False  # constant, such as zeros that only test a model
    if most > _RATIO * least or abs(before.mean - now.mean) > _APART * most:
        return True
    raw, other = (before, now) if before.low >= 0 else (now, before)
    is_unit = raw.low >= 0 and raw.high <= _UNIT
    is_moved = abs(before.mean - now.mean) > _MOVED * most
    return is_picture and is_unit and other.low <= _BELOW_ZERO and is_moved

"""Faults in what samplers draw."""

from __future__ import annotations

from stepladder.records.files import Json
from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.loaders import LoaderSeen
from stepladder.watching.seen.seen import Seen

_MIN_STORED = 50
_FEW = 0.1  # of the examples
_HALF = 0.5
_AGAIN = 5  # draws of each
_MIN_EPOCHS = 2
_MAX_BATCHES = 8  # of a pass that is so short by accident


def few_examples_drawn(seen: Seen) -> Answer:
    """Counts the different indices that samplers return, and compares them with the dataset."""
    loaders = [
        one
        for one in seen.loaders
        if one.training
        and one.sampler != "distributed"  # each process draws a part
        and one.draws is not None
        and one.draws.num_distinct
        and one.draws.num_stored >= _MIN_STORED
    ]
    if not loaders:
        return Unseen(f"no loader over {_MIN_STORED} or more indexed examples was trained on")
    for one in loaders:
        found = _by_weights(one, seen)
        if found is None and any(p.is_whole for p in one.training):
            found = _by_zeros(one) or _by_indices(one)
            found = found or (None if seen.was_cut else _by_length(one))
        if found is not None:
            return found
    drawn = loaders[0].draws
    assert drawn is not None
    return Sound(f"{drawn.num_distinct:,} of {drawn.num_stored:,} examples were drawn")


def _by_weights(one: LoaderSeen, seen: Seen) -> Found | None:
    """Find weights of classes where each example needs one.

    More weights than classes may belong to the first part of the examples on purpose.
    """
    draws = one.draws
    assert draws is not None
    is_short = 0 < one.num_weights <= _HALF * draws.num_stored
    if not is_short or draws.num_distinct > one.num_weights:
        return None
    classes = {2, *(call.num_classes for call in seen.losses)}
    return Found(
        evidence=f"{one.sampler_kind} has {one.num_weights:,} weights for {draws.num_stored:,} "
        f"examples, so it returns only indices below {one.num_weights:,}: "
        f"{draws.num_distinct:,} different examples in {draws.num_drawn:,} draws",
        fix="Pass one weight per example: weights = class_weights[labels].",
        where=one.where,
        severity=Severity.ERROR if one.num_weights in classes else Severity.WARNING,
        numbers=_numbers(one),
    )


def _by_zeros(one: LoaderSeen) -> Found | None:
    draws = one.draws
    assert draws is not None
    if one.num_zero < _HALF * draws.num_stored or draws.num_distinct > _HALF * draws.num_stored:
        return None
    return Found(
        evidence=f"{one.num_zero:,} of the {one.num_weights:,} weights of {one.sampler_kind} are 0,"
        f" so only {draws.num_distinct:,} of {draws.num_stored:,} examples were drawn, in "
        f"{draws.num_drawn:,} draws",
        fix="Check the weights: an integer division such as 1 // count is 0.",
        where=one.where,
        numbers=_numbers(one),
    )


def _by_indices(one: LoaderSeen) -> Found | None:
    draws = one.draws
    assert draws is not None
    is_few = draws.num_distinct < _FEW * draws.num_stored
    if not is_few or draws.num_drawn < _AGAIN * draws.num_distinct:
        return None
    return Found(
        evidence=f"{one.sampler_kind} returned only {draws.num_distinct:,} different indices for "
        f"{draws.num_stored:,} examples, in {draws.num_drawn:,} draws, and no other loader of this "
        "dataset returned the others",
        fix="Check the indices that the sampler receives, unless training on so few examples is "
        "the purpose.",
        where=one.where,
        numbers=_numbers(one),
    )


def _by_length(one: LoaderSeen) -> Found | None:
    """Find epochs that end after few random examples, and a training that ends before the rest."""
    draws = one.draws
    assert draws is not None
    whole = [p for p in one.training if p.is_whole]
    is_short = (one.num_examples or draws.num_stored) < _FEW * draws.num_stored
    is_short = is_short and all(p.num_batches <= _MAX_BATCHES for p in whole)
    if not is_short or len(whole) < _MIN_EPOCHS or draws.num_distinct > _HALF * draws.num_stored:
        return None
    return Found(
        evidence=f"{one.sampler_kind} ends each epoch after {one.num_examples:,} of "
        f"{draws.num_stored:,} examples, and only {draws.num_distinct:,} were drawn in "
        f"{len(whole):,} epochs",
        fix="Remove num_samples, which is the number of examples of a whole epoch.",
        where=one.where,
        numbers=_numbers(one),
    )


def _numbers(one: LoaderSeen) -> dict[str, Json]:
    draws = one.draws
    assert draws is not None
    return {
        "num_drawn": draws.num_drawn,
        "num_distinct": draws.num_distinct,
        "num_stored": draws.num_stored,
    }

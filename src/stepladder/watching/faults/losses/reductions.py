"""Faults in the reductions of a loss whose terms differ."""

from __future__ import annotations

from math import prod

from stepladder.watching.contract import Found
from stepladder.watching.seen.seen import Seen

_MIN_SUMMED = 3  # inspected calls of backward
_MIN_EARLY = 2  # of these
_LEAST_FACTOR = 0.25  # of a sum: smaller ones are weights that someone chose
_OUTWEIGHED = 4.0  # a mean with a factor this close to the size of the batch was balanced by hand


def summed_beside_mean(seen: Seen) -> Found | None:
    """Find a sum over all examples of a batch that is added to a mean over them."""
    calls = [(c, c.summed) for c in seen.backward_calls if c.summed is not None]
    heavy = [
        (call, one)
        for call, one in calls
        if one.factor >= _LEAST_FACTOR and one.num * one.factor >= _OUTWEIGHED * one.mean_factor
    ]
    if len(heavy) < max(_MIN_SUMMED, len(calls) // 2):
        return None
    call, one = heavy[0]
    each = prod(one.shape[1:])
    values = f" and {each:,} values of each" if each > 1 else ""
    return Found(
        evidence=f"a term of the loss is a sum over all {one.num} examples of the batch{values}, "
        f"added to a mean over the batch, in {len(heavy)} inspected steps: it weighs {one.num} "
        "times as much as its mean, and more in a larger batch",
        fix="Sum over the values of each example only, as in .sum(1), and take the mean over the "
        "batch of both terms; or divide the sum by the batch size.",
        where=call.where,
        numbers={"num_examples": one.num, "factor": one.factor},
    )


def averaged_too_early(seen: Seen) -> Found | None:
    """Find a probability, as of a focal loss, that is that of a whole batch."""
    calls = [(c, c.averaged) for c in seen.backward_calls if c.averaged is not None]
    if len(calls) < _MIN_EARLY:
        return None
    call, (kind, shape) = calls[0]
    return Found(
        evidence=f"exp(-loss) is computed from a {kind} that is already the mean over its input of "
        f"shape {shape}, so it is one number: as the factor of a focal loss it weighs all "
        "examples or pixels alike, easy and hard ones",
        fix=f'Pass reduction="none" to {kind}, and take the mean of the weighted values.',
        where=call.where,
        numbers={"num_calls": len(calls)},
    )


def norm_of_each_pixel(seen: Seen) -> Found | None:
    """Find a gradient penalty with a norm over the channels of each pixel."""
    calls = [(c, c.pixel_norm) for c in seen.backward_calls if c.pixel_norm is not None]
    if len(calls) < _MIN_EARLY:
        return None
    call, shape = calls[0]
    return Found(
        evidence=f"a gradient of shape {shape} is reduced by norm(dim=1), over the channels: a "
        f"gradient penalty then asks for a norm of each of the {prod(shape[2:]):,} pixels, and not "
        "for that of the example",
        fix="Flatten it first: gradients.flatten(1).norm(2, dim=1).",
        where=call.where,
        numbers={"num_calls": len(calls)},
    )

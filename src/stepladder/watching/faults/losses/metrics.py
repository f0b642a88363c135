"""Faults of metrics that a script computes from the outputs of a model."""

from __future__ import annotations

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.losses import ComparisonSeen
from stepladder.watching.seen.seen import Seen

_MIN_ROWS = 32
_MIN_COMPARED = 2  # calls
_MIN_EXCESS = 0.1  # weight of the last batch, beyond the share of its examples
_BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


def metric_wrong(seen: Seen) -> Answer:
    """Finds batch means that are averaged wrongly, classes always 0, and compared pairs.

    Means of batches are divided by the number of examples, or averaged although the last batch is
    so small that it weighs far more than its examples. Compared pairs are all pairs of predictions
    and labels, where broadcasting has made them.
    """
    if not seen.models:
        return Unseen("no model was called")
    is_binary = any(one.kind in _BINARY for one in seen.losses)
    for one in seen.predictions:
        # The values of max over one output may be meant, as the scores of the only class.
        if one.num_rows >= _MIN_ROWS and (one.kind == "argmax" or is_binary):
            return Found(
                evidence=f"{one.kind} over dimension 1 of outputs of shape (n, 1) always chooses "
                f"class 0: so it did for all {one.num_rows} examples of {one.num_calls} calls, "
                "and what is computed from it does not depend on the model",
                fix="Compare the output with a threshold: (output.squeeze(1) > 0).long() for "
                "logits, > 0.5 for probabilities.",
                where=one.where,
                numbers={"num_examples": one.num_rows, "num_calls": one.num_calls},
            )
    for pairs in seen.comparisons:
        if pairs.num_calls >= _MIN_COMPARED:
            return _compared(pairs)
    for average in seen.averages:
        kinds, num, size = " and ".join(average.kinds), average.num_losses, average.divisor
        is_one_each = num == average.num_batches * len(average.kinds)
        factor = f" by a factor of {size / average.num_batches:.3g}" if is_one_each else ""
        return Found(
            evidence=f"{average.name} is the sum of {num:,} values of {kinds}, each of which is "
            f"already the mean of a batch, but is divided by {size:,}, the number of samples: "
            f"the average is too small{factor}",
            fix="Divide by the number of batches, len(loader), or add up loss.item() * len(batch).",
            where=average.where,
            numbers={"num_losses": num, "divisor": size},
        )
    for uneven in seen.uneven_averages:
        if uneven.excess >= _MIN_EXCESS:
            return Found(
                evidence=f"{uneven.name} is averaged over {uneven.num_batches} batches, and the "
                f"last one has only {uneven.num_last} of {uneven.num_examples:,} examples: they "
                f"make up {100 / uneven.num_batches:.0f} % of the average instead of "
                f"{100 * uneven.num_last / uneven.num_examples:.2g} %, and of everything else "
                "that is averaged over these batches, such as an accuracy",
                fix="Add up loss.item() * len(batch) and the hits, and divide both by the number "
                "of examples.",
                where=uneven.where,
                numbers={"num_batches": uneven.num_batches, "num_last": uneven.num_last},
            )
    return Sound("no sum of batch means is divided by the number of samples")


def _compared(one: ComparisonSeen) -> Found:
    num = one.predicted[0]
    which = "labels" if len(one.label) == 2 else "predictions"
    return Found(
        evidence=f"predictions of shape {one.predicted} were compared with labels of shape "
        f"{one.label} in {one.num_calls} inspected calls: broadcasting compares every prediction "
        f"with every label, which gives {num} x {num} results instead of {num}, so that a count of "
        "hits is too large",
        fix=f"Compare equal shapes: use {which}.squeeze(1).",
        where=one.where,
        numbers={"num_calls": one.num_calls, "num_examples": num},
    )

"""Faults of metrics that a script computes from the outputs of a model."""

from __future__ import annotations

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.seen import Seen

_MIN_ROWS = 32
_BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


def metric_wrong(seen: Seen) -> Answer:
    """Finds classes that are chosen from a single output, and so are always 0."""
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
    return Sound("no class was chosen from a single output")

"""Faults in the order of dimensions."""

from __future__ import annotations

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.models import Mixed
from stepladder.watching.seen.seen import Seen

_MIN_STEPS = 2
_FIXES = {
    Mixed.FIRST_TWO: "Transpose first, x.transpose(0, 1), and then reshape if another shape is "
    "needed.",
    Mixed.CHANNELS: "Move the dimension with permute or movedim: view and reshape only divide the "
    "same values in another way.",
    Mixed.SPLIT_HEADS: "Split the last dimension, and then transpose: "
    "x.view(n, t, heads, -1).transpose(1, 2).",
    Mixed.MERGED_HEADS: "Transpose before heads are merged: x.transpose(1, 2).reshape(n, t, -1).",
    Mixed.HEADS: "Exchange the dimensions with x.transpose(1, 2): view and reshape only divide the "
    "same values in another way.",
    Mixed.LAYERS: "Transpose the state, h.transpose(0, 1).reshape(n, -1); or, to make one, "
    "x.view(n, layers, -1).transpose(0, 1).contiguous().",
}
_RESULTS = {
    Mixed.FIRST_TWO: "does not exchange the first two dimensions, and mixes their values",
    Mixed.CHANNELS: "does not move the channels, and mixes them with positions",
    Mixed.SPLIT_HEADS: "splits positions instead of features among the heads",
    Mixed.MERGED_HEADS: "joins positions of one head instead of the heads of one position",
    Mixed.HEADS: "does not exchange the second and third dimensions, and mixes their values",
    Mixed.LAYERS: "mixes the layers of a recurrent state with the examples",
}


def reshape_instead_of_transpose(seen: Seen) -> Answer:
    """Compares shapes before and after `view` and `reshape`, until the first steps are over.

    A line counts if its result has dimensions that only a transpose exchanges, and a model learns
    from it; not if its input was transposed before, or if it shifts relative positions.
    """
    if not seen.num_steps:
        return Unseen("no step was seen")
    for one in seen.reshapes:
        if one.num_steps >= _MIN_STEPS:
            return Found(
                evidence=f"a reshape from {one.before} to {one.after} keeps the order of all "
                f"values, so it {_RESULTS[one.mixed]}, in {one.num_steps} inspected steps",
                fix=_FIXES[one.mixed],
                where=one.where,
            )
    return Sound("no reshape has the result that a transpose would have")

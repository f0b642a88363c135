"""Faults of backward functions that a script writes itself."""

from __future__ import annotations

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.seen import Seen


def backward_ignores_gradient(seen: Seen) -> Answer:
    """Calls the script's own backward functions with several gradients, after its last step."""
    tested = [one for one in seen.own_backwards if not one.why_not]
    if not tested:
        return Unseen("no autograd.Function of the script was tested")
    for one in tested:
        if one.is_constant:
            return Found(
                evidence=f"{one.name}.backward returned the same {one.num_values} values for a "
                "random gradient, its negative, twice it and 0: it ignores the gradient that it "
                "receives, so layers before it do not learn from the loss",
                fix="Multiply the derivative by the argument: return grad_output * derivative.",
                where=one.where,
                numbers={"num_values": one.num_values},
            )
    num = len(tested)
    what = "backward function of the script uses" if num == 1 else "own backward functions use"
    return Sound(f"{'the' if num == 1 else num} {what} the gradient received")

"""Whether the members of a population fit into the memory of a device."""

from __future__ import annotations

from stepladder.errors import ResourceError
from stepladder.parallel.divided.choice import size_words


def head_bytes(*, num_features: int, num_classes: int, batch: int) -> int:
    """Return the bytes of a linear head in training: weights, gradients, states, and its batch."""
    return 4 * (6 * num_features * num_classes + 3 * batch * num_features)


def require_members(
    num: int, *, member_bytes: int, held_bytes: int, free_bytes: float, otherwise: str
) -> None:
    """Check that a population fits into memory.

    Args:
        member_bytes: of each member in training.
        held_bytes: of what all members share.
        otherwise: what to do if not even two members fit.

    Raises:
        ResourceError: if it does not fit; says how many members do.
    """
    fit = int((free_bytes - held_bytes) // member_bytes)
    if num <= fit:
        return
    raise ResourceError(
        f"{num:,} members need {size_words(num * member_bytes + held_bytes)} of memory, of which "
        f"{size_words(free_bytes)} are free",
        where="population.members",
        fix=f"Use at most {fit} members (--population.members {fit}), or train them in turn: "
        "--population.engine slices"
        if fit >= 2
        else otherwise,
    )

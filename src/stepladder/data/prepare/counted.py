"""Words of warnings about a number of pictures: counts that agree, and the first names."""

from __future__ import annotations

from collections.abc import Sequence

NUM_NAMES = 5
_OF_ONE = {"are": "is", "have": "has", "use": "uses", "were": "was"}


def pictures(num: int, predicate: str, *, of: int | None = None, what: str = "pictures") -> str:
    """Return a clause about a number of pictures, such as `1 picture has ...`.

    Args:
        num: number of pictures.
        predicate: what is said of several of them; its first word is the verb.
        of: number of all of them, if that is said.
        what: which ones, such as `grey pictures of 8 bits`.
    """
    verb, _, rest = predicate.partition(" ")
    count = f"{num}" if of is None else f"{num} of {of}"
    noun = what.replace("pictures", "picture") if (num if of is None else of) == 1 else what
    return f"{count} {noun} {_OF_ONE.get(verb, verb) if num == 1 else verb} {rest}"


def first_names(names: Sequence[str], num: int, elsewhere: str) -> str:
    """Return the first names, and how many more there are.

    Args:
        names: some or all of them.
        num: number of all.
        elsewhere: where the others are, such as `, see FILE`.
    """
    shown = names[:NUM_NAMES]
    num_more = num - len(shown)
    return ", ".join(shown) + (f" and {num_more} more{elsewhere}" if num_more > 0 else "")

"""What is given in code is looked at as a config's values are: choices, and numbers in bounds."""

from __future__ import annotations

import operator
from enum import StrEnum
from numbers import Real
from typing import Any, TypeVar

from stepladder.errors import UsageError

Choice = TypeVar("Choice", bound=StrEnum)


def choice(kind: type[Choice], value: str, *, where: str) -> Choice:
    """Return the choice that a member or its name stands for.

    Args:
        where: the argument, named in the error.

    Raises:
        UsageError: if it is none of them; lists them.
    """
    try:
        return kind(value)
    except ValueError:
        raise UsageError(
            f"{value!r} is none of its choices",
            where=where,
            fix=f"Give one of: {', '.join(kind)}.",
        ) from None


def require_at_least(least: int, **numbers: int) -> None:
    """Refuse what is no whole number, or a smaller one.

    Raises:
        UsageError: at the first of them; names it.
    """
    for name, number in numbers.items():
        try:
            is_fit = operator.index(number) >= least
        except TypeError:
            is_fit = False
        if not is_fit:
            raise UsageError(f"{name} is {number!r}", fix=f"Give a whole number, {least} or more.")


def whole(name: str, number: Any) -> int:
    """Return a whole number, such as one of NumPy, as Python's own, which JSON can hold.

    Raises:
        UsageError: if it is none.
    """
    try:
        return operator.index(number)
    except TypeError:
        raise UsageError(f"{name} is {number!r}", fix="Give a whole number.") from None


def require_share(**numbers: float) -> None:
    """Refuse what is no number in (0, 1].

    Raises:
        UsageError: at the first of them; names it.
    """
    for name, number in numbers.items():
        if not isinstance(number, Real) or not 0 < number <= 1:
            raise UsageError(
                f"{name} is {number!r}", fix="Give a number above 0, and 1 at most, such as 0.5."
            )


def require_rank(rank: int, world_size: int) -> None:
    """Refuse a rank that is none of so many.

    Raises:
        UsageError: if it is not in [0, world_size).
    """
    require_at_least(1, world_size=world_size)
    require_at_least(0, rank=rank)
    if rank >= world_size:
        raise UsageError(
            f"rank {rank} is not in [0, {world_size})",
            fix="Give each process its own rank: from 0 to world_size - 1.",
        )

"""Validate function arguments: choices and numeric bounds, as for config values."""

from __future__ import annotations

import operator
from enum import StrEnum
from numbers import Real
from typing import Any, TypeVar

from stepladder.errors import UsageError

Choice = TypeVar("Choice", bound=StrEnum)


def choice(kind: type[Choice], value: str, *, where: str) -> Choice:
    """Convert a member or its value to the enum member.

    Args:
        where: name of the argument, for the error.

    Raises:
        UsageError: if it is not one of the choices; lists them.
    """
    try:
        return kind(value)
    except ValueError:
        raise UsageError(
            f"{value!r} is not one of the possible values",
            where=where,
            fix=f"Choose one of: {', '.join(kind)}.",
        ) from None


def require_at_least(least: int, **numbers: int) -> None:
    """Check that numbers are integers of at least `least`.

    Raises:
        UsageError: for the first that is not; has its name.
    """
    for name, number in numbers.items():
        try:
            is_fit = operator.index(number) >= least
        except TypeError:
            is_fit = False
        if not is_fit:
            raise UsageError(
                f"{name} is {number!r}, but must be an integer of at least {least}",
                fix=f"Set {name} to {least} or more.",
            )


def whole(name: str, number: Any) -> int:
    """Convert an integer, such as a NumPy integer, to int, so that JSON can store it.

    Raises:
        UsageError: if it is not an integer.
    """
    try:
        return operator.index(number)
    except TypeError:
        raise UsageError(f"{name} is {number!r}", fix="Use an integer.") from None


def require_share(**numbers: float) -> None:
    """Check that numbers are in (0, 1].

    Raises:
        UsageError: for the first that is not; has its name.
    """
    for name, number in numbers.items():
        if not isinstance(number, Real) or not 0 < number <= 1:
            raise UsageError(f"{name} is {number!r}", fix="Use a number in (0, 1], such as 0.5.")


def require_rank(rank: int, world_size: int) -> None:
    """Check that a rank is in range.

    Raises:
        UsageError: if it is not in [0, world_size).
    """
    require_at_least(1, world_size=world_size)
    require_at_least(0, rank=rank)
    if rank >= world_size:
        raise UsageError(
            f"rank is {rank}, but with world_size={world_size} it must be from 0 to "
            f"{world_size - 1}",
            fix="In each process, set rank to another number from 0 to world_size - 1.",
        )

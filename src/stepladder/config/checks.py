"""Validation of config values."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from stepladder.errors import UsageError


class BadValueError(UsageError):
    """A config value is outside its range.

    Args:
        key: dotted name, as in YAML.
        value: the given value.
        wanted: description of the valid range.
    """

    def __init__(self, key: str, value: object, wanted: str) -> None:
        super().__init__(f"{key}: {value} is not {wanted}", fix=f"Use a value {wanted}.")
        self.key = key


def require(holds: bool, key: str, value: object, wanted: str) -> None:
    """Raise BadValueError unless the condition is true."""
    if not holds:
        raise BadValueError(key, value, wanted)


@dataclass(frozen=True)
class Range:
    """The range of values of a numeric option.

    Attributes:
        low, high: the bounds; high is infinite if there is no upper bound.
        takes_low, takes_high: the bound itself is valid.
    """

    low: float
    high: float = math.inf
    takes_low: bool = True
    takes_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value >= self.low if self.takes_low else value > self.low
        below = value <= self.high if self.takes_high else value < self.high
        return above and (below or math.isinf(self.high))

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"{self.low:g} or more" if self.takes_low else f"above {self.low:g}"
        opening, closing = "[" if self.takes_low else "(", "]" if self.takes_high else ")"
        return f"in {opening}{self.low:g}, {self.high:g}{closing}"


def ranged(default: float | None, within: Range) -> Any:
    """Return a dataclass field with a range, which `require_ranges` enforces."""
    return dataclasses.field(default=default, metadata={"range": within})


def ranges_of(group: Any) -> dict[str, Range]:
    """Return the ranges of a dataclass, or of an instance, by field name."""
    fields = dataclasses.fields(group)
    return {field.name: field.metadata["range"] for field in fields if "range" in field.metadata}


def require_ranges(group: Any, name: str) -> None:
    """Raise BadValueError if a field of a group is outside its range."""
    for field, within in ranges_of(group).items():
        value = getattr(group, field)
        if value is not None:
            require(value in within, f"{name}.{field}", value, str(within))

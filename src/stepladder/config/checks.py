"""The one way in which a config value is refused."""

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
        value: what was given.
        wanted: the range in words.
    """

    def __init__(self, key: str, value: object, wanted: str) -> None:
        super().__init__(f"{key}: {value} is not {wanted}", fix=f"Give a value {wanted}.")
        self.key = key


def require(holds: bool, key: str, value: object, wanted: str) -> None:
    """Raise BadValueError unless the condition holds."""
    if not holds:
        raise BadValueError(key, value, wanted)


@dataclass(frozen=True)
class Range:
    """The numbers that an option takes.

    Attributes:
        low, high: the bounds; infinity: no upper bound.
        takes_low, takes_high: the bound itself is inside.
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
    """Make a dataclass field with a range, which `require_ranges` enforces."""
    return dataclasses.field(default=default, metadata={"range": within})


def ranges_of(group: Any) -> dict[str, Range]:
    """Return the range of each field that has one, of a dataclass or an instance of it."""
    fields = dataclasses.fields(group)
    return {field.name: field.metadata["range"] for field in fields if "range" in field.metadata}


def require_ranges(group: Any, name: str) -> None:
    """Raise BadValueError unless each field of a group that has a value lies in its range."""
    for field, within in ranges_of(group).items():
        value = getattr(group, field)
        if value is not None:
            require(value in within, f"{name}.{field}", value, str(within))

"""The one way in which a config value is refused."""

from __future__ import annotations

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

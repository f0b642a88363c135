"""The version that `open_table` reads of a Delta table where its caller names none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class _Pin:
    version: int
    place: str | None
    asked: set[str] = field(default_factory=set)


_PIN: ContextVar[_Pin | None] = ContextVar("version pin", default=None)


@contextmanager
def reading_version(version: int, *, place: str | None = None) -> Iterator[set[str]]:
    """Let tables be opened at a version within the block, as if their callers had named it.

    A table that has no such version is opened at its latest.

    Args:
        place: of the one table that is meant; None: every Delta table.

    Yields:
        The places of the tables that were opened without a version.
    """
    pin = _Pin(version, place)
    token = _PIN.set(pin)
    try:
        yield pin.asked
    finally:
        _PIN.reset(token)


def pinned_version(place: str) -> int | None:
    """Give the version at which to open a Delta table that is asked for without one."""
    pin = _PIN.get()
    if pin is None:
        return None
    pin.asked.add(place)
    return pin.version if pin.place in (None, place) else None

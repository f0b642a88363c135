"""Tell before the work starts whether the disk has room for the store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stepladder.data.prepare.plan import ShardPlan
from stepladder.errors import ResourceError
from stepladder.machine.limits import disk_free_bytes

_KEPT_FREE_FRAC = 0.01  # file systems slow down, and logs fail, when nothing is left


def check_space(shards: Iterable[ShardPlan], place: Path) -> int:
    """Check that the files that are still to be written fit.

    Returns:
        Bytes that they need, about.

    Raises:
        ResourceError: with both numbers.
    """
    need_bytes = sum(shard.forecast_bytes for shard in shards)
    check_room(
        need_bytes,
        place,
        fix="Free space, give --out on another disk, a smaller --size, or --encoding jpeg.",
    )
    return need_bytes


def check_room(need_bytes: int, place: Path, *, fix: str, what: str = "the store") -> None:
    """Check that a store, or something else, of so many bytes fits on the disk of a folder.

    Raises:
        ResourceError: with both numbers.
    """
    free_bytes = disk_free_bytes(place)
    if need_bytes * (1 + _KEPT_FREE_FRAC) > free_bytes:
        raise ResourceError(
            f"{what} needs {_in_gb(need_bytes)}, and {_in_gb(free_bytes)} are free",
            where=str(place.parent),
            why="Nothing was written. An older store is kept until the new one is whole.",
            fix=fix,
        )


def _in_gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.3g} GB"

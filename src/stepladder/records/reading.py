"""Reading statistics of a run: totals of its `reader` events over all attempts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Totals of a run's reading of its training examples.

    Attributes:
        num_read: examples read from storage.
        read_bytes: stored bytes read; 0: not known.
        fetch_s, decode_s: seconds, summed over threads.
        wait_s: seconds that the steps waited for batches.
        num_threads: reading threads of the last attempt.
        num_requests, num_retries, received_bytes: of an object store; retries are counted in both.
        cache_hits, cache_misses: requested files of the store that were in the cache, or not.
    """

    num_read: float = 0.0
    read_bytes: float = 0.0
    fetch_s: float = 0.0
    decode_s: float = 0.0
    wait_s: float = 0.0
    num_threads: float = 0.0
    num_requests: float = 0.0
    num_retries: float = 0.0
    received_bytes: float = 0.0
    cache_hits: float = 0.0
    cache_misses: float = 0.0

    @property
    def decode_frac(self) -> float:
        """Fraction of the reading threads' time spent on decoding, in [0, 1]."""
        busy_s = self.fetch_s + self.decode_s
        return self.decode_s / busy_s if busy_s > 0 else 0.0

    @property
    def fetch_bytes_per_s(self) -> float | None:
        """Bytes per second of one fetching thread; None if not known."""
        return self.read_bytes / self.fetch_s if self.read_bytes and self.fetch_s > 0 else None

    @property
    def hit_frac(self) -> float | None:
        """Fraction of requested files that were in the cache; None if none was requested."""
        num_asked = self.cache_hits + self.cache_misses
        return self.cache_hits / num_asked if num_asked else None


def reading_of(events: Iterable[Mapping[str, Any]]) -> Reading | None:
    """Sum the last totals of each attempt; return None if no example was read.

    Args:
        events: events of kind `reader`, in order; values that are not numbers count as 0.
    """
    last = {event.get("attempt"): event for event in events if _is_plain(event.get("attempt"))}
    totals = {
        field.name: sum(_number(event.get(field.name)) for event in last.values())
        for field in fields(Reading)
    }
    if not totals["num_read"]:
        return None
    return Reading(**totals | {"num_threads": _number([*last.values()][-1].get("num_threads"))})


def _is_plain(attempt: object) -> bool:
    return attempt is None or isinstance(attempt, (int, str))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    return float(value) if abs(value) < 1e100 and math.isfinite(value) and value > 0 else 0.0

"""Wait until other processes leave the cores alone, because timings beside them are no basis."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from stepladder.ladder.limits.guard import Watchdog
from stepladder.machine import MAX_CORES_MISSING, Usage, cores_missing_since

_LOOK_S: Final = 0.3


@dataclass(kw_only=True)
class Patience:
    """Time that may be spent on waiting, and on timings that other processes disturbed.

    Attributes:
        left_s: seconds that are left.
        used_s: seconds that were spent.
        counted: seconds of each timing that counts, and how many cores others used meanwhile.
    """

    left_s: float
    used_s: float = 0.0
    counted: list[tuple[float, float]] = field(default_factory=list)

    @property
    def cores_missing(self) -> float:
        """Mean number of cores that others used during the timings that count."""
        seconds = sum(seconds for seconds, _ in self.counted)
        return sum(s * missing for s, missing in self.counted) / seconds if seconds else 0.0

    def wait(self, watchdog: Watchdog) -> None:
        """Return when no other process uses this process's cores, or no time is left."""
        while self.left_s > 0:
            watchdog.expect(_LOOK_S)
            start = Usage.now()
            time.sleep(_LOOK_S)
            if cores_missing_since(start) <= MAX_CORES_MISSING:
                return
            self._spend(_LOOK_S)

    def is_wasted(self, start: Usage) -> bool:
        """Return True if a timing since `start` was disturbed and there is time for another."""
        seconds, missing = time.monotonic() - start.wall_s, cores_missing_since(start)
        if self.left_s > 0 and missing > MAX_CORES_MISSING:
            self._spend(seconds)
            return True
        self.counted.append((seconds, missing))
        return False

    def _spend(self, seconds: float) -> None:
        self.left_s -= seconds
        self.used_s += seconds

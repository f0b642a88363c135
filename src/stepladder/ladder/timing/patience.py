"""Wait until other processes leave the cores alone, because timings beside them are no basis."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from stepladder.ladder.limits.guard import Watchdog
from stepladder.machine import MAX_CORES_MISSING, Usage, cores_missing_since, num_cores
from stepladder.machine.activity import doing

MAX_WAIT_S: Final = 300.0
"""Seconds that a climb may spend on waiting and on timings that it has to repeat."""
LASTING_S: Final = 60.0
"""Seconds of waiting after which others are taken to use the cores for good."""
_ORIGINAL_TIMES: Final = 2.0  # a short job is not worth a long wait
_BUDGET_FRAC: Final = 0.25
_MAX_SHARE_MISSING: Final = 0.05  # of the cores: on many cores, a little other work is usual
_LOOK_S: Final = 0.3

Timed = TypeVar("Timed")


def allowance_s(original_s: float, budget_s: float | None) -> float:
    """Return the seconds that a climb may spend on waiting for quiet moments.

    Args:
        original_s: time of the original job.
        budget_s: of the climb; None: no limit.
    """
    budget_s = float("inf") if budget_s is None else budget_s
    return min(MAX_WAIT_S, _ORIGINAL_TIMES * original_s, _BUDGET_FRAC * budget_s)


@dataclass(kw_only=True)
class Patience:
    """Time that may be spent on waiting, and on timings that other processes disturbed.

    Attributes:
        left_s: seconds that are left; none once others have used the cores for LASTING_S.
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

    @property
    def was_disturbed(self) -> bool:
        """Whether others used the cores during the last timing that counts."""
        return bool(self.counted) and self.counted[-1][1] > _limit()

    def undisturbed(self, take: Callable[[], Timed], watchdog: Watchdog | None = None) -> Timed:
        """Return a timing that no other process disturbed, or any one if no time is left.

        The first one begins without a look, which would take longer than many timings.
        """
        while True:
            start = Usage.now()
            timed = take()
            if not self.is_wasted(start):
                return timed
            self.wait(watchdog)

    def wait(self, watchdog: Watchdog | None = None) -> None:
        """Return when no other process uses this process's cores, or no time is left."""
        if self.left_s <= 0 or self._is_quiet(watchdog):
            return
        enough_s = self.used_s + LASTING_S
        with doing("waiting until other processes leave the cores alone"):
            while self.left_s > 0 and not self._is_quiet(watchdog):
                if self.used_s > enough_s:
                    self.left_s = 0.0

    def is_wasted(self, start: Usage) -> bool:
        """Return True if a timing since `start` was disturbed and there is time for another."""
        seconds, missing = time.monotonic() - start.wall_s, cores_missing_since(start)
        if self.left_s > 0 and missing > _limit():
            self._spend(seconds)
            return True
        self.counted.append((seconds, missing))
        return False

    def _is_quiet(self, watchdog: Watchdog | None) -> bool:
        """Look for a moment whether others use the cores."""
        if watchdog is not None:
            watchdog.expect(_LOOK_S)
        start = Usage.now()
        time.sleep(_LOOK_S)
        if cores_missing_since(start) <= _limit():
            return True
        self._spend(time.monotonic() - start.wall_s)
        return False

    def _spend(self, seconds: float) -> None:
        self.left_s -= seconds
        self.used_s += seconds


def _limit() -> float:
    """Return the number of cores that others may use without disturbing a timing."""
    return max(MAX_CORES_MISSING, _MAX_SHARE_MISSING * num_cores())

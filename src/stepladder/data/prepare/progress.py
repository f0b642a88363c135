"""How far prepare is, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class PreparePhase(StrEnum):
    """What prepare is doing."""

    HASH = "hash"
    WRITE = "write"
    UPLOAD = "upload"


@dataclass(frozen=True, kw_only=True)
class PrepareProgress:
    """How far a phase is.

    Attributes:
        done, total: pictures; of an upload, files.
        per_s: of them a second in this run.
        left_s: seconds left of the phase; None before the pace is known.
    """

    phase: PreparePhase
    done: int
    total: int
    per_s: float
    left_s: float | None


class Progress:
    """Counts pictures or files, and tells a listener, a few times a second and at the end."""

    _EVERY_S = 0.1

    def __init__(
        self,
        phase: PreparePhase,
        total: int,
        listener: Callable[[PrepareProgress], None] | None,
    ) -> None:
        self._phase = phase
        self._total = total
        self._listener = listener
        self._done = 0
        self._num_skipped = 0
        self._started_s = time.monotonic()
        self._told_s = 0.0

    def skip(self, count: int) -> None:
        """Count pictures that an earlier run finished; they say nothing of the pace."""
        self._num_skipped += count
        self._done += count

    def advance(self) -> None:
        """Count one more."""
        self.reach(self._done + 1)

    def reach_of(self, done: int, total: int) -> None:
        """Set the count, and how many there are as far as is known."""
        self._total = total
        self.reach(done)

    def reach(self, done: int) -> None:
        """Set the count."""
        self._done = done
        now_s = time.monotonic()
        is_due = now_s - self._told_s >= self._EVERY_S or done == self._total
        if self._listener is None or not is_due:
            return
        self._told_s = now_s
        elapsed_s = now_s - self._started_s
        per_s = (done - self._num_skipped) / elapsed_s if elapsed_s > 0 else 0.0
        self._listener(
            PrepareProgress(
                phase=self._phase,
                done=done,
                total=self._total,
                per_s=per_s,
                left_s=(self._total - done) / per_s if per_s > 0 else None,
            )
        )

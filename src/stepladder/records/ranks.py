"""What `stepladder watch` reports of each rank of a script with several processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

RANK_FILE: Final = "rank.json"
_COMPUTE: Final = ("forward", "backward", "optimizer")
_LOST: Final = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "connection was likely closed",
    "broken pipe",
    "remote process exited",
    "timed out",
    "timeout",
    "aborted",
    "socket closed",
    "failed to recv",
    "failed to send",
    "sendbytes failed",
    "recvvalue failed",
)
"""Parts of the messages with which a rank reports that another one is gone."""


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """One rank in the merged report.

    Attributes:
        rank: of 0 … number of ranks − 1.
        host: name of its machine.
        pid: its process; None: it left no report.
        is_complete: it has ended and reported it; False: still running, killed, or no report.
        ending: how it ended, in words.
        exit_code: None: it has not ended, or that is not known.
        ended_at: seconds since 1970; None: it has not ended.
        signal_number: signal that ended it; 0: none.
        crash, crashed_at: the exception that ended it, and the script's line; None: none did.
        num_steps: observed optimizer steps.
        step_s: mean seconds per step; None: too few steps.
        phase_s: seconds per step by phase, as in `times` of the report.
        exposed_s: seconds per step in which it only waited for communication; None: not measured.
        exposed_inside_s: of these, those that are part of forward or backward.
        overhead_s: CPU seconds of the watcher.
    """

    rank: int
    host: str = ""
    pid: int | None = None
    is_complete: bool = False
    ending: str = ""
    exit_code: int | None = None
    ended_at: float | None = None
    signal_number: int = 0
    crash: str | None = None
    crashed_at: str | None = None
    num_steps: int = 0
    step_s: float | None = None
    phase_s: Mapping[str, float] = field(default_factory=dict)
    exposed_s: float | None = None
    exposed_inside_s: float = 0.0
    overhead_s: float = 0.0

    @property
    def has_failed(self) -> bool:
        """Whether it ended by itself, with an exit code other than 0."""
        return self.is_complete and bool(self.exit_code) and not self.signal_number

    @property
    def has_lost_another(self) -> bool:
        """Whether it failed because it could not reach another rank any more."""
        crash = (self.crash or "").lower()
        return any(part in crash for part in _LOST)

    @property
    def wait_s(self) -> float:
        """Seconds per step in which it waited for data."""
        return self.phase_s.get("data_wait", 0.0)

    @property
    def compute_s(self) -> float:
        """Seconds per step of forward, backward and optimizer, without exposed communication."""
        whole = sum(self.phase_s.get(name, 0.0) for name in _COMPUTE)
        return max(0.0, whole - self.exposed_inside_s)

    @property
    def other_s(self) -> float:
        """Seconds per step that are neither data, nor compute, nor exposed communication."""
        named = self.wait_s + self.compute_s + (self.exposed_s or 0.0)
        return max(0.0, (self.step_s or 0.0) - named)


def first_dead(ranks: Sequence[RankReport]) -> RankReport | None:
    """Return the rank that died first, of which the others died or were ended; None if none did.

    A rank that lost the connection to another one died because of that one, even if that one was
    killed and could not report anything.
    """
    failed = sorted((one for one in ranks if one.has_failed), key=lambda one: one.ended_at or 0.0)
    by_itself = next((one for one in failed if not one.has_lost_another), None)
    if by_itself is not None:
        return by_itself
    killed = [one for one in ranks if not one.is_complete]
    ended_by_signal = any(one.signal_number for one in ranks)
    if len(killed) == 1 and (failed or ended_by_signal):
        return killed[0]
    return failed[0] if failed else None

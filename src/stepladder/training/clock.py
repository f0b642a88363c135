"""The time that a run spends in each phase, on the host and on the device.

The host timeline is wall time, split into named phases; time outside all phases is `unexplained`
and never distributed over the others. The device timeline comes from CUDA events that are read
once they are complete, so that no step waits for its measurement. Each must add up on its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import torch

from stepladder.training.output.wording import percent


class Phase(StrEnum):
    """A named part of a run's time. Phases never nest."""

    SETUP = "setup"
    FEATURES = "features"
    DATA_WAIT = "data_wait"
    TO_DEVICE = "to_device"
    AUGMENT = "augment"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    LOGGING = "logging"
    TEST = "test"


STEP_PHASES = (
    Phase.DATA_WAIT,
    Phase.TO_DEVICE,
    Phase.AUGMENT,
    Phase.FORWARD,
    Phase.BACKWARD,
    Phase.OPTIMIZER,
)
ON_DEVICE = frozenset(STEP_PHASES[1:]) | {Phase.VALIDATION}

MAX_UNEXPLAINED_FRAC = 0.10
MAX_NAMED_FRAC = 1.05


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A closed timeline.

    Attributes:
        wall_s: length of the timeline in seconds.
        phases_s: seconds in each named phase.
    """

    wall_s: float
    phases_s: Mapping[str, float]

    @property
    def unexplained_s(self) -> float:
        """Return the seconds outside all phases; negative if phases overlap."""
        return self.wall_s - sum(self.phases_s.values())

    def since(self, earlier: Timeline) -> Timeline:
        """Return the part of this timeline after an earlier state of it."""
        return Timeline(
            wall_s=self.wall_s - earlier.wall_s,
            phases_s={
                name: seconds - earlier.phases_s.get(name, 0.0)
                for name, seconds in self.phases_s.items()
            },
        )

    def why_no_advice(self) -> str | None:
        """Return why this timeline is no basis for advice, or None if it adds up."""
        if self.wall_s <= 0:
            return "no time was measured"
        share = self.unexplained_s / self.wall_s
        if share > MAX_UNEXPLAINED_FRAC:
            return f"{percent(share, 0)} of the time is outside all named phases (limit: 10 %)"
        if 1 - share > MAX_NAMED_FRAC:
            named = percent(1 - share, 0)
            return f"the named phases add up to {named} of the time (limit: 105 %)"
        return None

    def data_wait_frac(self) -> float:
        """Return the fraction of training-step time spent waiting for data, in [0, 1]."""
        steps = sum(self.phases_s.get(phase, 0.0) for phase in STEP_PHASES)
        return self.phases_s.get(Phase.DATA_WAIT, 0.0) / steps if steps > 0 else 0.0


class _Lap:
    """Adds the time between entering and leaving to a phase; created once and reused.

    Recording the device's marks counts as part of the phase: it is work of the host in it.
    """

    __slots__ = ("clock", "device", "phase", "started", "total_s")

    def __init__(self, clock: Clock, phase: Phase, device: DeviceTimeline | None) -> None:
        self.clock = clock
        self.phase = phase
        self.device = device
        self.started = 0.0
        self.total_s = 0.0

    def __enter__(self) -> None:
        if self.clock.open_lap is not None:
            raise RuntimeError(f"phase {self.phase} began inside {self.clock.open_lap.phase}")
        self.started = self.clock.now()
        self.clock.open_lap = self
        if self.device is not None:
            self.device.enter(self.phase)

    def __exit__(self, *_: object) -> None:
        self.clock.open_lap = None
        if self.device is not None:
            self.device.leave(self.phase)
        self.total_s += self.clock.now() - self.started


class Clock:
    """Times the phases of a run.

    Args:
        device: a DeviceTimeline on CUDA; None on the CPU, where the host timeline is used.
        now: a monotonic clock in seconds.
    """

    def __init__(
        self,
        device: DeviceTimeline | None = None,
        *,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.now = now
        self.device = device
        self.open_lap: _Lap | None = None
        self._laps = {
            phase: _Lap(self, phase, device if phase is not Phase.DATA_WAIT else None)
            for phase in Phase
        }
        self._before_wall_s = 0.0
        self._started = now()

    def go_on_from(self, wall_s: float, phases_s: Mapping[str, float]) -> None:
        """Add the time of earlier attempts of the same run."""
        self._before_wall_s += wall_s
        for name, seconds in phases_s.items():
            if name in self._laps:
                self._laps[Phase(name)].total_s += seconds

    def phase(self, phase: Phase) -> _Lap:
        """Return the context manager that adds to a phase.

        Raises:
            RuntimeError: on entering, if another phase is open: phases do not nest.
        """
        return self._laps[phase]

    def wall_s(self) -> float:
        """Return the seconds since the run began, over all attempts."""
        return self._before_wall_s + self.now() - self._started

    def total_s(self, phase: Phase) -> float:
        """Return the seconds in one phase so far."""
        return self._laps[phase].total_s

    def host(self) -> Timeline:
        """Return the host timeline up to now."""
        return Timeline(
            wall_s=self.wall_s(),
            phases_s={phase.value: lap.total_s for phase, lap in self._laps.items() if lap.total_s},
        )

    def truth(self) -> Timeline:
        """Return the timeline to compute data wait from: the device's if there is one.

        The device's may lag behind by the work that is still queued; this does not wait for it.
        """
        return self.device.so_far() if self.device is not None else self.host()


class DeviceEvent(Protocol):
    """A CUDA event with timing, or an object with the same interface."""

    def record(self) -> Any:
        """Record a mark at this point of the stream."""

    def query(self) -> bool:
        """Return True if the device has passed the mark."""

    def synchronize(self) -> Any:
        """Wait until the device has passed the mark."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this mark to another."""


def cuda_event() -> DeviceEvent:
    """Return a CUDA event with timing."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class DeviceTimeline:
    """The device's time, from events at the start and end of phases.

    The gap between the end of one step's work and the start of the next is the time that the device
    really waited: the data wait. Time in `next()` while the device still has work does not count,
    nor does idle time of the device while the host is in another named phase (a checkpoint, a log)
    or before the timeline is closed.

    Args:
        make_event: returns a timing event; replaced in tests.
    """

    def __init__(self, make_event: Callable[[], DeviceEvent] = cuda_event) -> None:
        self._make_event = make_event
        self._pool: list[DeviceEvent] = []
        self._open: DeviceEvent | None = None
        self._pending: deque[tuple[Phase, DeviceEvent | None, DeviceEvent]] = deque()
        self._last: DeviceEvent | None = None
        self._totals: dict[str, float] = {}
        self._wall_s = 0.0

    def _event(self) -> DeviceEvent:
        event = self._pool.pop() if self._pool else self._make_event()
        event.record()
        return event

    def enter(self, phase: Phase) -> None:
        """Mark the start of a phase on the stream; host phases are marked only at the end."""
        self._open = self._event() if phase in ON_DEVICE else None

    def leave(self, phase: Phase) -> None:
        """Mark the end of a phase, and read the marks that the device has passed."""
        self._pending.append((phase, self._open, self._event()))
        self._open = None
        while self._pending and self._pending[0][2].query():
            self._read(*self._pending.popleft())

    def _read(self, phase: Phase, start: DeviceEvent | None, end: DeviceEvent) -> None:
        if start is not None:
            self._count(phase, start, end)
            self._pool.append(start)
        self._begin_at(end)

    def _count(self, phase: Phase, start: DeviceEvent, end: DeviceEvent) -> None:
        """Add a phase, and the gap between the last mark and its start."""
        if self._last is not None:
            gap_s = max(0.0, self._last.elapsed_time(start) / 1e3)
            self._wall_s += gap_s
            if phase is Phase.TO_DEVICE:
                self._add(Phase.DATA_WAIT, gap_s)
        seconds = start.elapsed_time(end) / 1e3
        self._add(phase, seconds)
        self._wall_s += seconds

    def _begin_at(self, event: DeviceEvent) -> None:
        """Start the next gap at a mark."""
        if self._last is not None:
            self._pool.append(self._last)
        self._last = event

    def _add(self, phase: Phase, seconds: float) -> None:
        self._totals[phase.value] = self._totals.get(phase.value, 0.0) + seconds

    def so_far(self) -> Timeline:
        """Return the timeline up to the last mark that was read, without waiting."""
        return Timeline(wall_s=self._wall_s, phases_s=dict(self._totals))

    def close(self) -> Timeline:
        """Wait for the device once, and return the timeline up to now; the next gap starts now."""
        while self._pending:
            phase, start, end = self._pending.popleft()
            end.synchronize()
            self._read(phase, start, end)
        self._begin_at(self._event())
        return self.so_far()

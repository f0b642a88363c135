"""Find a rank that stops answering or hangs in its own work, and name it.

Each rank reports every second that it is there, what its main thread does, and for how long without
progress. A rank whose process was stopped, whose host is frozen, or whose disk hangs would
otherwise keep all others waiting for ever, in a collective whose error names no rank. The thread
that reports keeps running while the main thread hangs, so work that may hang has a name
(`machine/activity.py`), and a rank that waits for others is never taken for the one that hangs.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from stepladder.machine.activity import standing
from stepladder.parallel.failures import LOST_CODE, Failure, log_file, record_failure
from stepladder.parallel.flight_recorder import dump_collectives
from stepladder.parallel.world import Pulse, World

EVERY_S: Final = 1.0
_ASK_S: Final = 5.0  # for one answer of the store
_END_S: Final = 5.0  # to report a rank: the disk of the run may be what hangs
_STARTING: Final = "starting"
_OWN_PHASES: Final = {"data_wait": "waiting for data"}
"""Phases of a step in which a rank waits for no other one: a name would cost time at each step."""
_hearts = itertools.count()


@dataclass(kw_only=True)
class Heart:
    """The beats of this rank, and on rank 0 those of all.

    Attributes:
        address: host and port of the store.
        meet_s: seconds without progress that are too many in the handshake, whatever a rank does.
        stall_s: seconds without an answer that are too many, and after the handshake also those
            without progress in work that has a name.
        folder: of the run.
        attempt: how often the launcher has started the ranks before.
        pulse: step and phase of this rank; None: not training yet.
    """

    world: World
    address: tuple[str, int]
    meet_s: float
    stall_s: float
    folder: Path
    attempt: int
    pulse: Pulse | None = None
    _is_met: bool = False
    _answered_s: float = 0.0
    _mark: Any = None
    _moved_s: float = 0.0
    _number: int = field(default_factory=lambda: next(_hearts))
    _is_over: threading.Event = field(default_factory=threading.Event)
    _seen: dict[int, tuple[int, float]] = field(default_factory=dict)

    def start(self) -> None:
        """Begin to beat, in a thread."""
        self._answered_s = time.monotonic()
        loops = (self._run,) if self.world.is_main else (self._run, self._watch_main)
        for loop in loops:
            threading.Thread(target=loop, name="stepladder-heart", daemon=True).start()

    def met(self) -> None:
        """Note that the handshake of this rank is over."""
        self._is_met = True

    def watch(self, pulse: Pulse) -> None:
        """Report what this rank does from now on."""
        self.met()
        self.pulse = pulse

    def stop(self) -> None:
        """Stop before the store is closed."""
        self._is_over.set()

    def _run(self) -> None:
        store, count = None, 0
        while not self._is_over.wait(EVERY_S):
            try:
                if store is None:
                    timeout = timedelta(seconds=_ASK_S)
                    store = TCPStore(*self.address, is_master=False, timeout=timeout)
                count += 1
                self.send(store, count)
                store.get(self._key(self.world.rank))  # waits for the answer, as set does not
                found = self.look(store) if self.world.is_main else None
                self._answered_s = time.monotonic()
            except Exception:  # rank 0, whose process has the store, has ended
                continue
            if found is not None and not self._is_over.is_set():
                self.end(*found)

    def _watch_main(self) -> None:
        """Watch that rank 0 answers: a request to the store of a stopped process never returns."""
        while not self._is_over.wait(EVERY_S):
            silent_s = time.monotonic() - self._answered_s
            if silent_s > self.stall_s:
                self.end(0, f"has not answered for {silent_s:.0f} s ({self._host(0)})")

    def send(self, store: Any, count: int) -> None:
        """Report what this rank does."""
        store.set(self._key(self.world.rank), json.dumps(self._beat(count)))

    def _key(self, rank: int) -> str:
        return f"beat-{self._number}-{rank}"

    def _beat(self, count: int) -> dict[str, Any]:
        step, phase = self.pulse() if self.pulse is not None else (-1, "")
        what, for_s = self._own_work(step, phase)
        return {
            "count": count,
            "host": socket.gethostname(),
            "step": step,
            "what": what,
            "for_s": for_s,
            "is_met": self._is_met,
        }

    def _own_work(self, step: int, phase: str) -> tuple[str, float]:
        """Return what the main thread does by itself, and for how many seconds without progress."""
        found, now = standing(), time.monotonic()
        what = found.what or _OWN_PHASES.get(phase) or ("" if self._is_met else _STARTING)
        if found.waits_for_others:
            what = ""
        mark = (what, step, found.mark)
        if mark != self._mark:
            self._mark, self._moved_s = mark, now
        return what, now - self._moved_s if what else 0.0

    def look(self, store: Any) -> tuple[int, str] | None:
        """Return the rank that is stalled and how, or None."""
        now = time.monotonic()
        for rank in range(self.world.size):
            key = self._key(rank)
            beat: Mapping[str, Any] = json.loads(store.get(key)) if store.check([key]) else {}
            count = int(beat.get("count", 0))
            known, since = self._seen.get(rank, (-1, now))
            if count != known:
                self._seen[rank] = (count, now)
            elif now - since > self.stall_s:
                where = _at(beat) or f" ({self._host(rank)})"
                return rank, f"has not answered for {now - since:.0f} s{where}"
            option = "stall" if beat.get("is_met") else "meet"
            limit_s = self.stall_s if option == "stall" else self.meet_s
            if beat.get("what") and (for_s := float(beat["for_s"])) > limit_s:
                return rank, (
                    f"has been {beat['what']} for {for_s:.0f} s without progress{_at(beat)}, which "
                    f"--run.{option}-s {2 * limit_s:g} would allow"
                )
        return None

    def end(self, rank: int, what: str) -> None:
        """Report the rank, and end this process: its main thread waits in a collective."""
        thread = threading.Thread(target=self._report, args=(rank, what), daemon=True)
        thread.start()
        thread.join(_END_S)
        os._exit(LOST_CODE)

    def _host(self, rank: int) -> str:
        """Return the name of a rank's host; this host's if all are on one."""
        names, hosts = self.world.host_names, self.world.hosts
        return names[hosts[rank]] if names and hosts else socket.gethostname()

    def _report(self, rank: int, what: str) -> None:
        line = f"rank {rank} {what}"
        sys.stderr.write(f"{line}; its log: {log_file(self.folder, rank)}\n")
        sys.stderr.flush()
        failure = Failure(
            rank=rank,
            host=self._host(rank),
            at=time.time(),
            attempt=self.attempt,
            exit_code=4,
            is_final=False,
            lines=(line,),
        )
        record_failure(self.folder, failure)
        dump_collectives(self.folder, rank=self.world.rank, attempt=self.attempt)


def _at(beat: Mapping[str, Any]) -> str:
    if "host" not in beat:
        return ""
    step = f", step {beat['step']}" if beat["step"] >= 0 else ""
    return f" ({beat['host']}{step})"

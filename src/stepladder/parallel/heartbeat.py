"""Find a rank that stops answering, and name it.

Each rank tells every second that it is there, and what it does. A rank whose process was stopped,
whose host is frozen, or whose disk hangs would otherwise keep all others waiting for ever, in a
collective whose error names no rank.
"""

from __future__ import annotations

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

from stepladder.parallel.failures import LOST_CODE, Failure, record_failure
from stepladder.parallel.flight_recorder import dump_collectives
from stepladder.parallel.world import Pulse, World

EVERY_S: Final = 1.0
_ASK_S: Final = 5.0  # for one answer of the store
_OWN_WORK: Final = frozenset({"data_wait"})  # phases in which a rank waits for no other one


@dataclass(kw_only=True)
class Heart:
    """The beats of this rank, and on rank 0 those of all.

    Attributes:
        address: host and port of the store.
        stall_s: seconds without an answer, or within one wait for data, that are too many.
        folder: of the run.
        pulse: what this rank does; None: not training yet.
    """

    world: World
    address: tuple[str, int]
    stall_s: float
    folder: Path
    attempt: int
    pulse: Pulse | None = None
    _answered_s: float = 0.0
    _is_over: threading.Event = field(default_factory=threading.Event)
    _seen: dict[int, tuple[int, float]] = field(default_factory=dict)

    def start(self) -> None:
        """Begin to beat, in a thread."""
        self._answered_s = time.monotonic()
        loops = (self._run,) if self.world.is_main else (self._run, self._watch_main)
        for loop in loops:
            threading.Thread(target=loop, name="stepladder-heart", daemon=True).start()

    def watch(self, pulse: Pulse) -> None:
        """Report what this rank does from now on."""
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
                store.set(self._key(self.world.rank), json.dumps(self._beat(count)))
                store.get(self._key(self.world.rank))  # waits for the answer, as set does not
                found = self._look(store) if self.world.is_main else None
                self._answered_s = time.monotonic()
            except Exception:  # rank 0, whose process has the store, has ended
                continue
            if found is not None and not self._is_over.is_set():
                self._end(*found)

    def _watch_main(self) -> None:
        """Watch that rank 0 answers: a request to the store of a stopped process never returns."""
        while not self._is_over.wait(EVERY_S):
            silent_s = time.monotonic() - self._answered_s
            if silent_s > self.stall_s:
                self._end(0, f"has not answered for {silent_s:.0f} s")

    def _key(self, rank: int) -> str:
        return f"beat-{self.attempt}-{rank}"

    def _beat(self, count: int) -> dict[str, Any]:
        step, phase, for_s = self.pulse() if self.pulse is not None else (-1, "", 0.0)
        return {
            "count": count,
            "host": socket.gethostname(),
            "step": step,
            "phase": phase,
            "for_s": for_s,
        }

    def _look(self, store: Any) -> tuple[int, str] | None:
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
                return rank, f"has not answered for {now - since:.0f} s{_at(beat)}"
            if beat.get("phase") in _OWN_WORK and float(beat["for_s"]) > self.stall_s:
                return rank, f"has waited for data for {float(beat['for_s']):.0f} s{_at(beat)}"
        return None

    def _end(self, rank: int, what: str) -> None:
        """Report the rank, and end this process: its main thread waits in a collective."""
        line = f"rank {rank} {what}"
        failure = Failure(
            rank=rank,
            host=socket.gethostname(),
            at=time.time(),
            attempt=self.attempt,
            exit_code=4,
            is_final=False,
            lines=(line,),
        )
        record_failure(self.folder, failure)
        dump_collectives(self.folder, rank=self.world.rank, attempt=self.attempt)
        sys.stderr.write(f"{line}; its log: {self.folder / 'logs' / f'rank-{rank}.log'}\n")
        sys.stderr.flush()
        os._exit(LOST_CODE)


def _at(beat: Mapping[str, Any]) -> str:
    if "host" not in beat:
        return ""
    step = f", step {beat['step']}" if beat["step"] >= 0 else ""
    return f" ({beat['host']}{step})"

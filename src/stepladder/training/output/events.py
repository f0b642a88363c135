"""events.jsonl: all events of a run, one per line, written immediately."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from stepladder.errors import ResourceError
from stepladder.machine.activity import on_its_own
from stepladder.records import fsync_file, to_json, write_bytes

EVENTS_FILE = "events.jsonl"
DISCARDED_FILE = "events.discarded.jsonl"

_DURABLE = frozenset(
    {"checkpoint", "stop"}
)  # a resume or a reader relies on these after a power cut

_SECRET = re.compile(  # name=value or "name": "value", as in YAML, JSON, shells and addresses
    r"""([\w-]*(?:secret|token(?!s)|passw(?:or)?d|(?:api|access)_?key|credential|signature)[\w-]*"""
    r"""["']?\s*[:=]\s*["']?)[^\s"'&,]+""",
    re.IGNORECASE,
)

_STATUS = {"signal": "interrupted", "diverged": "diverged"}


class Sink(Protocol):
    """Another destination of events, such as TensorBoard files."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one event with its raw values (non-finite floats are still floats)."""

    def close(self, status: str) -> None:
        """Close the sink; the status is the summary's: finished, interrupted or diverged."""


class EventLog:
    """Appends events to RUN/events.jsonl, one write per line: a kill loses at most one line.

    A sink that fails (for example a lost server) is dropped with a warning event and never stops
    the run. If the file itself cannot be written, the run stops: without its events it cannot be
    resumed or reported.

    Args:
        run_folder: the run's folder, which exists.
        attempt: number of this process of the run, from 1.
        start_elapsed_s: seconds of earlier attempts.
    """

    def __init__(
        self,
        run_folder: Path,
        *,
        attempt: int,
        sinks: Sequence[Sink] = (),
        start_elapsed_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = run_folder / EVENTS_FILE
        self.attempt = attempt
        self._sinks = list(sinks)
        self._status = "interrupted"
        self._clock = clock
        self._zero_s = clock() - start_elapsed_s
        self._lock = threading.Lock()  # the system sampler writes from its own thread
        try:
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._end_half_line()
        except OSError as error:
            raise self._refusal(error) from error

    @property
    def elapsed_s(self) -> float:
        """Return the seconds of this run over all attempts."""
        return max(0.0, self._clock() - self._zero_s)

    def write(self, event: str, *, step: int, epoch: int, **values: object) -> None:
        """Append one event.

        Args:
            event: its kind: start, train, reader, validation, system, checkpoint, warning or stop.
            step: optimizer steps done so far.
            epoch: complete epochs done; after the first epoch it is 1.
            values: numbers, strings, lists; NaN and infinities are written as strings.

        Raises:
            ResourceError: if the file cannot be written.
        """
        record: dict[str, object] = {
            "event": event,
            "step": step,
            "epoch": epoch,
            "attempt": self.attempt,
            "elapsed_s": round(self.elapsed_s, 3),
        }
        record.update((key, _plain(value)) for key, value in values.items())
        if event == "stop":
            self._status = _STATUS.get(str(values.get("reason")), "finished")
        line = json.dumps(to_json(record), allow_nan=False) + "\n"
        with on_its_own("writing the log"), self._lock:
            self._append(line.encode(), is_durable=event in _DURABLE)
            failures = [
                failure for sink in list(self._sinks) if (failure := self._feed(sink, record))
            ]
        for failure in failures:
            self.write("warning", step=step, epoch=epoch, message=failure)

    def close(self) -> None:
        """Close the file and the sinks; a second call does nothing.

        Sinks get the status of the stop event; a run without one was interrupted.
        """
        with self._lock:
            for sink in self._sinks:
                try:
                    sink.close(self._status)
                except Exception:  # the run is over and its own file is complete
                    continue
            self._sinks.clear()
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: bytes, *, is_durable: bool) -> None:
        try:
            num_written = os.write(self._handle, line)
            while num_written < len(line):  # a nearly full disk writes a part, and then raises
                num_written += os.write(self._handle, line[num_written:])
            if is_durable:
                fsync_file(self._handle)
        except OSError as error:
            raise self._refusal(error) from error

    def _feed(self, sink: Sink, record: Mapping[str, Any]) -> str | None:
        try:
            sink.write(record)
        except Exception as error:  # a third-party writer may raise anything
            self._sinks.remove(sink)
            return redacted(f"{type(sink).__name__} failed and is disabled: {error}")
        return None

    def _end_half_line(self) -> None:
        """End a partial line left by a kill, so that the next event begins a new line."""
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":
            os.write(self._handle, b"\n")

    def _refusal(self, error: OSError) -> ResourceError:
        return ResourceError(
            f"the record of the run, events.jsonl, cannot be written ({error.strerror or error})",
            where=str(self.path),
            why="A run without it cannot be resumed, and has no report.",
            fix="Free disk space, or get write permission for the file, then type the same command "
            "to resume.",
        )


def rewind(run_folder: Path, *, after_step: int) -> int:
    """Move events after a checkpoint to events.discarded.jsonl, before a resume repeats them.

    The discarded lines are on disk before they are removed from events.jsonl, and no line is added
    twice, so that a kill in between neither loses nor duplicates any.

    Args:
        run_folder: the folder with events.jsonl.
        after_step: the checkpoint's step; events of later steps are moved, those without a step
            stay.

    Returns:
        The number of lines moved, including a partial one.
    """
    path = run_folder / EVENTS_FILE
    if not path.exists():
        return 0
    lines = path.read_bytes().splitlines()
    is_past = [_is_past(line, after_step) for line in lines]
    moved = [line for line, past in zip(lines, is_past, strict=True) if past]
    if not moved:
        return 0
    discarded = run_folder / DISCARDED_FILE
    earlier = discarded.read_bytes().splitlines() if discarded.exists() else []
    seen = set(earlier)
    write_bytes(discarded, _joined([*earlier, *(line for line in moved if line not in seen)]))
    write_bytes(
        path, _joined([line for line, past in zip(lines, is_past, strict=True) if not past])
    )
    return len(moved)


def redacted(text: str) -> str:
    """Mask likely secrets: the user in a URL, tokens, keys and passwords."""
    text = re.sub(r"(?<=://)[^/@\s]+(?=@)", "***", text)
    return _SECRET.sub(r"\1***", text)


def _is_past(line: bytes, after_step: int) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return True  # a partial or damaged line: no reader can use it
    step = record.get("step") if isinstance(record, dict) else None
    return isinstance(step, int) and step > after_step


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _plain(value: object) -> object:
    """Convert a NumPy or torch scalar to a Python number; return anything else unchanged."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    return value

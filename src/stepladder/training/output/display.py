"""The display of a run: live progress on a terminal, plain lines elsewhere, or JSON lines.

A display never ends a run: if the pipe or terminal is closed, it is turned off.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from stepladder.machine.activity import SILENCE_S, Heartbeat, Sink, printed
from stepladder.records import to_json
from stepladder.training.output.wording import (
    activity_words,
    byte_rate,
    clean,
    duration,
    pace,
    percent,
    rough_time,
    summary_lines,
    validation_line,
)

PLAIN_EVERY_S = SILENCE_S
JSON_EVERY_S = 1.0


class Outlet:
    """A text stream that may be closed: then writing does nothing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream
        self.copy: TextIO | None = None  # a log, for whole lines
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write text; characters outside the stream's encoding become `?`."""
        printed()
        if self.copy is not None and not {"\r", "\x1b"} & set(text):
            self.copy.write(text)
        if self._stream is not None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
            except (OSError, ValueError):
                self._turn_off()
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._turn_off()

    def line(self, text: str) -> None:
        """Write one line and flush."""
        self.write(text + "\n")
        self.flush()

    def isatty(self) -> bool:
        """Return True if the stream is a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:
            return False

    def fileno(self) -> int:
        """Return the stream's descriptor; rich needs it for the terminal's size."""
        if self._stream is None:
            raise OSError("the stream is closed")
        return self._stream.fileno()

    def _turn_off(self) -> None:
        """Drop the stream, so that flushing its buffer does not fail again when Python exits."""
        stream, self._stream = self._stream, None
        try:
            handle = stream.fileno() if stream is not None else -1
            if handle > 2:
                return
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, handle)
            os.close(null)
        except (OSError, ValueError):
            pass


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgressState:
    """The progress of training, for a display.

    Attributes:
        epoch: the current epoch, from 1.
        step: optimizer steps done, over all epochs.
        step_in_epoch: optimizer steps done in this epoch.
        loss: recent mean training loss; accuracy likewise, None if the task returns none.
        data_wait_frac: fraction of the time spent waiting for data, in [0, 1].
        read_bytes_per_s: stored bytes read by steps per second; None: the data is in memory, or it
            is unknown.
        cache_hit_frac: fraction of a remote store's files that were in the cache when requested;
            None: the data is local.
        fetch_example_s, decode_example_s: mean seconds of one thread to fetch and to decode an
            example; None: no example was read.
        epoch_left_s, run_left_s: estimated seconds left; None: unknown.
        may_stop_early: with early stopping, run_left_s is an upper bound.
    """

    epoch: int
    max_epochs: int
    step: int
    step_in_epoch: int
    steps_per_epoch: int
    loss: float
    accuracy: float | None = None
    samples_per_s: float
    data_wait_frac: float
    read_bytes_per_s: float | None = None
    cache_hit_frac: float | None = None
    fetch_example_s: float | None = None
    decode_example_s: float | None = None
    epoch_left_s: float | None = None
    run_left_s: float | None = None
    may_stop_early: bool = True

    def run_left(self) -> str:
        """Return the time left of the run; `at most` if early stopping may end it sooner."""
        left = duration(self.run_left_s)
        return f"at most {left}" if self.may_stop_early and left != "unknown" else left

    def measures(self) -> list[str]:
        """Return the measurements of the last steps, most important first."""
        words = [f"loss {self.loss:.4f}"]
        if self.accuracy is not None:
            words.append(f"accuracy {percent(self.accuracy)}")
        words.append(f"{pace(self.samples_per_s)} samples/s")
        words.append(f"wait {percent(self.data_wait_frac, 0)}")
        return words

    def reading(self) -> list[str]:
        """Return the measurements of reading, most important first; empty if nothing is read."""
        words = []
        if self.read_bytes_per_s is not None:
            words.append(byte_rate(self.read_bytes_per_s))
        if self.cache_hit_frac is not None:
            words.append(f"cache {percent(self.cache_hit_frac, 0)}")
        of_one = {"fetch": self.fetch_example_s, "decode": self.decode_example_s}
        return words + [f"{what} {rough_time(took_s)}" for what, took_s in of_one.items() if took_s]


class Display:
    """Shows only warnings, on stderr (`--quiet`); the base of all displays."""

    def __init__(
        self,
        stream: TextIO,
        *,
        every_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._heart = Heartbeat(None)
        self.out = Outlet(stream)
        self._every_s = every_s
        self._clock = clock
        self._shown_at = -math.inf

    def is_due(self) -> bool:
        """Return True if `step` would show anything now; also if the clock jumps back."""
        if self._every_s == math.inf:
            return False
        return not self._shown_at <= self._clock() < self._shown_at + self._every_s

    def start(self, title: str, lines: Sequence[str] = ()) -> None:
        """Show a title and the lines under it."""

    def step(self, state: ProgressState) -> None:
        """Show progress, if it is due; may be called at every step."""
        if self.is_due():
            self._shown_at = self._clock()
            self.show(state)

    def hash(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Show how many pictures have been hashed, if it is due or all are done."""
        if self.is_due() or (done == total and self._every_s != math.inf):
            self._shown_at = self._clock()
            self.show_hash(done, total, per_s, left_s)

    def prepare(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Show how many pictures have been prepared, if it is due or all are done."""
        if self.is_due() or (done == total and self._every_s != math.inf):
            self._shown_at = self._clock()
            self.show_prepare(done, total, per_s, left_s)

    def features(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Show for how many examples features are computed, if it is due or all are done."""
        if self.is_due() or (done == total and self._every_s != math.inf):
            self._shown_at = self._clock()
            self.show_features(done, total, per_s, left_s)

    def upload(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Show how many files of a store have been uploaded, if it is due or all are done."""
        if self.is_due() or (done == total and self._every_s != math.inf):
            self._shown_at = self._clock()
            self.show_upload(done, total, per_s, left_s)

    def show(self, state: ProgressState) -> None:
        """Show progress now."""

    def show_hash(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Show the progress of hashing (the first pass of prepare) now."""

    def show_prepare(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Show the progress of prepare now."""

    def show_features(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Show the progress of computing features now."""

    def show_upload(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Show the progress of uploading a store now."""

    def validation(self, values: Mapping[str, Any]) -> None:
        """Show a validation; the values are those of its event, including `epoch`."""

    def message(self, text: str) -> None:
        """Show a line."""

    def table(self, line: str, values: Mapping[str, Any]) -> None:
        """Show a line of a result, if it is not empty, or its values as JSON."""

    def warning(self, text: str) -> None:
        """Show a warning."""
        Outlet(sys.stderr).line(f"warning: {clean(text)}")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Show the summary of the run."""

    def close(self) -> None:
        """Restore the terminal; a second call does nothing."""

    def working(self) -> Sink | None:
        """Return the function that shows the current activity when nothing else is shown."""
        return None

    def __enter__(self) -> Display:
        self._heart.sink = self.working()
        self._heart.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._heart.__exit__()
        self.close()


class PlainDisplay(Display):
    """Shows a plain line every 8 s, and one for each validation, message and warning."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, every_s=PLAIN_EVERY_S, clock=clock)

    def start(self, title: str, lines: Sequence[str] = ()) -> None:
        """Show the title, and the lines indented under it."""
        self.out.line("\n  ".join(clean(text) for text in (title, *lines)))

    def working(self) -> Sink:
        """Return a function that writes a line."""
        return lambda report: self.out.line(f"{report.what}, {activity_words(report)}")

    def show(self, state: ProgressState) -> None:
        """Show the progress of training."""
        epoch = f"epoch {state.epoch}/{state.max_epochs}"
        step = f"step {state.step_in_epoch}/{state.steps_per_epoch}"
        left = f"left: epoch {duration(state.epoch_left_s)}, run {state.run_left()}"
        self.out.line(", ".join([f"{epoch} {step}", *state.measures(), *state.reading(), left]))

    def show_hash(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Show how many pictures have been hashed."""
        self.out.line(f"hashed {done:,} of {total:,}, {pace(per_s)}/s, {duration(left_s)} left")

    def show_prepare(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Show how many pictures have been prepared."""
        self.out.line(f"prepared {done:,} of {total:,}, {pace(per_s)}/s, {duration(left_s)} left")

    def show_features(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Show for how many examples features are computed."""
        self.out.line(
            f"features of {done:,} of {total:,}, {pace(per_s)}/s, {duration(left_s)} left"
        )

    def show_upload(self, done: int, total: int, per_s: float, left_s: float | None) -> None:  # noqa: ARG002
        """Show how many files have been uploaded."""
        self.out.line(f"uploaded {done:,} of {total:,} files, {duration(left_s)} left")

    def validation(self, values: Mapping[str, Any]) -> None:
        """Show one validation."""
        self.out.line(validation_line(values))

    def message(self, text: str) -> None:
        """Show a line."""
        self.out.line(clean(text))

    def table(self, line: str, values: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Show the line."""
        if line:
            self.out.line(line)

    def warning(self, text: str) -> None:
        """Show a warning."""
        self.out.line(f"warning: {clean(text)}")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Show the summary of the run."""
        for line in summary_lines(summary):
            self.out.line(line)


class JsonDisplay(Display):
    """Writes JSON lines on stdout: progress (at most once a second) and events."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, every_s=JSON_EVERY_S, clock=clock)

    def start(self, title: str, lines: Sequence[str] = ()) -> None:
        """Write a `start` object."""
        self._write("start", {"title": title, "lines": list(lines)})

    def working(self) -> Sink:
        """Return a function that writes a `working` object."""
        return lambda report: self._write("working", asdict(report))

    def show(self, state: ProgressState) -> None:
        """Write a `progress` object with the fields of ProgressState."""
        self._write("progress", asdict(state))

    def show_hash(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Write a `hash` object."""
        self._write("hash", {"done": done, "total": total, "per_s": per_s, "left_s": left_s})

    def show_prepare(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Write a `prepare` object."""
        self._write("prepare", {"done": done, "total": total, "per_s": per_s, "left_s": left_s})

    def show_features(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Write a `features` object."""
        self._write("features", {"done": done, "total": total, "per_s": per_s, "left_s": left_s})

    def show_upload(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Write an `upload` object."""
        self._write("upload", {"done": done, "total": total, "per_s": per_s, "left_s": left_s})

    def validation(self, values: Mapping[str, Any]) -> None:
        """Write a `validation` object with the event's values."""
        self._write("validation", values)

    def message(self, text: str) -> None:
        """Write a `message` object."""
        self._write("message", {"message": text})

    def table(self, line: str, values: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Write the values as an object with their own `event`, if there are any."""
        if values:
            self._write(str(values.get("event", "row")), values)

    def warning(self, text: str) -> None:
        """Write a `warning` object."""
        self._write("warning", {"message": text})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write a `summary` object with the keys of summary.json."""
        self._write("summary", summary)

    def _write(self, event: str, values: Mapping[str, Any]) -> None:
        self.out.line(json.dumps({"event": event} | to_json(values), allow_nan=False))

"""The display of a run: live progress on a terminal, plain lines elsewhere, or JSON lines.

A display never ends a run: if the pipe or terminal is closed, it is turned off.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from threading import RLock
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from stepladder.machine.activity import SILENCE_S, Heartbeat, Report, Sink, printed
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

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

PLAIN_EVERY_S = SILENCE_S
JSON_EVERY_S = 1.0
LIVE_EVERY_S = 0.25
_LIVE_SILENCE_S = 1.0


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
        self.complete: Callable[[str], str] = str
        """Completes the commands in warnings of `prepare` with the options that a user typed."""

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


class LiveDisplay(Display):
    """Live progress lines at the bottom; validations, messages and warnings stay above them.

    The first line shows progress, the second the measurements of steps, the third those of reading.

    Drawn in the calling thread, at most four times a second: a separate thread would compete with
    the readers and the step. Only if nothing is drawn for a second, the thread of the heartbeat
    shows the current activity. rich respects NO_COLOR.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console

        super().__init__(stream, every_s=LIVE_EVERY_S, clock=clock)
        self._console = Console(file=cast("IO[str]", self.out), highlight=False, markup=False)
        self._live: Live | None = None
        self._lock = RLock()
        self._heart.every_s = _LIVE_SILENCE_S

    def working(self) -> Sink:
        """Return a function that draws the activity."""

        def draw(report: Report) -> None:
            tail = activity_words(report)
            self._draw(head=report.what, done=report.done, total=report.total, tail=tail)

        return draw

    def start(self, title: str, lines: Sequence[str] = ()) -> None:
        """Show the title in bold, and the lines under it."""
        self._print(clean(title), "bold")
        for line in lines:
            self._print(f"  {clean(line)}")

    def show(self, state: ProgressState) -> None:
        """Draw the lines."""
        left = f"{duration(state.epoch_left_s)} left, run {state.run_left()}"
        self._draw(
            head=f"epoch {state.epoch} of {state.max_epochs}",
            done=state.step_in_epoch,
            total=state.steps_per_epoch,
            tail=left,
            below=([f"step {state.step:,}", *state.measures()], state.reading()),
        )

    def show_hash(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Draw how many pictures have been hashed."""
        tail = f"{done:,} of {total:,}, {pace(per_s)}/s, {duration(left_s)} left"
        self._draw(head="hashing", done=done, total=total, tail=tail)

    def show_prepare(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Draw how many pictures have been prepared."""
        tail = f"{done:,} of {total:,}, {pace(per_s)}/s, {duration(left_s)} left"
        self._draw(head="preparing", done=done, total=total, tail=tail)
        if done == total:
            self._freeze()

    def show_features(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Draw for how many examples features are computed."""
        tail = f"{done:,} of {total:,}, {pace(per_s)}/s, {duration(left_s)} left"
        self._draw(head="features", done=done, total=total, tail=tail)

    def show_upload(self, done: int, total: int, per_s: float, left_s: float | None) -> None:  # noqa: ARG002
        """Draw how many files have been uploaded."""
        tail = f"{done:,} of {total:,} files, {duration(left_s)} left"
        self._draw(head="sending", done=done, total=total, tail=tail)

    def validation(self, values: Mapping[str, Any]) -> None:
        """Print a validation above the progress; the best so far is highlighted."""
        self._print(validation_line(values), "green" if values.get("is_best") else "")

    def message(self, text: str) -> None:
        """Print a line above the progress."""
        self._print(clean(text))

    def table(self, line: str, values: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Print a line of a result above the progress."""
        if line:
            self._print(line)

    def warning(self, text: str) -> None:
        """Print a warning above the progress."""
        self._print(f"warning: {clean(text)}", "yellow")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Clear the progress and show the summary of the run, the result first and in bold."""
        self.close()
        for idx, line in enumerate(summary_lines(summary)):
            self._print(line, "" if idx else "bold")

    def close(self) -> None:
        """Clear the progress and show the cursor again."""
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _print(self, line: str, style: str = "") -> None:
        from rich.text import Text

        with self._lock:
            self._console.print(Text(line, style=style), soft_wrap=self._live is None)

    def _draw(
        self,
        *,
        head: str,
        done: int,
        total: int | None,
        tail: str,
        below: Sequence[Sequence[str]] = (),
    ) -> None:
        from rich.console import Group
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        bar = ProgressBar(total=None, pulse=True)
        if total is not None:
            bar = ProgressBar(total=max(total, 1), completed=min(done, total))
        row.add_row(Text(head, style="bold"), bar, Text(tail))
        lines: list[RenderableType] = [row]
        lines += [
            Text(" · ".join(words), style="dim", no_wrap=True, overflow="ellipsis")
            for words in below
            if words
        ]
        with self._lock:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(Group(*lines), refresh=True)

    def _freeze(self) -> None:
        """Keep the last drawing on the screen."""
        if self._live is not None:
            self._live.transient = False
            self.close()


class NotebookDisplay(PlainDisplay):
    """Shows progress in one line of a notebook's output that is updated; other lines stay."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock=clock)
        self._every_s = _LIVE_SILENCE_S
        self._heart.every_s = _LIVE_SILENCE_S
        self._progress: Any = None

    def working(self) -> Sink:
        """Return a function that updates the line."""
        return lambda report: self._update(f"{report.what}, {activity_words(report)}")

    def show(self, state: ProgressState) -> None:
        """Update the line with the progress of training."""
        self._in_place(super().show, state)

    def show_hash(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Update the line with the progress of hashing."""
        self._in_place(super().show_hash, done, total, per_s, left_s)

    def show_prepare(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Update the line with the progress of prepare."""
        self._in_place(super().show_prepare, done, total, per_s, left_s)

    def show_features(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Update the line with the progress of computing features."""
        self._in_place(super().show_features, done, total, per_s, left_s)

    def show_upload(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Update the line with the progress of an upload."""
        self._in_place(super().show_upload, done, total, per_s, left_s)

    def close(self) -> None:
        """Remove the line of progress."""
        if self._progress is not None:
            self._update("")
            self._progress = None

    def _in_place(self, show: Callable[..., None], *values: object) -> None:
        """Call a method that writes one line, and update the line of progress with its text."""
        text = StringIO()
        out, self.out = self.out, Outlet(text)
        try:
            show(*values)
        finally:
            self.out = out
        self._update(text.getvalue().strip())

    def _update(self, text: str) -> None:
        display = importlib.import_module("IPython.display").display  # only in a notebook
        printed()
        shown = {"text/plain": text}
        if self._progress is None:
            self._progress = display(shown, raw=True, display_id=True)
        else:
            self._progress.update(shown, raw=True)


def is_notebook() -> bool:
    """Return True in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def make_display(
    *, json: bool = False, quiet: bool = False, stream: TextIO | None = None
) -> Display:
    """Return a display: JSON or quiet if requested, live on a terminal, plain lines elsewhere."""
    stream = stream or sys.stdout
    if json:
        return JsonDisplay(stream)
    if quiet:
        return Display(stream)
    if Outlet(stream).isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveDisplay(stream)
    return PlainDisplay(stream)

"""Displays that draw progress in place: on a terminal, and in a cell of a notebook."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from threading import RLock
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from stepladder.machine.activity import Report, Sink, printed
from stepladder.training.output.display import Display, Outlet, PlainDisplay, ProgressState
from stepladder.training.output.wording import (
    activity_words,
    clean,
    duration,
    pace,
    summary_lines,
    validation_line,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

LIVE_EVERY_S = 0.25
_LIVE_SILENCE_S = 1.0


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

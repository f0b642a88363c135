"""Live progress on a terminal, drawn with rich."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stepladder.training.output.display import Display, ProgressState
from stepladder.training.output.wording import clean, duration, pace, summary_lines, validation_line

LIVE_EVERY_S = 0.25


class LiveDisplay(Display):
    """Lines that stay at the bottom; validations, messages and warnings are kept above them.

    The first says how far it is, the second what steps measured, the third what reading takes.

    Drawn in the calling thread, four times a second at most: a thread of its own would wake up
    beside the readers and the step. NO_COLOR is respected by rich.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, every_s=LIVE_EVERY_S, clock=clock)
        self._console = Console(file=cast("IO[str]", self.out), highlight=False, markup=False)
        self._live: Live | None = None

    def start(self, title: str, lines: Sequence[str] = ()) -> None:
        """Show the title in bold, and the lines under it."""
        self._print(Text(clean(title), style="bold"))
        for line in lines:
            self._print(Text(f"  {clean(line)}"))

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
        """Draw how many pictures have been read once."""
        tail = f"{done:,} of {total:,}, {pace(per_s)}/s, {duration(left_s)} left"
        self._draw(head="hashing", done=done, total=total, tail=tail)

    def show_prepare(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Draw how many pictures are prepared."""
        tail = f"{done:,} of {total:,}, {pace(per_s)}/s, {duration(left_s)} left"
        self._draw(head="preparing", done=done, total=total, tail=tail)
        if done == total:
            self._freeze()

    def show_features(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        """Draw how many examples have features."""
        tail = f"{done:,} of {total:,}, {pace(per_s)}/s, {duration(left_s)} left"
        self._draw(head="features", done=done, total=total, tail=tail)

    def show_upload(self, done: int, total: int, per_s: float, left_s: float | None) -> None:  # noqa: ARG002
        """Draw how many files have been sent."""
        tail = f"{done:,} of {total:,} files, {duration(left_s)} left"
        self._draw(head="sending", done=done, total=total, tail=tail)

    def validation(self, values: Mapping[str, Any]) -> None:
        """Keep one validation above the progress; the best so far stands out."""
        self._print(Text(validation_line(values), style="green" if values.get("is_best") else ""))

    def message(self, text: str) -> None:
        """Keep a line above the progress."""
        self._print(Text(clean(text)))

    def table(self, line: str, values: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Keep a line of a result above the progress."""
        self._print(Text(line))

    def warning(self, text: str) -> None:
        """Keep a warning above the progress."""
        self._print(Text(f"warning: {clean(text)}", style="yellow"))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Take the progress away and show how the run ended, the result first and in bold."""
        self.close()
        for idx, line in enumerate(summary_lines(summary)):
            self._print(Text(line, style="" if idx else "bold"))

    def close(self) -> None:
        """Take the progress away and show the cursor again."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=self._live is None)

    def _draw(
        self, *, head: str, done: int, total: int, tail: str, below: Sequence[Sequence[str]] = ()
    ) -> None:
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        bar = ProgressBar(total=max(total, 1), completed=min(done, total))
        row.add_row(Text(head, style="bold"), bar, Text(tail))
        lines: list[RenderableType] = [row]
        lines += [
            Text(" · ".join(words), style="dim", no_wrap=True, overflow="ellipsis")
            for words in below
            if words
        ]
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Group(*lines), refresh=True)

    def _freeze(self) -> None:
        """Leave the last drawing on the screen."""
        if self._live is not None:
            self._live.transient = False
            self.close()

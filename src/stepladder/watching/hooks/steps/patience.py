"""Watch counters of early stopping that the source never resets, and the best value beside them."""

from __future__ import annotations

import ast
import linecache
import re
from types import FrameType
from typing import Any, Final

from torch import Tensor

from stepladder.watching.hooks.losses.lost_terms import value_of
from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.script.patience import Counter, counters
from stepladder.watching.seen.steps import PatienceSeen
from stepladder.watching.watcher import Watcher

_MAX_LINES: Final = 1500  # of a file
_MAX_FILES: Final = 8
_MAX_READS: Final = 2000
_MAX_FRAMES: Final = 12
_MAX_VARIABLES: Final = 200  # of a frame
_SUSPECT: Final = re.compile(r"patience|early_?stop", re.IGNORECASE)


class PatienceWatch:
    """Reads the variables of such counters once in each evaluation, and in inspected steps."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._found: dict[str, list[tuple[Counter, PatienceSeen]]] = {}
        self._last: dict[int, tuple[int, float]] = {}
        self._step = -1
        self._num_reads = 0

    def install(self, watcher: Watcher) -> None:
        """Listen for evaluations and steps."""
        self._watcher = watcher
        watcher.on_evaluation.append(self._evaluated)
        watcher.on_close.append(self._read)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _evaluated(self, is_entered: bool) -> None:
        if is_entered:
            self._read()

    def _read(self) -> None:
        watcher = self._watcher
        if watcher.step == self._step or self._num_reads >= _MAX_READS:
            return
        self._step = watcher.step
        self._num_reads += 1
        frames = self._frames()
        for file in dict.fromkeys(frame.f_code.co_filename for frame in frames):
            for counter, seen in self._of_file(file):
                self._note(counter, seen, file, frames)

    def _frames(self) -> list[FrameType]:
        own = self._watcher.own
        found: list[FrameType] = []
        frame = own.frame()
        while frame is not None and len(found) < _MAX_FRAMES:
            if own.is_own(frame.f_code.co_filename):
                found.append(frame)
            frame = frame.f_back
        return found

    def _of_file(self, file: str) -> list[tuple[Counter, PatienceSeen]]:
        if file not in self._found and len(self._found) < _MAX_FILES:
            self._found[file] = []
            text = linecache.getlines(file)
            if not 0 < len(text) <= _MAX_LINES or not _SUSPECT.search("".join(text)):
                return []
            try:
                tree = ast.parse("".join(text))
            except (SyntaxError, ValueError, RecursionError):  # a magic command of a notebook
                return []
            for one in counters(tree):
                seen = PatienceSeen(
                    where=f"{self._watcher.own.name_of(file)}:{one.line}",
                    name=one.name,
                    limit=one.limit,
                    is_reset=one.is_reset,
                )
                self._watcher.seen.patience.append(seen)
                self._found[file].append((one, seen))
        return self._found.get(file, [])

    def _note(
        self, counter: Counter, seen: PatienceSeen, file: str, frames: list[FrameType]
    ) -> None:
        """Note whether the best value has changed since the last time, and the counter has not."""
        values = _values_of(counter, file, frames)
        if values is None:
            return
        seen.num_read += 1
        before = self._last.get(id(seen))
        self._last[id(seen)] = values
        if before is None or before[0] == 0 or before[1] == values[1] or values[0] < before[0]:
            return
        seen.num_kept += 1
        if seen.num_kept == 1:
            seen.count, seen.before, seen.after = values[0], before[1], values[1]


def _values_of(counter: Counter, file: str, frames: list[FrameType]) -> tuple[int, float] | None:
    """Return a counter and the best value; None if they are not there, or are no numbers."""
    for frame in frames:
        code = frame.f_code
        is_inside = code.co_filename == file and code.co_firstlineno <= counter.line
        if is_inside and code.co_name == (counter.function or "<module>"):
            names = [ast.parse(one, mode="eval").body for one in (counter.name, counter.best)]
            return _numbers(*(value_of(name, frame) for name in names))
    if not counter.owner or not counter.best.startswith("self."):
        return None
    for frame in frames:
        is_module = frame.f_code.co_name == "<module>"
        names_of = list(frame.f_globals if is_module else frame.f_code.co_varnames)
        for name in names_of[:_MAX_VARIABLES]:
            one = value_of(ast.Name(name), frame)
            if type(one).__name__ == counter.owner:
                own = getattr(one, "__dict__", {})
                ends = [text.removeprefix("self.") for text in (counter.name, counter.best)]
                return _numbers(*(own.get(end) for end in ends))
    return None


def _numbers(count: Any, best: Any) -> tuple[int, float] | None:
    if isinstance(best, Tensor):
        best = best.item() if is_plain(best) and best.is_cpu and best.numel() == 1 else None
    is_number = isinstance(best, (int, float)) and not isinstance(best, bool)
    if type(count) is not int or not is_number:
        return None
    return count, float(best)

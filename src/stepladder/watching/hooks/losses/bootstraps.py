"""Watch losses of Q-learning whose targets ignore where episodes end."""

from __future__ import annotations

import ast
import linecache
from typing import Any, Final

from torch import Tensor

from stepladder.watching.hooks.losses.lost_terms import value_of
from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.script.bootstraps import IgnoredEnd, ignored_ends
from stepladder.watching.seen.losses import IgnoredEndSeen
from stepladder.watching.watcher import Watcher

_MAX_LINES: Final = 1500  # of a file
_MAX_PLACES: Final = 8  # whose source is read


class BootstrapWatch:
    """Reads the source of the functions that lead to backward."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._found: dict[tuple[tuple[str, int], ...], list[IgnoredEndSeen]] = {}
        self._all: dict[tuple[str, int], IgnoredEndSeen] = {}

    def install(self, watcher: Watcher) -> None:
        """Subscribe to inspected calls of backward."""
        self._watcher = watcher
        watcher.on_backward.append(self._look)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _look(self) -> None:
        lines = self._watcher.own.lines()
        if lines not in self._found:
            if len(self._found) >= _MAX_PLACES:
                return
            self._found[lines] = list(self._read(lines))
        for seen in self._found[lines]:
            seen.num_seen += 1
            self._note_ends(seen)

    def _read(self, lines: tuple[tuple[str, int], ...]) -> list[IgnoredEndSeen]:
        found: list[IgnoredEndSeen] = []
        for file in dict.fromkeys(file for file, _ in lines):
            text = linecache.getlines(file)
            if not 0 < len(text) <= _MAX_LINES or "backward" not in "".join(text):
                continue
            try:
                tree = ast.parse("".join(text))
            except (SyntaxError, ValueError, RecursionError):  # a magic command of a notebook
                continue
            its = [line for name, line in lines if name == file]
            found += [self._seen_of(file, one) for one in ignored_ends(tree, its)]
        return found

    def _seen_of(self, file: str, one: IgnoredEnd) -> IgnoredEndSeen:
        key = (file, one.line)
        if key not in self._all:
            seen = IgnoredEndSeen(
                where=f"{self._watcher.own.name_of(file)}:{one.line}",
                function=one.function,
                name=one.name,
                target=one.target,
            )
            self._all[key] = seen
            self._watcher.seen.ignored_ends.append(seen)
        return self._all[key]

    def _note_ends(self, seen: IgnoredEndSeen) -> None:
        """Note whether episodes end in the batch, if its variable is in the innermost function."""
        frame = self._watcher.own.frame()
        if frame is None or seen.num_ends or frame.f_code.co_name != (seen.function or "<module>"):
            return
        ends: Any = value_of(ast.Name(seen.name), frame)
        if not isinstance(ends, Tensor) or not is_plain(ends) or not ends.is_cpu:
            return
        seen.num_transitions += ends.numel()
        num = int(ends.count_nonzero())
        seen.num_ends += ends.numel() - num if "not" in seen.name else num

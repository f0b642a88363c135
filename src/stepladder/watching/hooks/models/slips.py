"""Read the script's files at the end, for lines that do nothing or not what they seem to."""

from __future__ import annotations

import linecache
from typing import Final

from stepladder.watching.script.slips import slips
from stepladder.watching.seen.models import SlipSeen
from stepladder.watching.watcher import Watcher

_MAX_LINES: Final = 3000  # of a file
_MAX_FILES: Final = 16
_MAX_SLIPS: Final = 16


class SlipWatch:
    """Reads the files whose code was seen to run."""

    def __init__(self) -> None:
        self._watcher: Watcher

    def install(self, watcher: Watcher) -> None:
        """Keep the watcher, which knows the script's files."""
        self._watcher = watcher

    def settle(self) -> None:
        """Read the files."""
        found = self._watcher.seen.slips
        found.clear()
        for file, name in self._watcher.own.files()[:_MAX_FILES]:
            lines = linecache.getlines(file)
            if not 0 < len(lines) <= _MAX_LINES:
                continue
            try:
                read = slips("".join(lines))
            except (SyntaxError, ValueError, RecursionError):  # a magic command of a notebook
                continue
            found += [
                SlipSeen(kind=one.kind, where=f"{name}:{one.line}", code=one.code, name=one.name)
                for one in read
            ]
        del found[_MAX_SLIPS:]

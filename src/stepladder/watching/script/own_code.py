"""Find the line of the script's own code that led to a call."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from stepladder.watching.script.held_out import NamedData

_PACKAGE = str(Path(__file__).resolve().parents[2])
_LIBRARIES = ("site-packages", "dist-packages")
_MAX_LINES = 8


class OwnCode:
    """Distinguishes the script's own files from libraries.

    Args:
        folder: the script's folder; all files below it are its own, except installed packages.
        file: the script; its own wherever it is, such as a cell of a notebook.

    Attributes:
        named_data: which data its lines evaluate, by the names of variables.
    """

    def __init__(self, folder: Path, file: str | None = None) -> None:
        self._folder = str(folder.resolve())
        self._file = file
        self._standard = sysconfig.get_paths()["stdlib"]
        self._known: dict[str, str | None] = {}
        self.named_data = NamedData()

    def here(self) -> str | None:
        """Return the innermost line of the call stack that is the script's, as `train.py:12`."""
        frame = self.frame()
        return None if frame is None else f"{self._name(frame.f_code.co_filename)}:{frame.f_lineno}"

    def frame(self) -> FrameType | None:
        """Return the innermost frame of the call stack that is the script's."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self._name(frame.f_code.co_filename) is None:
            frame = frame.f_back
        return frame

    def name_of(self, filename: str) -> str | None:
        """Return the name under which a file is shown; None if it is not the script's."""
        return self._name(filename)

    def lines(self) -> tuple[tuple[str, int], ...]:
        """Return the lines of the call stack that are the script's: file and number."""
        found: list[tuple[str, int]] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and len(found) < _MAX_LINES:
            if self._name(frame.f_code.co_filename) is not None:
                found.append((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
        return tuple(found)

    def is_own(self, filename: str) -> bool:
        """Return whether a file is the script's."""
        return self._name(filename) is not None

    def shown(self, filename: str) -> str:
        """Return the name under which a file is shown."""
        return self._name(filename) or Path(filename).name

    def files(self) -> list[tuple[str, str]]:
        """Return the script's files whose code was seen to run, and how they are shown."""
        return [(file, shown) for file, shown in self._known.items() if shown is not None]

    def innermost(self, frames: Sequence[tuple[str, int]]) -> str | None:
        """Return the innermost of these lines, (file, line), that is the script's."""
        for file, line in reversed(frames):
            if (name := self._name(file)) is not None:
                return f"{name}:{line}"
        return None

    def is_own_call(self) -> bool:
        """Return whether the script itself, and not a library, called torch here."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith(_PACKAGE) and f"{os.sep}torch{os.sep}" not in file:
                return self._name(file) is not None
            frame = frame.f_back
        return False

    def file_of(self, where: str | None) -> str:
        """Return the file of a line such as `train.py:12`; empty if it is unknown."""
        name = (where or "").rpartition(":")[0]
        return next((known for known, shown in self._known.items() if shown == name), "")

    def code_of(self, where: str | None) -> str:
        """Return the code of a line such as `train.py:12`; empty if it is unknown."""
        file, line = self.file_of(where), (where or "").rpartition(":")[2]
        return linecache.getline(file, int(line)) if file and line.isdigit() else ""

    def is_assigned_and_called(self, where: str | None, method: str) -> bool:
        """Return whether the file calls a method of what a line assigns, as in `plan.step(`.

        A method that is called nowhere was forgotten; one that is called conditionally was skipped.
        """
        name, _, line = (where or "").rpartition(":")
        file = next((known for known, shown in self._known.items() if shown == name), None)
        if file is None or not line.isdigit():
            return False
        assigned = re.match(
            r"\s*(?:\w+\.)*(\w+)\s*(?::[^=]+)?=[^=]", linecache.getline(file, int(line))
        )
        if assigned is None:
            return False
        call = re.compile(rf"\b{assigned[1]}\.{method}\(")
        return any(call.search(text) for text in linecache.getlines(file))

    def _name(self, filename: str) -> str | None:
        if filename not in self._known:
            self._known[filename] = self._shown(filename)
        return self._known[filename]

    def _shown(self, filename: str) -> str | None:
        """Return the name under which a file of the script is shown; None for a library's file."""
        if filename == self._file or "ipykernel" in filename or filename.startswith("<ipython"):
            return Path(filename).name
        if filename.startswith("<"):
            return None
        path = str(Path(filename).resolve())
        is_library = path.startswith((_PACKAGE, self._standard)) or any(
            part in _LIBRARIES for part in Path(path).parts
        )
        if is_library or not path.startswith(self._folder):
            return None
        return str(Path(path).relative_to(self._folder))

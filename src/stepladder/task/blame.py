"""Which line of a user's own Task an error came from, and a Task that tries to end the program."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.errors import USER_TASK, UsageError

if TYPE_CHECKING:
    from stepladder.task.contract import Task

EXIT_FIX = "Raise an error there that says what is wrong; a Task must not end the program."


@dataclass(frozen=True, kw_only=True)
class TaskLine:
    """A line of a user's file.

    Attributes:
        place: "task.py:12", as a person at this folder would write it.
        method: the function that it stands in.
        code: what it says.
    """

    place: str
    method: str
    code: str

    def __str__(self) -> str:
        return f"{self.place}, in {self.method}: {self.code}"


def task_line(error: BaseException, task: Task | None = None) -> TaskLine | None:
    """Return the innermost line of the user's own Task that an error came through, or None.

    Args:
        task: one that was made in Python: its module counts too, unless it is ours.
    """
    own = "" if task is None else type(task).__module__
    own = "" if own.partition(".")[0] == "stepladder" else own
    found = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        if module.startswith(USER_TASK) or (own and module == own):
            file = frame.f_code.co_filename
            found = TaskLine(
                place=f"{shown(file)}:{number}",
                method=frame.f_code.co_name,
                code=linecache.getline(file, number).strip(),
            )
    return found


def method_place(task: Task, method: str) -> str:
    """Return "task.py:12", where a Task's method begins; its class's name where that is not known."""
    try:
        function = inspect.unwrap(getattr(type(task), method))
        file, number = function.__code__.co_filename, function.__code__.co_firstlineno
    except AttributeError:
        return type(task).__name__
    return f"{shown(file)}:{number}"


def shown(file: str) -> str:
    """Return a path as a person at this folder would write it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@contextmanager
def exits_told(task: Task | type, name: str | None = None) -> Iterator[None]:
    """Make an error of a Task's `sys.exit`, which would end us with its code and without a word.

    Args:
        task: that is called, or its class while it is made.
        name: stands for a line that is not known.

    Raises:
        UsageError: if the block raises SystemExit; names Task, file and line.
    """
    try:
        yield
    except SystemExit as error:
        kind = task if isinstance(task, type) else type(task)
        line = task_line(error, None if isinstance(task, type) else task)
        inside = f" in {line.method}" if line else ""
        raise UsageError(
            f"{kind.__name__} {exit_words(error)}{inside}",
            where=line.place if line else name or kind.__name__,
            fix=EXIT_FIX,
        ) from error


def exit_words(error: SystemExit) -> str:
    """Say how the program was to end: `calls sys.exit(3)`."""
    return f"calls sys.exit({'' if error.code is None else repr(error.code)})"

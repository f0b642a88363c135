"""Find the line of a user's Task that raised an error or called sys.exit."""

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

EXIT_FIX = "Raise an exception instead: a Task must not end the program."


@dataclass(frozen=True, kw_only=True)
class TaskLine:
    """A line of a user's file.

    Attributes:
        place: "task.py:12", relative to the current folder.
        method: the function that contains it.
        code: its source code.
    """

    place: str
    method: str
    code: str

    def __str__(self) -> str:
        return f"{self.place}, in {self.method}: {self.code}"


def task_line(error: BaseException, task: Task | None = None) -> TaskLine | None:
    """Return the innermost line of the user's own Task in an error's traceback, or None.

    Args:
        task: a Task created in Python, whose module counts too, unless it is ours.
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
    """Return "task.py:12", the start of a Task's method, or its class's name if unknown."""
    try:
        function = inspect.unwrap(getattr(type(task), method))
        file, number = function.__code__.co_filename, function.__code__.co_firstlineno
    except AttributeError:
        return type(task).__name__
    return f"{shown(file)}:{number}"


def shown(file: str) -> str:
    """Return a path relative to the current folder, if it is in it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@contextmanager
def exits_told(task: Task | type, name: str | None = None) -> Iterator[None]:
    """Turn `sys.exit` in a Task, which would silently end the program, into an error.

    Args:
        task: the Task that is called, or its class while it is created.
        name: used if the line is unknown.

    Raises:
        UsageError: if the block raises SystemExit, with Task, file and line.
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
    """Return the call in words: `calls sys.exit(3)`."""
    return f"calls sys.exit({'' if error.code is None else repr(error.code)})"

"""Errors that are not ours by class: those that a person can act on, and the trace of the rest."""

from __future__ import annotations

import errno
import tempfile
import traceback
from contextvars import ContextVar
from pathlib import Path

from stepladder.errors import ResourceError, StepladderError, UsageError
from stepladder.task.blame import EXIT_FIX, exit_words, task_line

TRACE_FOLDER: ContextVar[Path | None] = ContextVar("TRACE_FOLDER", default=None)
"""Where the running command keeps its results."""

_FIXES = {
    errno.ENOSPC: "Free some space (`stepladder clean` lists what may go) and run it again.",
    errno.EDQUOT: "Your quota is used up; free some space and run it again.",
    errno.EMFILE: "Too many files are open; raise the limit, as with `ulimit -n 4096`.",
    errno.EROFS: "Give a folder on a disk that can be written to.",
    errno.EACCES: "Give a folder that you may use, or change its permissions.",
    errno.EPERM: "Give a folder that you may use, or change its permissions.",
}


def known_error(error: Exception) -> StepladderError | None:
    """Return the message for an error that a person can act on, or None if it is probably ours."""
    if isinstance(error, StepladderError):
        return error
    if isinstance(error, OSError) and error.errno in _FIXES:
        where = str(error.filename) if error.filename else None
        return ResourceError(error.strerror or "", where=where, fix=_FIXES[error.errno])
    if type(error).__name__ == "OutOfMemoryError":  # torch's; torch is not imported here
        return ResourceError(
            "the device has no memory left for this batch",
            fix="Give --batch.micro-batch-size, such as a half of what it is; the result is equal.",
        )
    if isinstance(error, MemoryError):
        return ResourceError("there is no memory left", fix="Try --data.where stream.")
    return None


def line_of_task(error: Exception) -> str | None:
    """Return the innermost line of the user's own Task that an error came through, or None."""
    line = task_line(error)
    return None if line is None else str(line)


def exit_of_task(error: SystemExit) -> StepladderError | None:
    """Return what to say where the user's Task tried to end the program; None: it was not that."""
    line = task_line(error)
    if line is None:
        return None
    return UsageError(
        f"the Task {exit_words(error)} in {line.method}", where=line.place, fix=EXIT_FIX
    )


def save_trace(error: Exception) -> Path:
    """Write the trace into the command's folder, or a temporary file, and give its path."""
    text = "".join(traceback.format_exception(error))
    folder = TRACE_FOLDER.get()
    if folder is not None and folder.is_dir():
        path = folder / "crash.txt"
        try:
            path.write_text(text, encoding="utf-8")
            return path
        except OSError:
            pass
    with tempfile.NamedTemporaryFile(
        "w", prefix="stepladder-crash-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    return Path(file.name)

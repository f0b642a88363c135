"""Turn other exceptions into messages that the user can act on, or save their trace."""

from __future__ import annotations

import errno
import tempfile
import traceback
from contextvars import ContextVar
from pathlib import Path

from stepladder.errors import ResourceError, StepladderError, UsageError
from stepladder.task.blame import EXIT_FIX, exit_words, task_line

TRACE_FOLDER: ContextVar[Path | None] = ContextVar("TRACE_FOLDER", default=None)
"""Folder in which the running command writes its results."""

_FIXES = {
    errno.ENOSPC: "Free some space (`stepladder clean` lists files to remove) and try again.",
    errno.EDQUOT: "Your disk quota is exceeded; free some space and try again.",
    errno.EMFILE: "Raise the limit of open files, for example with `ulimit -n 4096`.",
    errno.EROFS: "Use a folder on a writable disk.",
    errno.EACCES: "Use another folder, or change its permissions.",
    errno.EPERM: "Use another folder, or change its permissions.",
}


def known_error(error: Exception) -> StepladderError | None:
    """Return a message for an error that the user can act on; None for a likely bug."""
    if isinstance(error, StepladderError):
        return error
    if isinstance(error, OSError) and error.errno in _FIXES:
        where = str(error.filename) if error.filename else None
        return ResourceError(error.strerror or "", where=where, fix=_FIXES[error.errno])
    if type(error).__name__ == "OutOfMemoryError":  # torch's; torch is not imported here
        return ResourceError(
            "the GPU does not have enough memory for a batch",
            fix="Compute each batch in smaller parts, with the same results: "
            "--batch.micro-batch-size 8 (or smaller)",
        )
    if isinstance(error, MemoryError):
        return ResourceError(
            "the machine ran out of memory",
            fix="Read the data from disk instead of keeping them in memory: --data.where stream.",
        )
    return None


def line_of_task(error: Exception) -> str | None:
    """Return the innermost line of the user's Task in the trace of an error, or None."""
    line = task_line(error)
    return None if line is None else str(line)


def exit_of_task(error: SystemExit) -> StepladderError | None:
    """Return a message if the user's Task called sys.exit; None if something else did."""
    line = task_line(error)
    if line is None:
        return None
    return UsageError(
        f"the Task {exit_words(error)} in {line.method}", where=line.place, fix=EXIT_FIX
    )


def save_trace(error: Exception) -> Path:
    """Write the trace to the command's folder or to a temporary file, and return the path."""
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

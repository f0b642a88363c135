"""Which rank failed first, and with what: written by each rank, read by the one that prints it."""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

from stepladder.errors import InterruptedRun, ResourceError, StepladderError
from stepladder.records import write_json
from stepladder.task.blame import task_line

LOGS: Final = "logs"
LAUNCHED: Final = "STEPLADDER_LAUNCHED"  # set for processes whose launcher prints failures
RESTARTS: Final = "STEPLADDER_RESTARTS"  # how often a launcher without torchrun has restarted them
LOST_CODE: Final = 75  # of a process that ended because another one had
_MAX_LINES: Final = 10
_WAIT_S: Final = 3.0  # for the record of a rank that has failed a moment ago
_POLL_S: Final = 0.1
_LOST: Final = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "Timed out waiting",
    "NCCL",
    "gloo",
    "c10d",
)
"""What errors of torch.distributed say if another rank has gone."""


class RankLost(ResourceError):  # noqa: N818  (the rank is gone)
    """Another rank has ended, so that this one cannot continue; starting again may help.

    Kubeflow's restart policy reads codes from 128 on as "start again", and 138 as asked for.
    """

    exit_code: ClassVar[int] = 138

    def brief(self) -> str:
        """Return the whole message: it has the last lines of the rank that failed first."""
        return str(self)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How a rank failed.

    Attributes:
        at: seconds since 1970.
        exit_code: of its process.
        is_final: the same would happen again, so that no restart helps.
        lines: of the message, the last ones.
    """

    rank: int
    host: str
    at: float
    attempt: int
    exit_code: int
    is_final: bool
    lines: tuple[str, ...]

    @classmethod
    def of(cls, error: BaseException, *, rank: int, attempt: int) -> Self:
        """Return the failure that an exception is."""
        return cls(
            rank=rank,
            host=socket.gethostname(),
            at=time.time(),
            attempt=attempt,
            exit_code=error.exit_code if isinstance(error, StepladderError) else 1,
            is_final=not isinstance(error, RankLost),
            lines=_lines_of(error),
        )

    def error(self, folder: Path) -> RankLost:
        """Return an error with the exit code and the last lines of the failure."""
        head = (
            f"the run ended because one of its processes failed first, rank {self.rank} on "
            f"{self.host}:"
        )
        log = f"its whole log is {log_file(folder, self.rank)}"
        error = RankLost("\n  ".join([head, *self.lines, log]))
        error.exit_code = self.exit_code  # type: ignore[misc]
        return error


def _lines_of(error: BaseException) -> tuple[str, ...]:
    """Return the message of an error, with the line of the user's Task or the end of the trace."""
    if isinstance(error, StepladderError):
        return tuple(str(error).splitlines()[:_MAX_LINES])
    line = task_line(error) if isinstance(error, (Exception, SystemExit)) else None
    if line is not None:
        return (f"{type(error).__name__}: {error}", str(line))
    return tuple("".join(traceback.format_exception(error)).rstrip().splitlines()[-_MAX_LINES:])


def log_file(folder: Path, rank: int) -> Path:
    """Return the log of a rank in a run folder."""
    return folder / LOGS / f"rank-{rank}.log"


def record_failure(folder: Path, failure: Failure) -> None:
    """Write a failure into the run folder, and for torchrun; does nothing if that is impossible."""
    with suppress(OSError):
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
        write_json(_file(folder, failure.rank, failure.attempt), asdict(failure))
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with suppress(OSError):  # its summary then has the message
            write_json(
                Path(file), {"message": "\n".join(failure.lines), "timestamp": int(failure.at)}
            )


def first_failure(folder: Path, *, attempt: int, wait_s: float = _WAIT_S) -> Failure | None:
    """Return the first failure of an attempt, without those of ranks that only lost another one.

    Args:
        wait_s: seconds to wait for its record.
    """
    until = time.monotonic() + wait_s
    while True:
        found = [one for one in _failures(folder, attempt) if one.is_final]
        if found:
            first = min(found, key=lambda one: one.at)
            same = [one for one in found if one.lines == first.lines]
            return min(same, key=lambda one: one.rank)  # all ranks may refuse a job
        if time.monotonic() > until:
            return None
        time.sleep(_POLL_S)


def stalled(folder: Path, *, attempt: int) -> str | None:
    """Return the line about a rank that did not answer in an attempt, or None."""
    return next((one.lines[0] for one in _failures(folder, attempt) if not one.is_final), None)


def clear_failures(folder: Path, *, attempt: int | None = None) -> None:
    """Remove the records of an attempt; None: of all."""
    number = "*" if attempt is None else attempt
    for path in (folder / LOGS).glob(f"failure-{number}-rank-*.json"):
        path.unlink(missing_ok=True)


def is_loss_of_rank(error: BaseException) -> bool:
    """Return True if an error of torch.distributed says that another rank has gone."""
    if isinstance(error, RankLost):
        return True
    module = type(error).__module__
    if not isinstance(error, RuntimeError) or isinstance(error, StepladderError):
        return False
    return module.startswith("torch") or any(word in str(error) for word in _LOST)


def lost(folder: Path, *, rank: int, attempt: int) -> StepladderError:
    """Return the error of a rank that lost another one: what happened there, if it was recorded."""
    failure = first_failure(folder, attempt=attempt)
    if failure is None:
        return RankLost(
            f"the process of rank {rank} lost the connection to another process of the run, which "
            "ended without a message",
            why="That process was killed, for example because its host ran out of memory, or the "
            "network failed.",
            fix=f"Read the logs of all processes in {folder / LOGS}, then type the same command to "
            "resume.",
        )
    if failure.exit_code > 128:
        number = failure.exit_code - 128
        return InterruptedRun("a signal ended the run; its state is saved", signal_number=number)
    return failure.error(folder)


def attempt_number() -> int:
    """Return how often the launcher has started these processes before."""
    names = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", RESTARTS)
    return sum(int(os.environ.get(name) or 0) for name in names)


def _file(folder: Path, rank: int, attempt: int) -> Path:
    return folder / LOGS / f"failure-{attempt}-rank-{rank}.json"


def _failures(folder: Path, attempt: int) -> list[Failure]:
    found = []
    for path in (folder / LOGS).glob(f"failure-{attempt}-rank-*.json"):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            found.append(Failure(**{**values, "lines": tuple(values["lines"])}))
        except (OSError, ValueError, TypeError):  # being written
            continue
    return found

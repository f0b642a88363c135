"""Which rank failed first, and with what: written by each rank, read by the one that prints it."""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from stepladder.errors import DivergedError, InterruptedRun, ResourceError, StepladderError
from stepladder.records import write_json
from stepladder.task.blame import task_line

LOGS: Final = "logs"
LAUNCHED: Final = "STEPLADDER_LAUNCHED"  # set for processes whose launcher prints failures
RESTARTS: Final = "STEPLADDER_RESTARTS"  # how often a launcher without torchrun has restarted them
LOST_CODE: Final = 75  # of a process that ended because another one had
_KEY: Final = "stepladder"  # of a failure in a file of torchrun
_MAX_LINES: Final = 10
_MAX_TAIL: Final = 5  # lines of the log of a rank that was killed
_MAX_LINE: Final = 200
_TAIL_BYTES: Final = 4096
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
        message = {"message": "\n".join(failure.lines), "timestamp": int(failure.at)}
        with suppress(OSError):  # its summary then has the message
            write_json(Path(file), {**message, _KEY: asdict(failure)})


def failure_in(error_file: Mapping[str, Any]) -> Failure | None:
    """Return the failure in a file of torchrun; it is there even if the disk of the run is full."""
    with suppress(ValueError, TypeError, KeyError):
        return _failure_of(error_file[_KEY])
    return None


def _failure_of(values: Mapping[str, Any]) -> Failure:
    return Failure(**{**values, "lines": tuple(values["lines"])})


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
            return min((one for one in found if _is_joint(one, first)), key=lambda one: one.rank)
        if time.monotonic() > until:
            return None
        time.sleep(_POLL_S)


def _is_joint(one: Failure, first: Failure) -> bool:
    """Return True if a failure is the first one itself, or was found by all ranks together.

    All ranks may refuse a job, and all see at the same step that the loss is not finite.
    """
    has_diverged = one.exit_code == first.exit_code == DivergedError.exit_code
    return one.lines == first.lines or has_diverged


def stalled(folder: Path, *, attempt: int) -> str | None:
    """Return the line about a rank that hung or did not answer in an attempt, or None."""
    first = _first_stalled(folder, attempt)
    return None if first is None else first.lines[0]


def stalled_error(folder: Path, *, attempt: int) -> RankLost | None:
    """Return the error of a rank that hung or did not answer in an attempt, or None.

    The rank that found it ends with a code of its own, so the codes of processes do not name it.
    """
    first = _first_stalled(folder, attempt)
    if first is None:
        return None
    return RankLost(
        f"the run ended because {first.lines[0]}",
        fix=f"Read its log ({log_file(folder, first.rank)}), then type the same command to resume.",
    )


def _first_stalled(folder: Path, attempt: int) -> Failure | None:
    found = [one for one in _failures(folder, attempt) if not one.is_final]
    return min(found, key=lambda one: one.at, default=None)  # others follow from it


def clear_failures(folder: Path, *, attempt: int | None = None) -> None:
    """Remove the records of an attempt; None: of all."""
    number = "*" if attempt is None else attempt
    for pattern in (f"failure-{number}-rank-*.json", f"lost-{number}-rank-*"):
        for path in (folder / LOGS).glob(pattern):
            path.unlink(missing_ok=True)


def is_loss_of_rank(error: BaseException) -> bool:
    """Return True if an error of torch.distributed says that another rank has gone."""
    if isinstance(error, RankLost):
        return True
    if not isinstance(error, RuntimeError) or isinstance(error, StepladderError):
        return False
    module = type(error).__module__  # a GPU without memory raises an error of `torch`
    if module.startswith("torch"):
        return module.startswith("torch.distributed")
    return any(word in str(error) for word in _LOST)


def lost(folder: Path, *, rank: int, attempt: int) -> StepladderError:
    """Return the error of a rank that lost another one: what happened there, if it is known."""
    failure = first_failure(folder, attempt=attempt)
    if failure is None:
        if (seen := stalled(folder, attempt=attempt)) is not None:
            return RankLost(f"{seen}\n  Its log is in {folder / LOGS}.")
        if (one := silent(folder, attempt=attempt)) is not None:
            return died(folder, *one, "ended without a message")
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


def record_loss(folder: Path, *, rank: int, attempt: int, hosts: Sequence[str]) -> None:
    """Write that this rank has lost another one, so that it is not taken for that one.

    Args:
        hosts: of all ranks; empty: not known yet.
    """
    with suppress(OSError):
        _note(folder, rank, attempt).write_text("\n".join(hosts), encoding="utf-8")


def silent(folder: Path, *, attempt: int) -> tuple[int, str] | None:
    """Return rank and host of the only rank that has recorded neither a failure nor a loss.

    It was killed: its process could write nothing. None if there is not exactly one.
    """
    notes = list((folder / LOGS).glob(f"lost-{attempt}-rank-*"))
    hosts: list[str] = []
    with suppress(OSError):
        hosts = next((text.split("\n") for note in notes if (text := note.read_text())), [])
    heard = {int(note.name.rpartition("-")[2]) for note in notes}
    heard |= {one.rank for one in _failures(folder, attempt)}
    others = [rank for rank in range(len(hosts)) if rank not in heard]
    return (others[0], hosts[others[0]]) if len(others) == 1 else None


def died(folder: Path, rank: int, host: str, how: str) -> RankLost:
    """Return the error of a rank that left no record, with the last lines of its log.

    Args:
        how: it ended, such as "was killed by SIGKILL".
    """
    log = log_file(folder, rank)
    tail = _last_lines(log)
    last = "its last lines:" if tail else "it printed nothing."
    return RankLost(
        f"the run ended because one of its processes, rank {rank} on {host}, {how}; {last}",
        why="\n  ".join(
            [
                *tail,
                "If nobody killed it, its host probably ran out of memory, which `dmesg` shows.",
            ]
        ),
        fix=f"Read its log ({log}), then type the same command to resume.",
    )


def _last_lines(log: Path) -> list[str]:
    """Return the last lines of a log, each of a readable length."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return [f"  {line[:_MAX_LINE]}" for line in lines[-_MAX_TAIL:]]


def forget_earlier(folder: Path, *, rank: int, size: int, attempt: int) -> None:
    """Remove what an earlier run with the same number of restarts has left about this rank.

    Rank 0 does so for ranks that this run does not have.
    """
    ranks = [rank]
    if rank == 0:
        files = (folder / LOGS).glob(f"*-{attempt}-rank-*")
        others = [int(file.stem.rpartition("-")[2]) for file in files]
        ranks += [other for other in others if other >= size]
    for one in ranks:
        for file in (_file(folder, one, attempt), _note(folder, one, attempt)):
            with suppress(OSError):
                file.unlink(missing_ok=True)


def _note(folder: Path, rank: int, attempt: int) -> Path:
    return folder / LOGS / f"lost-{attempt}-rank-{rank}"


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
            found.append(_failure_of(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):  # being written
            continue
    return found

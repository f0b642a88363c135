"""Errors that a user can act on: what happened, where, why it matters, what to type.

Each class has an exit code, so that a script can tell a typing mistake from a full disk.
"""

from __future__ import annotations

from typing import ClassVar, Final

USER_TASK: Final = "stepladder_user_task_"  # how the modules of users' own Tasks are named


class StepladderError(Exception):
    """Stop with a message a person can act on.

    Args:
        what: what was found, in one sentence.
        where: the file, line, row or option, printed in front.
        why: why it matters.
        fix: what to do or to type.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self, what: str, *, where: str | None = None, why: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return "\n  ".join([head, *(part for part in (self.why, self.fix) if part)])


class UsageError(StepladderError):
    """A flag, a config value or a call is wrong."""

    exit_code: ClassVar[int] = 2


class MissingExtraError(UsageError):
    """An optional engine is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs an extra: pip install 'stepladder[{extra}]'",
        )


class DataError(StepladderError):
    """Pictures, labels, a store or a checkpoint cannot be used."""

    exit_code: ClassVar[int] = 3


class ResourceError(StepladderError):
    """Disk, memory, permission or a device is missing, or another run holds the folder."""

    exit_code: ClassVar[int] = 4


class DivergedError(StepladderError):
    """The loss is no longer a finite number."""

    exit_code: ClassVar[int] = 5


class UnsoundJob(StepladderError):  # noqa: N818  (what is wrong is the job)
    """A check failed, or could not run because the Task raised, and the job was to stop there."""

    exit_code: ClassVar[int] = 6


class InterruptedRun(StepladderError):  # noqa: N818  (asked for, so no error)
    """A signal ended the run after its state was saved.

    Args:
        signal_number: the signal, for example 15; the exit code is 128 + its number.
    """

    def __init__(self, what: str, *, signal_number: int, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.exit_code = 128 + signal_number  # type: ignore[misc]


def one_line(error: Exception) -> str:
    """Give what an error says without line breaks, to be told within a sentence."""
    return " ".join(str(error).split())

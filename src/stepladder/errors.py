"""Errors with what happened, where, why it matters and how to fix it.

Each class has an exit code, so that a script can distinguish a typing mistake from a full disk.
"""

from __future__ import annotations

from typing import ClassVar, Final

USER_TASK: Final = "stepladder_user_task_"  # prefix of the module names of user-defined Tasks


class StepladderError(Exception):
    """Base class of errors with an actionable message.

    Args:
        what: what was found, in one sentence.
        where: the file, line, row or option, printed before the message.
        why: why it matters.
        fix: how to fix it, such as a command to run. Each line is another way, so that a command
            can be copied as the end of its line.
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
        return "\n  ".join(self._parts())

    def brief(self) -> str:
        """Return the message in few lines: what, why, and each way to fix it.

        If what or why have more lines, the first one says how many `--debug` prints in addition.
        """
        shown = []
        for part in self._parts():
            first, *rest = part.splitlines()
            shown.append(f"{first} ({len(rest)} more with --debug)" if rest else first)
        return "\n  ".join(shown)

    def _parts(self) -> list[str]:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return [head, *([self.why] if self.why else []), *(self.fix or "").splitlines()]


class UsageError(StepladderError):
    """A flag, a config value or a call is wrong."""

    exit_code: ClassVar[int] = 2


class MissingExtraError(UsageError):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs an optional dependency: pip install 'stepladder[{extra}]'",
        )


class DataError(StepladderError):
    """Pictures, labels, a store or a checkpoint cannot be used."""

    exit_code: ClassVar[int] = 3


class ResourceError(StepladderError):
    """Out of disk or memory, no permission, no device, or the folder is locked by another run."""

    exit_code: ClassVar[int] = 4


class DivergedError(StepladderError):
    """The loss is not finite."""

    exit_code: ClassVar[int] = 5


class UnsoundJob(StepladderError):  # noqa: N818  (the job is wrong)
    """A check failed or the Task raised during it, and the job is configured to stop then."""

    exit_code: ClassVar[int] = 6


class IncompleteChecks(StepladderError):  # noqa: N818  (nothing is wrong)
    """No check failed, but some did not run. Not raised: the exit code of `stepladder check`."""

    exit_code: ClassVar[int] = 8


class InterruptedRun(StepladderError):  # noqa: N818  (requested, so not an error)
    """A signal ended the run after its state was saved.

    Args:
        signal_number: the signal, for example 15; the exit code is 128 + its number.
    """

    def __init__(self, what: str, *, signal_number: int, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.exit_code = 128 + signal_number  # type: ignore[misc]


def one_line(error: Exception) -> str:
    """Return the error message on one line, for use within a sentence."""
    return " ".join(str(error).split())

"""The error that ended the program that wrote a log."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from stepladder.diagnosis.logs.printed.screen import screen_lines

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
_CHAINED = re.compile(
    r"During handling of the above exception|The above exception was the direct cause"
)
_PREFIX = re.compile(r"^(?:\[\w+\d+\]:|\(\w+ pid=\d+[^)]*\)|\[\d+,\d+\]<std\w+>:)? ?")
_EXCEPTION = re.compile(
    r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Iteration|Warning|Failure|Failed)\b"
)
_NAMED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+(?::|$)|[A-Z]\w+: ")  # of a class of another name
_KILLED = re.compile(
    r"^(?:.*: line \d+: +\d+ )?(?:Killed|Terminated|Aborted|Segmentation fault|Bus error)\b.*|"
    r"^slurmstepd: error: .*|^srun: error: .*|^terminate called after throwing .*|"
    r"^F\d{4} \d\d:\d\d:\d\d.*|^.*\boom[-_]kill.*",
    re.IGNORECASE,
)
_OF_LAUNCHER = re.compile(  # that a process has failed, not why
    r"^(?:srun|slurmstepd|mpirun|make)\b(?!.*(?:oom|CANCELLED))|ChildFailedError|CalledProcessError|"
    r"ProcessExitedException|SystemExit|^RayTaskError|Connection (?:closed|reset) by peer",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|oom[-_]kill|OOM when allocating|ResourceExhausted|MemoryError|"
    r"CUBLAS_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (?:can't|not enough)",
    re.IGNORECASE,
)
_CAUSE = re.compile(  # lines beside an error that only says that there was one
    r"(?:(?P<file>[\w.+-]+\.(?:cu|cuh|cpp|cc|c|h)):(?P<line>\d+):.*)?"
    r"(?P<assertion>Assertion [`'\"].+[`'\"] failed)|"
    r"(?P<label>Received a label value of -?\d+ which is outside the valid range of \[\d+, \d+\))|"
    r"(?P<shared>.*(?:insufficient shared memory \(shm\)|out of shared memory).*)"
)
_WITHOUT_CAUSE = re.compile(
    r"device-side assert|Graph execution error|CUBLAS_STATUS|CUDNN_STATUS|"
    r"(?:CUDA|HIP) error(?!: out of memory)|DataLoader worker.*exited unexpectedly|"
    r"Aborted|terminate called",
    re.IGNORECASE,
)
_NUM_CLASSES = re.compile(r"\b(?:num_classes|n_classes|nb_classes)\b['\"]?\s*[=:]\s*(\d+)")
_CAUSES = (  # by what is in the error: why it occurs, and what to do
    (
        re.compile(
            r"\bn_classes` failed|label value of .* outside the valid range|"
            r"Target -?\d+ is out of bounds"
        ),
        "A label is below 0, or not below the number of the model's outputs.",
        "Number the labels from 0, and give the model one output for each class.",
    ),
    (
        re.compile(r"srcSelectDimSize|index out of bounds` failed|ind < ind_dim_size"),
        "An index is outside of a table, such as a token that an embedding does not have, or a "
        "position after its last one.",
        "Make the table as large as the highest index plus 1.",
    ),
    (
        re.compile(r"input_val >= zero|all elements of input should be between 0 and 1"),
        "The binary cross-entropy got a value that is NaN or outside [0, 1].",
        "Use binary_cross_entropy_with_logits, on the outputs before the sigmoid.",
    ),
    (
        re.compile(r"shared memory", re.IGNORECASE),
        "The processes that load data exchange batches in shared memory, which was full.",
        "Enlarge it (docker run --shm-size=8g), or load data with fewer processes.",
    ),
    (
        re.compile(r"device-side assert"),
        "The log does not show which check failed on the device; most often a label or an index is "
        "out of range.",
        "Run it once on the CPU, or with CUDA_LAUNCH_BLOCKING=1, which names the line, and correct "
        "that error.",
    ),
)
_PLANNED = re.compile(r"\bepochs?\b\W{0,3}\d+ ?/ ?(\d+)", re.IGNORECASE)
_MAX_LINE = 200
_MAX_SEARCHED = 1000  # characters of a line


@dataclass(frozen=True, kw_only=True)
class _Error:
    """An error in a log.

    Attributes:
        said: its line.
        at: index of that line.
        is_chained: another one was raised while this one was handled, or because of it.
    """

    said: str
    at: int
    is_chained: bool = False


def last_error(
    text: str, is_training: Callable[[str], bool] = lambda _: False
) -> tuple[str, str] | None:
    """Return (the error that ended a program, what was printed after it); None without one.

    Of several at the end, without a line of training between them, it is the one that is about
    memory, else the first one: launchers and other processes report that something failed, but not
    why.

    Args:
        is_training: whether a text contains lines of a training.
    """
    lines = [line for line in screen_lines(text) if line.strip()]
    errors = _errors(lines)
    if not errors:
        return None
    last = errors[-1].at
    first = len(errors) - 1
    while first and not is_training("\n".join(lines[errors[first - 1].at + 1 : errors[first].at])):
        first -= 1
    group = errors[first:]
    causes = [error for error in group if not _OF_LAUNCHER.search(error.said)]
    of_memory = [error for error in causes if is_out_of_memory(error.said)]
    cause = next(iter([*of_memory, *_unchained(causes), *group]))
    said = _with_cause(cause.said, lines) if _WITHOUT_CAUSE.search(cause.said) else cause.said
    return said, "\n".join(lines[last + 1 :])


def explain(said: str) -> tuple[str, str] | None:
    """Return (why an error occurs, what to do about it); None if it has to say that itself."""
    return next(((why, fix) for pattern, why, fix in _CAUSES if pattern.search(said)), None)


def _with_cause(said: str, lines: list[str]) -> str:
    """Add the line that has the cause to an error that does not have it.

    A kernel of CUDA prints `Assertion … failed` before the error, and TensorFlow the label that is
    out of range after it.
    """
    searched = (_CAUSE.search(line[:_MAX_SEARCHED]) for line in reversed(lines))
    found = next(filter(None, searched), None)
    if found is None:
        return said
    place = f" ({found['file']}:{found['line']})" if found["file"] else ""
    cause = (found["assertion"] or found["label"] or found["shared"]).strip()
    nums = {num for line in lines for num in _NUM_CLASSES.findall(line)}
    is_label = "n_classes" in cause and len(nums) == 1
    stated = f"; the log has num_classes={nums.pop()}" if is_label else ""
    return f"{said.rstrip(':.')}: {cause[:_MAX_LINE]}{place}{stated}"


def is_out_of_memory(said: str) -> bool:
    """Return True if an error is that the memory of the device or of the machine was full."""
    return _OUT_OF_MEMORY.search(said) is not None


def planned_epochs(text: str) -> int | None:
    """Return the number of epochs that a program was to train, as in `Epoch 7/30`."""
    found = set(_PLANNED.findall(text))
    return int(found.pop()) if len(found) == 1 else None


def _unchained(errors: list[_Error]) -> list[_Error]:
    return [error for error in errors if not error.is_chained] or errors


def _errors(lines: list[str]) -> list[_Error]:
    found: list[_Error] = []
    is_in_traceback = False
    for idx, whole in enumerate(lines):
        line = _PREFIX.sub("", whole, count=1)
        if _TRACEBACK.search(line):
            is_in_traceback = True
        elif _CHAINED.search(line) and found:
            found[-1] = _Error(said=found[-1].said, at=found[-1].at, is_chained=True)
        elif is_in_traceback and not line[:1].isspace():
            if _EXCEPTION.match(line) or _NAMED.match(line):
                found.append(_Error(said=line.strip()[:_MAX_LINE], at=idx))
            is_in_traceback = False
        elif _KILLED.match(line):
            found.append(_Error(said=line.strip()[:_MAX_LINE], at=idx))
    return found

"""Epochs without the word: the number that begins each line, as in `[13/30] train loss 0.5 …`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import mode

from stepladder.diagnosis.logs.printed.screen import screen_lines

_HEAD = re.compile(  # times, levels of loggers, and the number
    r"(?:[^A-Za-z]|\b(?:INFO|DEBUG|WARNING|root|__main__|main|train\.py)\b|(?<=\d)[TZ](?=[\d\s])|"
    r"\b[Ee](?= ?\d))*"
)
_COUNT = re.compile(r"(?<![\d./:,-])(\d{1,5})(?:\s*/\s*(\d{1,5}))?(?![\d/-]|[.:,]\d)")
_TRAIN = re.compile(r"(?<![a-z])(?:train|training|trn|tr|lr)(?![a-z])|(?<![a-z_])loss", re.I)
_HELD_OUT = re.compile(
    r"(?<![a-z])(?:val|valid|validation|dev|eval|evaluation|test|testing)(?![a-z])", re.I
)
_VALUE = re.compile(r"[A-Za-z)%\]]\s*[:=]?\s*\d+\.\d")
_EPOCH = re.compile(r"(?<![a-z])ep(?:och)?s?(?![a-z])\W{0,4}\d", re.IGNORECASE)
_OF_CHECKPOINT = re.compile(
    r"checkpoint|resum|restore|restoring|load|saved|saving|best", re.IGNORECASE
)
_BAR = re.compile(r"%\||\[[=>.#\- ]{5,}\]")
_MIN_LINES = 2
_MIN_WITHOUT_TOTAL = 3
_MIN_SHARE = 0.8  # of the numbers that follow the one before; the others begin a resumed training


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """A line with values, and the number that begins it."""

    at: int
    num: int
    total: int | None
    start: int
    end: int
    is_train: bool
    is_held_out: bool


def name_leading_epochs(text: str) -> tuple[str, tuple[str, ...]]:
    """Name the number at the start of lines the epoch, if it counts pairs of training and held-out.

    Each number has values of both, in one line or in lines that follow each other, so it counts no
    batches. Numbers that do not rise by one are called steps. The word epoch may only be in lines
    about a checkpoint that was loaded or saved.

    Returns:
        The text, and a note if it was changed.
    """
    lines = screen_lines(text)
    if any(_EPOCH.search(line) and not _OF_CHECKPOINT.search(line) for line in lines):
        return text, ()
    found = [counted for idx, line in enumerate(lines) if (counted := _counted(idx, line))]
    groups = [list(group) for _, group in groupby(found, lambda one: one.num)]
    if not _are_evaluations(groups):
        return text, ()
    gaps = [b[0].num - a[0].num for a, b in pairwise(groups)]
    word = "epoch" if mode(gap for gap in gaps if gap > 0) == 1 else "step"
    for one in found:
        line = lines[one.at]
        total = f"/{one.total}" if one.total is not None and word == "epoch" else ""
        lines[one.at] = f"{line[: one.start]}{word} {one.num}{total} | {line[one.end :]}"
    shown = _text_of(found[0])
    return "\n".join(lines), (
        f"the number that begins each line, as {shown}, is read as its {word}",
    )


def _text_of(one: _Counted) -> str:
    """Return a number as it was printed, without its brackets."""
    return f"`{one.num}`" if one.total is None else f"`{one.num}/{one.total}`"


def _counted(idx: int, line: str) -> _Counted | None:
    if not _VALUE.search(line) or _BAR.search(line):
        return None
    head = _HEAD.match(line)
    counts = list(_COUNT.finditer(line, 0, head.end() if head else 0))
    of_total = [count for count in counts if count[2] is not None]
    count = next(reversed(of_total or counts), None)
    if count is None:
        return None
    start, end = count.span()
    while start and line[start - 1] in "[(#Ee":
        start -= 1
    closing = re.match(r"\s*[\])]?\s*[:|,-]?", line[end:])
    return _Counted(
        at=idx,
        num=int(count[1]),
        total=None if count[2] is None else int(count[2]),
        start=start,
        end=end + (closing.end() if closing else 0),
        is_train=_TRAIN.search(_HELD_OUT.split(line)[0]) is not None,
        is_held_out=_HELD_OUT.search(line) is not None,
    )


def _are_evaluations(groups: Sequence[Sequence[_Counted]]) -> bool:
    """Return True if each number has values of training and held-out ones, and most follow."""
    totals = {one.total for group in groups for one in group}
    least = _MIN_WITHOUT_TOTAL if None in totals else _MIN_LINES
    if len(groups) < least or 2 * len(totals) > len(groups):
        return False
    if any(one.total is not None and one.num > one.total for group in groups for one in group):
        return False
    gaps = [b[0].num - a[0].num for a, b in pairwise(groups)]
    rising = [gap for gap in gaps if gap > 0]
    return (
        len(rising) >= _MIN_SHARE * len(gaps)
        and rising.count(mode(rising)) >= _MIN_SHARE * len(gaps)
        and all(
            any(one.is_train for one in group) and any(one.is_held_out for one in group)
            for group in groups
        )
    )

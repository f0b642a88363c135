"""What a terminal showed, from text that was written to a file."""

from __future__ import annotations

import re

_ANSI = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78M]|"
    r"\[(?:0|1|2|3|4|22|24|[349][0-7]|(?:\d{1,2};)+\d{1,2})m(?! ?\d| ?\])"  # without Escape
)
_STATES = re.compile(r"\r\n|\n|\r|\x08+")
_BAR = re.compile(  # of tqdm, with or without a total, and of fastprogress
    r"(?:\d+%\|[^|\n]*\| *[\d.]+\w*/[\d.]+\w*|\b[\d.]+\w*it|\d+(?:\.\d+)?%)"
    r" *\[[^\[\]]*\d\d:\d\d[^\[\]]*\]"
)
_GLUED = re.compile(r"[A-Za-z\[(=*#-]|[ \t]*(?:epochs?|ep)\b", re.IGNORECASE)


def screen_lines(text: str) -> list[str]:
    """Return the states of the screen; carriage returns and backspaces start a new one.

    A bar does not end its line: what a script prints next follows it directly, and is a line of its
    own.
    """
    return [
        part for line in _STATES.split(_ANSI.sub("", text)) for part in _without_bar_before(line)
    ]


def _without_bar_before(line: str) -> list[str]:
    """Split a line after each bar that a printed line follows."""
    if "[" not in line or ":" not in line:
        return [line]
    parts, begin = [], 0
    for bar in _BAR.finditer(line):
        if _GLUED.match(line, bar.end()):
            parts.append(line[begin : bar.end()])
            begin = bar.end()
    return [*parts, line[begin:]]

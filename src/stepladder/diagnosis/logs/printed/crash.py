"""The error that ended the program that wrote a log."""

from __future__ import annotations

import re

from stepladder.diagnosis.logs.printed.screen import screen_lines

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
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
_MAX_LINE = 200


def last_error(text: str) -> tuple[str, str] | None:
    """Return (the last error in a log, what was printed after it); None without one."""
    lines = [line for line in screen_lines(text) if line.strip()]
    found: tuple[str, int] | None = None
    is_in_traceback = False
    for idx, whole in enumerate(lines):
        line = _PREFIX.sub("", whole, count=1)
        if _TRACEBACK.search(line):
            is_in_traceback = True
        elif is_in_traceback and not line[:1].isspace():
            if _EXCEPTION.match(line) or _NAMED.match(line):
                found = (line.strip()[:_MAX_LINE], idx)
            is_in_traceback = False
        elif _KILLED.match(line):
            found = (line.strip()[:_MAX_LINE], idx)
    return None if found is None else (found[0], "\n".join(lines[found[1] + 1 :]))

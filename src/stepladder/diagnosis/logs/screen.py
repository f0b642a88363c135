"""What a terminal showed, from text that was written to a file."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STATES = re.compile(r"\r\n|\n|\r|\x08+")


def screen_lines(text: str) -> list[str]:
    """Return the states of the screen; carriage returns and backspaces start a new one."""
    return _STATES.split(_ANSI.sub("", text))

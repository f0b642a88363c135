"""JSON that was cut while it was written: what of it is whole."""

from __future__ import annotations

import json
import re
from typing import Any

_CLOSING = {"{": "}", "[": "]"}
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{},]', re.DOTALL)  # texts, so that theirs do not count


def read_whole_entries(text: str) -> Any | None:
    """Read JSON that ends in its middle up to the last entry of a list that is whole.

    Half an entry is left out, with all that it holds.

    Returns:
        The value; None where the text is not cut but wrong, or no entry of a list is whole.
    """
    begun, end, left = "", 0, ""
    for token in _TOKENS.finditer(text):
        sign = token[0]
        if sign in _CLOSING:
            begun += sign
        elif sign in ("}", "]"):
            if not begun or _CLOSING[begun[-1]] != sign:
                return None
            begun = begun[:-1]
            if _is_in_first_list(begun) or (sign == "]" and "[" not in begun):
                end, left = token.end(), begun
        elif sign == "," and _is_in_first_list(begun):
            end, left = token.start(), begun
    if not begun or not end:
        return None
    try:
        return json.loads(text[:end] + "".join(_CLOSING[sign] for sign in reversed(left)))
    except json.JSONDecodeError:
        return None


def _is_in_first_list(begun: str) -> bool:
    """Say whether a place lies in a list that itself lies in none: what stands there is whole."""
    return begun.endswith("[") and begun.count("[") == 1

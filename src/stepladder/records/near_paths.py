"""Suggest the existing path that was probably meant by a missing one."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path


def near_path(path: Path, *, fits: Callable[[Path], bool] = lambda _: True) -> Path | None:
    """Return the existing path whose parts are most similar to those of a missing path, or None.

    Args:
        path: the missing path.
        fits: returns True if the result may be this path, such as `Path.is_dir`.
    """
    at = Path(path.anchor)
    parts = path.parts[1:] if path.anchor else path.parts
    for idx, part in enumerate(parts):
        if (at / part).exists() and (idx + 1 < len(parts) or fits(at / part)):
            at /= part
            continue
        is_last = idx + 1 == len(parts)
        try:
            there = {item.name.lower(): item for item in at.iterdir() if not is_last or fits(item)}
        except OSError:
            return None
        close = difflib.get_close_matches(part.lower(), there, n=1)
        if not close:
            return None
        at = there[close[0]]
    return at if parts else None


def did_you_mean_path(path: Path, otherwise: str, *, fits: Callable[[Path], bool]) -> str:
    """Return a suggestion for a missing path: a similar one, or else another hint."""
    near = near_path(path, fits=fits)
    return otherwise if near is None else f"Did you mean {near}?"

"""What to type for pictures that cannot be used, by the reasons."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from stepladder.data.decoding.formats import ANNEX_POINTER, ERROR_MESSAGE, LFS_POINTER, WEB_PAGE
from stepladder.data.prepare.converted_copy import three_bands
from stepladder.data.sources.not_read.not_here import fetch, pull_lfs
from stepladder.data.sources.source_file import EMPTY

_PLAIN: Final = (
    ((WEB_PAGE, ERROR_MESSAGE), "Download again, or remove, the files that are error pages: their "
     "download failed."),
    ((EMPTY,), "Download or copy the empty files again, or remove them."),
)  # fmt: skip
_TOO_LARGE: Final = re.compile(r"has ([0-9]+)x([0-9]+) pixels, more than the limit of [0-9]+ ")


def remedy(reasons: Iterable[str], source: Path, *, what: str, skip: str) -> str:
    """Return what to do about pictures that cannot be used; the last is a command, if there is one.

    Args:
        reasons: why they cannot be used.
        source: the pictures.
        what: they are called.
        skip: what to type to leave them out, as a sentence; empty if that is impossible.
    """
    left = set(reasons)
    bands = next((how for one in sorted(left) if (how := three_bands(one, source))), None)
    if bands is not None:
        return f"{bands} {skip}".strip()
    said: list[str] = []
    for starts, words in _PLAIN:
        if found := _starting(left, starts):
            said.append(words)
            left -= found
    lfs, annex = (_starting(left, (start,)) for start in (LFS_POINTER, ANNEX_POINTER))
    left -= lfs | annex
    sizes = {one: _TOO_LARGE.match(one) for one in left}
    large = {one: int(size[1]) * int(size[2]) for one, size in sizes.items() if size}
    if large:
        said.append(f"Allow pictures of that size: --max-pixels {max(large.values())}.")
        left -= large.keys()
    if left:
        said.append(f"Replace or remove {'the other' if said or lfs or annex else 'these'} {what}.")
    command = pull_lfs(source) if lfs else fetch(source, "git annex get .") if annex else ""
    if skip:
        said.append(skip if said else skip.replace("Or skip", "Skip"))
    if skip and command:
        said[-1] += "."
        command = f"Or {command[0].lower()}{command[1:]}"
    return " ".join((*said, command)).strip()


def _starting(reasons: Collection[str], starts: Iterable[str]) -> set[str]:
    return {one for one in reasons if one.removeprefix("is ").startswith(tuple(starts))}

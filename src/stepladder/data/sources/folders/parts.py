"""Recognise folders that are parts of one data set: a download in several files, each unpacked."""

from __future__ import annotations

import re
from collections.abc import Iterable

_DOWNLOAD = re.compile(r"(.+)-\d{8}T\d{6}Z(?:-\d+)+")  # Google Drive: photos-20240311T101112Z-001
_PART = re.compile(
    r"(.*?)[ ._-]*\bpart[ ._-]*\d+\)?", re.IGNORECASE
)  # photos.part1, photos (part 2)


def download_of(name: str) -> str | None:
    """Return the folder that a part of a download was made from; None if it is not one."""
    match = _DOWNLOAD.fullmatch(name)
    return match[1] if match else None


def are_numbered_parts(names: Iterable[str]) -> bool:
    """Return True if names differ only in the number of a part: `photos_part1`, `photos_part2`."""
    matches = [_PART.fullmatch(name.replace("_", " ")) for name in names]
    stems = {match[1].strip(" (") if match else None for match in matches}
    return len(matches) > 1 and len(stems) == 1 and None not in stems

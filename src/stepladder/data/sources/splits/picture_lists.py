"""Find lists of the pictures of each split beside annotations, as in Pascal VOC's ImageSets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from stepladder.data.sources.listing import name_some
from stepladder.data.sources.walk import is_hidden

_STEMS: Final = re.compile(r"(?:.*_)?(train|val|valid|validation|trainval|test)", re.IGNORECASE)
_SETS: Final = ("ImageSets/Main", "ImageSets")
_MAX_BYTES: Final = 1 << 26
_MAX_FOLDERS: Final = 50
_MIN_NAMED_FRAC: Final = 0.5


@dataclass(frozen=True)
class PictureLists:
    """Lists of splits.

    Attributes:
        folder: which they are in.
        described: what they have, within a sentence.
    """

    folder: Path
    described: str


def find_lists(root: Path, paths: Sequence[str]) -> PictureLists | None:
    """Return the lists of splits that name half of the pictures; None if there are no such lists.

    Args:
        root: the source's folder.
        paths: the pictures, relative to it.
    """
    names = {PurePosixPath(path).name for path in paths}
    names |= {PurePosixPath(path).stem for path in paths}
    for folder in _places(root):
        lists = [file for file in sorted(folder.glob("*.txt")) if _STEMS.fullmatch(file.stem)]
        listed = {name for file in lists for name in _names_in(file)}
        num_listed = sum(
            bool({PurePosixPath(path).name, PurePosixPath(path).stem} & listed) for path in paths
        )
        if len(lists) > 1 and num_listed >= _MIN_NAMED_FRAC * len(paths):
            name = folder.name
            if folder.parent.name == _SETS[-1]:
                name = f"{folder.parent.name}/{folder.name}"
            told = f"{name} has the lists {name_some([file.name for file in lists])}, whose splits"
            told += " are used"
            if num_listed < len(paths):
                told += f"; pictures in no list are left out: {len(paths) - num_listed}"
            return PictureLists(folder, told)
    return None


def _places(root: Path) -> Iterator[Path]:
    """Yield folders that may have lists: those of the source, of folders in it, and above it."""
    inside = (one for one in islice(sorted(root.iterdir()), _MAX_FOLDERS))
    folders = [one for one in inside if one.is_dir() and not is_hidden(one.name)]
    for around in (root, *folders, root.parent):
        yield from (around / name for name in _SETS if (around / name).is_dir())
    yield root
    yield root.parent


def _names_in(file: Path) -> Iterator[str]:
    try:
        if file.stat().st_size > _MAX_BYTES:
            return
        for line in file.read_text("utf-8").splitlines():
            if line.strip():
                yield PurePosixPath(re.sub(r"\s+-?[01]$", "", line.strip())).name
    except (OSError, UnicodeDecodeError):
        return

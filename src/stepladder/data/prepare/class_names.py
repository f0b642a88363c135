"""Find classes of val or test that train spells otherwise, and the command that renames them."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.label_tables.label_cells import find_several
from stepladder.data.sources.label_tables.reading import prepare_command
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.walk import printable

NEGATIVE = re.compile(r"-[0-9.]+")  # -1 is another class than 1
_MIN_SIMILARITY = 0.8
_MIN_LETTERS = 3
_OF_FOLDERS = ("classes_from", "split_folders")  # options of how folders are read
_MAX_FOLDERS = 20  # that a command renames


def near_classes(unknown: Sequence[str], known: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs of names that may mean one class.

    They are similar and have the same numbers, or one begins or ends with all words of the other,
    and with those of no other class: `adenocarcinoma` and `adenocarcinoma_T2_N0`.

    Args:
        unknown: classes of val or test that train lacks.
        known: classes of train that val or test lacks.
    """
    free = dict.fromkeys(sorted(known))
    several = find_several([*unknown, *free])
    if several is not None and several.is_sure:
        return []  # `car sofa` is not a way to spell `chair sofa`
    found = []
    for name in unknown:
        best = _of_same_words(name, unknown, list(free)) or _most_similar(name, list(free))
        if best is not None:
            found.append((name, best))
            del free[best]
    return found


def _of_same_words(name: str, unknown: Sequence[str], known: Sequence[str]) -> str | None:
    """Return the one name that begins or ends with the words of another, or the reverse."""
    pairs = [other for other in known if _is_part(name, other)]
    if len(pairs) != 1 or any(one != name and _is_part(one, pairs[0]) for one in unknown):
        return None
    return pairs[0]


def _is_part(one: str, other: str) -> bool:
    short, long = sorted((_words(one), _words(other)), key=len)
    if not any(len(word) >= _MIN_LETTERS and not word.isdecimal() for word in short):
        return False
    return short in (long[: len(short)], long[-len(short) :])


def _most_similar(name: str, known: Sequence[str]) -> str | None:
    plain = " ".join(_words(name))
    likeness = {
        other: difflib.SequenceMatcher(None, plain, text).ratio()
        for other in known
        if re.findall("[0-9]+", text := " ".join(_words(other))) == re.findall("[0-9]+", plain)
        and not (NEGATIVE.fullmatch(other) or NEGATIVE.fullmatch(name))
    }
    best = max(likeness, key=likeness.__getitem__, default=None)
    return best if best is not None and likeness[best] >= _MIN_SIMILARITY else None


def _words(name: str) -> list[str]:
    return re.sub(r"[\W_]+", " ", name).casefold().split()


def renaming(
    pairs: Sequence[tuple[str, str]], split: Split, listing: Listing, config: PrepareConfig
) -> str | None:
    """Return the command that renames the folders of classes, and reads the source again.

    Args:
        pairs: a class of the split, and the one of train that it becomes.
        split: val or test.
        listing: the pictures of the source.
        config: the options of prepare.

    Returns:
        None if the classes are not folders, or they are many.
    """
    root = listing.root
    if not config.source.is_dir() or not root.is_dir():
        return None
    folders: dict[str, set[PurePosixPath]] = {name: set() for name, _ in pairs}
    for picture in listing.pictures:
        if picture.split is split and picture.label in folders:
            parts = PurePosixPath(picture.path).parts[:-1]
            at = [k for k, part in enumerate(parts) if printable(part) == picture.label]
            if not at:
                return None
            folders[picture.label].add(PurePosixPath(*parts[: at[-1] + 1]))
    moves = []
    for name, new in pairs:
        for folder in sorted(folders[name]):
            to = folder.with_name(new)
            if (root / to).exists() or not (root / folder).is_dir():
                return None
            moves.append(f"mv {_typed(root / folder, config)} {_typed(root / to, config)}")
    if not 0 < len(moves) <= _MAX_FOLDERS:
        return None
    options = [
        f"--{name.replace('_', '-')} {shlex.quote(str(value))}"
        for name in _OF_FOLDERS
        if (value := getattr(config, name)) != getattr(PrepareConfig, name)
    ]
    return " && ".join([*moves, " ".join([prepare_command(config.source), *options])])


def _typed(path: Path, config: PrepareConfig) -> str:
    """Return a path below the source as the user named that."""
    source = config.source.resolve()
    path = path.resolve()
    if path.is_relative_to(source):
        path = config.source / path.relative_to(source)
    return shlex.quote(printable(str(path)))

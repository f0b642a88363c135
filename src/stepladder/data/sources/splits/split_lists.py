"""Find lists of train and test beside class folders, which are not read, and how to use them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from stepladder.config.choices import Split
from stepladder.data.sources.labels.classes_in_names import NUMBERED
from stepladder.data.sources.labels.labels_elsewhere import typed
from stepladder.data.sources.listing import Picture, name_some
from stepladder.data.sources.splits.split_names import is_of_files, split_candidates
from stepladder.data.sources.walk import is_hidden

_FLAGS: Final = re.compile(r"train[-_ ]?test[-_ ]?split", re.IGNORECASE)
_NAMES: Final = ("images.txt", "image_paths.txt", "images_list.txt")
_ENDS: Final = (".txt", ".lst", ".csv")
_MAX_FOLDERS: Final = 50
_MAX_FILES: Final = 1000  # in a folder
_MAX_LINES: Final = 500  # of a list that are compared
_MAX_BYTES: Final = 1 << 26
_MIN_NAMED_FRAC: Final = 0.5
_SETS: Final = "ImageSets/Main"  # of Pascal VOC
_TRAIN_AND_VAL: Final = "trainval"
_NUMBER: Final = r"[._ -]*[0-9]+$"


def unused_splits(root: Path, pictures: Sequence[Picture]) -> str | None:
    """Return a sentence about lists of splits near a source that has no splits; None: no lists.

    Args:
        root: the source's folder.
        pictures: all of it.
    """
    for folder in _folders(root) if root.is_dir() else ():
        lists = _lists(folder)
        flags = next((path for path in lists if _FLAGS.fullmatch(path.stem)), None)
        names = next((folder / name for name in _NAMES if (folder / name) in lists), None)
        by_split = _by_split(lists)
        if flags is not None and names is not None:
            match = _match(names, folder, root, pictures, _after_id)
            if match is not None:
                return _told(folder, [flags], _command_of_flags(match, flags, names))
        elif Split.TRAIN in by_split and len(by_split) > 1:
            tables = [by_split[split] for split in sorted(by_split, key=list(Split).index)]
            cells = (_whole, _first)
            matches = (_match(tables[0], folder, root, pictures, cell) for cell in cells)
            match = next((one for one in matches if one is not None), None)
            if match is not None:
                return _told(folder, tables, _command_of_lists(match, by_split))
    return None


def _told(folder: Path, lists: Sequence[Path], command: str | None) -> str:
    names = name_some([path.name for path in lists])
    verb = "has" if len(lists) == 1 else "have"
    told = f"{folder}: {names} {verb} a split of the pictures, which is not used"
    return f"{told}. To use it: {command}" if command else told


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folder, those in it, and the one above, with those beside if it is `images`."""
    yield root
    yield from _folders_in(root)
    yield from (one for one in (root / _SETS, root.parent / _SETS) if one.is_dir())
    yield root.parent
    if is_of_files(root.name):
        yield from (one for one in _folders_in(root.parent) if one != root)


def _folders_in(folder: Path) -> list[Path]:
    try:
        found = (one for one in islice(folder.iterdir(), _MAX_FILES) if not is_hidden(one.name))
        return sorted(one for one in found if one.is_dir())[:_MAX_FOLDERS]
    except OSError:
        return []


def _lists(folder: Path) -> list[Path]:
    try:
        found = (one for one in islice(folder.iterdir(), _MAX_FILES) if not is_hidden(one.name))
        return sorted(one for one in found if one.suffix.lower() in _ENDS and one.is_file())
    except OSError:
        return []


def _by_split(lists: Sequence[Path]) -> dict[Split, Path]:
    """Return the first list of each split by the names; trainval is train, if there is no other."""
    found: dict[Split, Path] = {}
    for path in lists:
        for split in split_candidates(path.stem)[:1]:
            found.setdefault(split, path)
    if Split.TRAIN not in found:
        both = next((path for path in lists if path.stem.lower() == _TRAIN_AND_VAL), None)
        if both is not None:
            found[Split.TRAIN] = both
            found.pop(Split.VAL, None)
    return found


_Cell = Callable[[str], str]


def _whole(line: str) -> str:
    return line


def _first(line: str) -> str:
    return line.split()[0]


def _after_id(line: str) -> str:
    return line.partition(" ")[2]


@dataclass(frozen=True)
class _Match:
    """How the lines of a list name pictures.

    Attributes:
        before, after: what is added to a cell for the path relative to the list's folder.
        label: awk code for the class of the cell `c`, whose parts are `a[1]` to `a[n]`; empty if
            the cells do not contain it.
        is_whole: whether a cell is the whole line, and not its first word.
    """

    before: str
    after: str
    label: str
    is_whole: bool


def _match(
    path: Path, folder: Path, root: Path, pictures: Sequence[Picture], cell_of: _Cell
) -> _Match | None:
    """Return how a list names pictures; None if it does not name half of them in one way."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        with path.open(encoding="utf-8") as file:
            lines = [line.strip() for line in islice(file, _MAX_LINES)]
    except (OSError, UnicodeDecodeError):
        return None
    cells = [cell_of(line) for line in lines if line and not line.startswith("#")]
    index: dict[str, list[Picture]] = {}
    for picture in pictures:
        index.setdefault(PurePosixPath(picture.path).stem, []).append(picture)
    above = "" if root == folder else _relative(root, folder)
    ways: dict[tuple[str, str], list[tuple[str, Picture]]] = {}
    for cell in cells:
        for name in dict.fromkeys((PurePosixPath(cell).stem, PurePosixPath(cell).name)):
            for picture in index.get(name, ()):
                place = f"{above}{picture.path}"
                after = "" if place.endswith(cell) else PurePosixPath(place).suffix
                if f"/{place}".endswith(f"/{cell}{after}"):
                    before = place[: len(place) - len(cell + after)]
                    ways.setdefault((before, after), []).append((cell, picture))
    if not ways:
        return None
    (before, after), named = max(ways.items(), key=lambda item: len(item[1]))
    if len(named) < _MIN_NAMED_FRAC * len(cells):
        return None
    return _Match(before, after, _label_code(named), cell_of is not _first)


def _relative(root: Path, folder: Path) -> str:
    return f"{PurePosixPath(os.path.relpath(root, folder))}/"


def _label_code(named: Sequence[tuple[str, Picture]]) -> str:
    """Return awk code for the class in a cell; empty if no code makes the labels."""
    if any(set(',"') & set(cell + picture.label) for cell, picture in named):
        return ""  # a cell would need quotes
    if all("/" in cell and cell.split("/")[-2] == picture.label for cell, picture in named):
        return "a[n-1]"
    stems = [PurePosixPath(picture.path).stem for _, picture in named]
    in_names = [re.search(NUMBERED, f"{stem}.x") for stem in stems]
    is_bare = all(cell == stem for (cell, _), stem in zip(named, stems, strict=True))
    labels = [picture.label for _, picture in named]
    if is_bare and [one and one[1] for one in in_names] == labels:
        return f'(sub(/{_NUMBER}/,"",a[n])?a[n]:"")'
    return ""


def _row(match: _Match, split: str) -> str:
    code = f'n=split(c,a,"/");l={match.label};'
    return code + f'print "{match.before}" c "{match.after}," l ",{split}'


def _command_of_flags(match: _Match, flags: Path, names: Path) -> str | None:
    if not match.label:
        return None
    script = (
        'BEGIN{print "path,label,split"} {sub(/\\r$/,"")} NR==FNR{s[$1]=$2;next} '
        '{i=$1;c=$0;sub(/^[^ ]+ /,"",c);' + _row(match, '" (s[i]==1?"train":"test")}')
    )
    return _made(script, [flags, names])


def _command_of_lists(match: _Match, by_split: Mapping[Split, Path]) -> str | None:
    if not match.label:
        return None
    splits = sorted(by_split, key=list(Split).index)
    of_file = "".join(f'FILENAME==ARGV[{at}]?"{split}":' for at, split in enumerate(splits, 1))
    cell = "$0" if match.is_whole else "$1"
    script = (
        'BEGIN{print "path,label,split"} {sub(/\\r$/,"")} /^#/||!NF{next} '
        f"{{c={cell};" + _row(match, f'" ({of_file}"")}}')
    )
    return _made(script, [by_split[split] for split in splits])


def _made(script: str, lists: Sequence[Path]) -> str:
    out = lists[0].with_name("all-splits.csv")
    places = " ".join(map(typed, lists))
    return (
        f"awk {shlex.quote(script)} {places} > {typed(out)} && stepladder prepare {typed(out)} "
        "--overwrite"
    )

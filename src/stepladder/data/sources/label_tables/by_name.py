"""Find the pictures that cells of a table name, if no folder and ending make paths of the cells."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from stepladder.data.sources.label_tables.paths import (
    PICTURE_ENDS,
    SLOT,
    PathReader,
    is_found,
    some,
)
from stepladder.data.sources.walk import is_hidden

_MAX_FILES: Final = 100_000  # walked through
_MAX_SHAPES: Final = 200  # files whose folders are compared with their names
_MIN_CELL: Final = 3  # letters of a cell that is searched for within names
_MAX_ENDS: Final = 100  # labels have fewer different names
_MARKS: Final = "_-. :|#"  # between the name of a picture and what follows in a cell
_UPLOAD: Final = re.compile(r"[0-9a-fA-F]{8}-(.+)")  # Label Studio's name of an upload
_SERVED: Final = re.compile(r"[?&]d=([^&]+)")  # Label Studio's path of a local file
_REMOVED: Final = re.compile(r"[^-\w.]")  # from the names of uploads; blanks become underscores


class Nearby:
    """The pictures below a folder by their names.

    Args:
        root: the folder; at most 100,000 of its files are listed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.pictures = list(itertools.islice(_pictures(root), _MAX_FILES))
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for path in self.pictures:
            name = path.rpartition("/")[2]
            for key in {name, os.path.splitext(name)[0]}:  # noqa: PTH122 (many of them)
                self._by_name[key].append(path)

    def readers(self, cells: Sequence[str]) -> list[PathReader]:
        """Return readers that find most of the pictures in one folder, or with one name around.

        Such as `scan_{}_small.jpg`, or `{}` in a folder that is deep.
        """
        looked_at = [cell.strip() for cell in some(cells)]
        shapes: Counter[str] = Counter()
        for cell in looked_at:
            shapes.update(set(self._shapes(cell)))
        found = []
        for shape, _ in shapes.most_common(_MAX_ENDS):
            reader = PathReader(shape, is_stripped=True)
            num = sum(is_found(self._root, reader(cell)) for cell in looked_at)
            if 2 * num >= len(looked_at):
                found.append((num, reader))
        most = max((num for num, _ in found), default=0)
        return [reader for num, reader in found if num == most]

    def _shapes(self, cell: str) -> Iterator[str]:
        """Yield the path formats that make the path of a picture of a cell."""
        if not cell:
            return
        last = cell.rpartition("/")[2]
        for path in self._by_name.get(last, ()):
            ending = "" if path.endswith(cell) else os.path.splitext(path)[1]  # noqa: PTH122
            if f"/{path}".endswith(f"/{cell}{ending}"):
                yield f"{path[: len(path) - len(cell + ending)]}{SLOT}{ending}"
        if len(cell) < _MIN_CELL or "/" in cell or last in self._by_name:
            return
        whole = re.compile(rf"(?<![^\W_]){re.escape(cell)}(?![^\W_])")
        for path in self.pictures[:_MAX_SHAPES]:
            folder, slash, name = path.rpartition("/")
            if match := whole.search(name):
                yield f"{folder}{slash}{name[: match.start()]}{SLOT}{name[match.end() :]}"

    def spread(self, cells: Sequence[str]) -> Spread | None:
        """Return where pictures are that are in many folders; None if the cells do not name them.

        The folders of `train/0/a/1/0a1b.jpg` are the start of its name; else any are searched.
        """
        looked_at = [cell.strip() for cell in some(cells)]
        if not looked_at or any("/" in cell for cell in looked_at):
            return None
        for top, lengths, ending in dict.fromkeys(_sliced(self.pictures[:_MAX_SHAPES])):
            paths = [_in_slices(cell, top, lengths, ending) for cell in looked_at]
            hits = [
                (cell, path)
                for cell, path in zip(looked_at, paths, strict=True)
                if is_found(self._root, path)
            ]
            if 2 * len(hits) >= len(looked_at):
                return Spread(*hits[0], _sliced_function(top, lengths, ending), True)
        hits = [(cell, self._by_name[cell][0]) for cell in looked_at if cell in self._by_name]
        if 2 * len(hits) < len(looked_at):
            return None
        tops = Counter(path.partition("/")[0] if "/" in path else "" for _, path in hits)
        top = next(iter(tops)) if len(tops) == 1 else ""
        endings = sorted({os.path.splitext(path)[1] for _, path in hits})  # noqa: PTH122
        return Spread(*hits[0], _walking_function(top, endings), False)

    def renamed(self, cells: Sequence[str]) -> PathReader | None:
        """Return a reader of names that an annotation tool changed; None if most are others.

        Such as `/data/upload/3/22d66256-IMG_4100.jpg`, `/data/local-files/?d=images/1.jpg`,
        `s3://bucket/my%20cat.jpg`. Different cells must be different pictures.
        """
        looked_at = [cell.strip() for cell in some(cells)]
        changed = [cell for cell in looked_at if self._by_tail.keys().isdisjoint(_tails(cell))]
        found = [cell for cell in changed if self.picture_of(cell) is not None]
        if not looked_at or 2 * len(found) < len(looked_at):
            return None
        distinct = {cell.strip() for cell in cells}
        pictures = [one for cell in distinct if (one := self.picture_of(cell)) is not None]
        if len(set(pictures)) < len(pictures):
            return None
        return PathReader(find=self.picture_of, example=found[0])

    def picture_of(self, cell: str) -> str | None:
        """Return the one picture that a cell names, maybe with other folders or a prefix."""
        text = cell.strip()
        served = _SERVED.search(text)
        plain = served[1] if served else text.partition("?")[0]
        for form in dict.fromkeys((text, plain, unquote(plain))):
            upload = _UPLOAD.fullmatch(form.replace("\\", "/").rpartition("/")[2])
            for tail in (*_tails(form), *([upload[1]] if upload else [])):
                found = self._by_tail.get(tail, ())
                if len(found) == 1:
                    return found[0]
        return None

    @cached_property
    def _by_tail(self) -> Mapping[str, Sequence[str]]:
        """Pictures by the ends of their paths at slashes, and by the names of their uploads."""
        found: dict[str, list[str]] = defaultdict(list)
        for path in self.pictures:
            name = path.rpartition("/")[2]
            uploaded = _REMOVED.sub("", name.strip().replace(" ", "_"))
            tails = {*_tails(path), uploaded}
            for tail in tails | {os.path.splitext(tail)[0] for tail in tails}:  # noqa: PTH122
                found[tail].append(path)
        return dict(found)

    def followed(self, cells: Sequence[str]) -> Followed | None:
        """Return what follows the names of pictures in cells; None if most are no such names."""
        looked_at = [cell.strip() for cell in some(cells)]
        cut = [(cell, found) for cell in looked_at if (found := self._cut(cell)) is not None]
        if not looked_at or 2 * len(cut) < len(looked_at):
            return None
        whole = [(found[1], found[2]) for cell in cells if (found := self._cut(cell.strip()))]
        counts = Counter(end for _, end in whole)
        names = {name for name, _ in whole}
        are_labels = (
            len(counts) <= _MAX_ENDS
            and len(whole) > len(names) > 1
            and all(count > 1 for count in counts.values())
        )
        cell, (path, _, _) = cut[0]
        return Followed(cell, path, counts, are_labels)

    def _cut(self, cell: str) -> tuple[str, str, str] | None:
        """Return the picture whose name a cell begins with, that name, and what follows it."""
        for at in range(len(cell) - 1, 0, -1):
            if cell[at] in _MARKS and cell[:at] in self._by_name:
                return self._by_name[cell[:at]][0], cell[:at], cell[at:]
        return None


@dataclass(frozen=True)
class Spread:
    """Pictures that cells name, in many folders.

    Attributes:
        cell, path: an example, and where its picture is.
        function: of a cell, in Python: its path. The module os and the list sys.argv are used.
        are_slices: whether the folders are the start of the name.
    """

    cell: str
    path: str
    function: str
    are_slices: bool


@dataclass(frozen=True)
class Followed:
    """Cells with the name of a picture and something that follows it.

    Attributes:
        cell, path: an example, and its picture.
        ends: number of cells with each of what follows, with the mark before it.
        are_labels: whether these recur, and pictures have several of them.
    """

    cell: str
    path: str
    ends: Mapping[str, int]
    are_labels: bool


def _tails(path: str) -> list[str]:
    """Return the ends of a path at slashes, the longest first."""
    parts = path.replace("\\", "/").split("/")
    return [tail for at in range(len(parts)) if (tail := "/".join(parts[at:]))]


def _pictures(root: Path) -> Iterator[str]:
    """Yield the pictures below a folder, relative to it."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        above = os.path.relpath(folder, root)
        start = "" if above == "." else f"{above}/"
        for name in sorted(names):
            if name.lower().endswith(PICTURE_ENDS) and not is_hidden(name):
                yield f"{start}{name}"


def _sliced(paths: Sequence[str]) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yield top folder, lengths of folders and ending of paths such as `train/0a/1b/0a1b.jpg`."""
    for path in paths:
        *folders, name = path.split("/")
        stem, ending = os.path.splitext(name)  # noqa: PTH122
        for num in range(len(folders), 0, -1):
            if stem.startswith("".join(folders[-num:])):
                top = "".join(f"{one}/" for one in folders[:-num])
                yield top, tuple(map(len, folders[-num:])), ending
                break


def _in_slices(cell: str, top: str, lengths: Sequence[int], ending: str) -> str:
    ends = list(itertools.accumulate(lengths))
    parts = [cell[end - length : end] for length, end in zip(lengths, ends, strict=True)]
    return f"{top}{'/'.join(parts)}/{cell}{'' if cell.endswith(ending) else ending}"


def _sliced_function(top: str, lengths: Sequence[int], ending: str) -> str:
    ends = list(itertools.accumulate(lengths))
    parts = [f"c[{end - length}:{end}]" for length, end in zip(lengths, ends, strict=True)]
    end = json.dumps(ending)
    name = f"c+{end}*(not c.endswith({end}))"
    return f'lambda c:{json.dumps(top)}+"/".join([{",".join(parts)},{name}])'


def _walking_function(top: str, endings: Sequence[str]) -> str:
    wanted = ",".join(map(json.dumps, endings))
    return (
        "lambda c,m=(lambda b:{k:os.path.relpath(os.path.join(d,n),b) for d,_,f in "
        f"os.walk(os.path.join(b,{json.dumps(top)})) for n in f if n.endswith(({wanted},)) "
        'for k in (n,os.path.splitext(n)[0])})(os.path.dirname(sys.argv[1]) or "."):m.get(c,c)'
    )

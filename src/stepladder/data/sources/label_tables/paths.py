"""Find the files that the cells of a table mean, and how to make a path of a cell."""

from __future__ import annotations

import filecmp
import itertools
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from stepladder.data.decoding.formats import PICTURE_SUFFIXES
from stepladder.data.sources.walk import is_hidden, printable
from stepladder.errors import UsageError

SLOT: Final = "{}"
PICTURE_ENDS: Final = tuple(sorted(PICTURE_SUFFIXES))
_ENDINGS: Final = (*PICTURE_ENDS, *(ending.upper() for ending in PICTURE_ENDS))
_MAX_CUT: Final = 30  # folders at the start of paths
_MAX_LOOKED_AT: Final = 50  # paths whose files are looked for before any is read
_NUM_PROBES: Final = 5  # of these, the ones that every folder and ending is tried with
_MAX_FOLDERS_TRIED: Final = 200
_MAX_ENTRIES: Final = 10_000  # of a folder that is searched for folders
_MAX_PARENTS: Final = 2
_MIN_DIVIDED: Final = 2
_MIN_DISTINCT_FRAC: Final = 0.9  # of numbers that are names of pictures
PATH_NAMES: Final = (
    *("path", "file", "filename", "filenames", "file_name", "filepath", "file_path", "name"),
    *("image", "images", "image_path", "image_name", "image_id", "img", "img_path"),
)
"""Usual names of the column of paths."""
_SLOTS: Final = re.compile(r"\{(?::0([1-9][0-9]?))?\}")
_NUMBER: Final = re.compile(r"([0-9]+)(?:\.0)?")  # pandas writes 1.0 if a cell is empty
_FLOAT: Final = re.compile(r"[0-9]+\.0")
_WITH_ZEROS: Final = re.compile(r"(|.*[^0-9])(0[0-9]+)(\.[A-Za-z0-9]+)")
_T = TypeVar("_T")


@dataclass(frozen=True)
class PathReader:
    """Turns a cell into a path relative to the folder of the table.

    Attributes:
        path_format: the path, with {} in place of the cell.
        is_stripped: whether blanks around the cell are dropped.
        has_backslashes: whether backslashes separate folders.
        cut: start of the cell that is dropped, such as a folder of another machine.
        others: other path formats, if the pictures are divided over several folders.
        num_digits: numbers get zeros in front, up to as many digits: `00001` for 1.
        root: folder that they are searched in; None if there are no others.
        copies: (folder, folder that has the same files and is read instead).
        find: returns the picture of a cell that an annotation tool renamed, and None of another.
        example: such a cell.
    """

    path_format: str = SLOT
    is_stripped: bool = False
    has_backslashes: bool = False
    cut: str = ""
    others: tuple[str, ...] = ()
    num_digits: int = 0
    root: Path | None = None
    copies: tuple[tuple[str, str], ...] = ()
    find: Callable[[str], str | None] | None = None
    example: str = ""

    def __call__(self, cell: str) -> str:
        """Return the path."""
        if self.find is not None:
            return self.find(cell) or cell
        path = cell.strip() if self.is_stripped else cell
        path = path.replace("\\", "/") if self.has_backslashes else path
        path = path.removeprefix(self.cut)
        if self.num_digits and (number := _NUMBER.fullmatch(path)):
            path = number[1].zfill(self.num_digits)
        if self.root is not None:
            for one in (self.path_format, *self.others):
                if is_found(self.root, one.replace(SLOT, path)):
                    return one.replace(SLOT, path)
        return path if self.path_format == SLOT else self.path_format.replace(SLOT, path)

    @property
    def written(self) -> str:
        """The path format as it is typed: `{:05}` for numbers with five digits."""
        slot = f"{{:0{self.num_digits}}}" if self.num_digits else SLOT
        return self.path_format.replace(SLOT, slot)

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders that the pictures are divided over; empty if they are not."""
        formats = (self.path_format, *self.others) if self.others else ()
        return tuple(one.partition(SLOT)[0].rstrip("/") or "." for one in formats)

    def notes(self) -> Iterator[str]:
        """Yield what is read in another way than the cells are written."""
        if self.has_backslashes:
            yield "read the backslashes in paths as separators of folders"
        if self.find is not None:
            yield (
                f"{printable(self.example)!r} is read as {printable(self(self.example))}: cells "
                "are read without the folders, prefix of 8 digits, or URL encoding that an "
                "annotation tool adds to the names of pictures"
            )
        for copy, original in self.copies:
            yield (
                f"the folder {printable(copy)} has a second copy of the files in "
                f"{printable(original)} (compared by names, sizes and samples), and was not read"
            )


def parse_format(text: str | None) -> PathReader:
    """Return the reader of a value of --path-format; without one, the cell is the path.

    Raises:
        UsageError: if it does not have one place for the cell.
    """
    slots = [] if text is None else _SLOTS.findall(text)
    if text is not None and len(slots) != 1:
        raise UsageError(
            f"{text!r} does not contain {SLOT} once",
            where="prepare.path_format",
            fix=f"Write {SLOT} where the cell goes, such as --path-format 'images/{SLOT}.jpg'; "
            "{:05} writes numbers with five digits, such as 00001.",
        )
    return PathReader(_SLOTS.sub(SLOT, text or SLOT), num_digits=int((*slots, "")[0] or 0))


def flag_of(reader: PathReader) -> str:
    """Return the flag of a path format, to be typed in a shell."""
    return f"--path-format {shlex.quote(reader.written)}"


def read_plainly(cells: Sequence[str], root: Path, shape: PathReader) -> PathReader | None:
    """Return a reader for cells of which at least one names a file; None if none does."""
    looked_at = some(cells)
    for reader in _spellings(looked_at, shape):
        if _num_hits(reader, looked_at, root):
            return reader
    return None


def search(cells: Sequence[str], root: Path) -> list[PathReader]:
    """Return the readers that find most of the files: below the table's folder, else around it.

    Several readers find the same names in several folders. Starts of paths are dropped after
    folders above were tried, and before those beside them, which may be other data sets.
    """
    looked_at = some(cells)
    plain = list(_spellings(looked_at, PathReader()))[-1]
    above = ["../" * level for level in range(1, _MAX_PARENTS + 1)]
    below = _folders_below(root)
    found = _divided(plain, cells, root, below) or _best(plain, looked_at, root, below)
    if not found and all(map(_FLOAT.fullmatch, map(plain, looked_at))):
        found = _best(replace(plain, num_digits=1), looked_at, root, below)
    if padded := _with_zeros(plain, looked_at, root, below, found):
        return padded
    if len(found) > 1 and (copies := _copies(root, below)):
        below = [folder for folder in below if folder not in copies]
        found = _divided(plain, cells, root, below) or _best(plain, looked_at, root, below)
        pairs = tuple((copy.rstrip("/"), folder.rstrip("/")) for copy, folder in copies.items())
        found = [replace(one, copies=pairs) for one in found]
    return (
        found
        or _best(plain, looked_at, root, above)
        or _search_tails(plain, looked_at, root)
        or _search_beside(plain, looked_at, root, above)
    )


def is_around(reader: PathReader) -> bool:
    """Return whether a reader finds files outside the folder of the table."""
    return reader.path_format.startswith("../")


def _search_beside(
    plain: PathReader, cells: Sequence[str], root: Path, above: Sequence[str]
) -> list[PathReader]:
    """Return the readers that find most of the files beside the table's folder, or one above."""
    for up in above:
        beside = [f"{up}{folder}" for folder in _folders_in(root / up)]
        found = _best(plain, cells, root, beside)
        if found:
            return found
    return []


def _search_tails(plain: PathReader, cells: Sequence[str], root: Path) -> list[PathReader]:
    """Return the readers that find most of the files without the folders that all cells begin with.

    The shortest start that helps is dropped.
    """
    folders = _folders_below(root)
    common = os.path.commonprefix(list(map(plain, cells)))  # noqa: RUF071 (cut at slashes)
    ends = (at for at, letter in enumerate(common) if letter == "/")
    for at in itertools.islice(ends, _MAX_CUT):
        found = _best(replace(plain, cut=common[: at + 1]), cells, root, folders)
        if found:
            return found
    return []


def _divided(
    plain: PathReader, cells: Sequence[str], root: Path, folders: Sequence[str]
) -> list[PathReader]:
    """Return one reader of several folders, if each picture is in exactly one of them."""
    looked_at = some(cells)
    endings = ("",) if are_file_names(looked_at) else ("", *_ENDINGS)
    probes = list(map(plain, looked_at[:_NUM_PROBES]))
    ending = next(
        (
            ending
            for folder, ending in itertools.product(folders, endings)
            if _num_found(root, f"{folder}{SLOT}{ending}", probes)
        ),
        None,
    )
    if ending is None or probes[0].startswith("/"):
        return []
    formats = [f"{folder}{SLOT}{ending}" for folder in folders]
    used: list[str] = []
    wanted = list(dict.fromkeys(map(plain, cells)))
    missing = wanted
    while missing:
        sample = some(missing)
        hits = {one: _num_found(root, one, sample) for one in formats if one not in used}
        best = max(hits, key=hits.__getitem__, default=None)
        if best is None or not hits[best]:
            return []
        used.append(best)
        missing = [cell for cell in missing if not is_found(root, best.replace(SLOT, cell))]
    if len(used) < _MIN_DIVIDED:
        return []
    is_once = all(sum(_num_found(root, one, [cell]) for one in used) == 1 for cell in wanted)
    unused = [one for one in formats if one not in used]
    if not is_once or any(_num_found(root, one, some(wanted)) for one in unused):
        return []
    used.sort()
    return [replace(plain, path_format=used[0], others=tuple(used[1:]), root=root)]


def _copies(root: Path, folders: Sequence[str]) -> dict[str, str]:
    """Return the folders with the same files as an earlier one.

    Names and sizes of all are compared, and the content of some.
    """
    first: dict[tuple[tuple[str, int], ...], str] = {}
    copies: dict[str, str] = {}
    for folder in folders:
        files = tuple(_sizes(root / folder))
        original = first.setdefault(files, folder)
        names = some([name for name, _ in files])
        if original != folder and names and _are_same(root / folder, root / original, names):
            copies[folder] = original
    return copies


def _are_same(one: Path, other: Path, names: Sequence[str]) -> bool:
    try:
        return all(filecmp.cmp(one / name, other / name, shallow=False) for name in names)
    except OSError:
        return False


def _sizes(folder: Path) -> list[tuple[str, int]]:
    """Return name and size of each file in a folder; an empty list if they cannot be read."""
    try:
        with os.scandir(folder) as scan:
            return sorted(
                (e.name, e.stat().st_size) for e in scan if e.is_file() and not is_hidden(e.name)
            )
    except OSError:
        return []


def _num_found(root: Path, path_format: str, cells: Sequence[str]) -> int:
    return sum(is_found(root, path_format.replace(SLOT, cell)) for cell in cells)


def is_found(root: Path, path: str) -> bool:
    """Return whether a path below a folder is a file; False for any text that cannot be one."""
    return os.path.isfile(os.path.join(root, path))  # noqa: PTH113, PTH118 (millions of them)


def some(items: Sequence[_T]) -> list[_T]:
    """Return at most 50 items, evenly spaced."""
    step = max(1, len(items) // _MAX_LOOKED_AT)
    return list(items[::step][:_MAX_LOOKED_AT])


def are_file_names(cells: Sequence[str]) -> bool:
    """Return True if most cells end like the name of a picture."""
    ends = [cell.strip().lower().endswith(PICTURE_ENDS) for cell in cells]
    return 2 * sum(ends) > len(ends)


def _spellings(cells: Sequence[str], reader: PathReader) -> Iterator[PathReader]:
    yield reader
    if any(cell != cell.strip() for cell in cells):
        reader = replace(reader, is_stripped=True)
        yield reader
    if any("\\" in cell for cell in cells):
        yield replace(reader, has_backslashes=True)


def _best(
    reader: PathReader, cells: Sequence[str], root: Path, folders: Sequence[str]
) -> list[PathReader]:
    """Return the folders and endings with the most files, if those are half of the cells."""
    if reader(cells[0]).startswith("/"):
        return []
    endings = ("",) if are_file_names(cells) else ("", *_ENDINGS)
    probes = cells[:: max(1, len(cells) // _NUM_PROBES)][:_NUM_PROBES]
    hits: dict[PathReader, int] = {}
    first_files: set[str] = set()
    for folder, ending in itertools.product(folders, endings):
        tried = replace(reader, path_format=f"{folder}{SLOT}{ending}")
        hit = next((tried(cell) for cell in probes if is_found(root, tried(cell))), None)
        if hit is None or os.path.realpath(root / hit) in first_files:
            continue
        first_files.add(os.path.realpath(root / hit))
        hits[tried] = _num_hits(tried, cells, root)
    most = max(hits.values(), default=0)
    return [tried for tried, num in hits.items() if num == most and 2 * num >= len(cells)]


def _with_zeros(
    plain: PathReader,
    cells: Sequence[str],
    root: Path,
    folders: Sequence[str],
    found: Sequence[PathReader],
) -> list[PathReader]:
    """Return the readers that find more files than others by zeros in front of numbers."""
    are_numbers = all(_NUMBER.fullmatch(plain(cell)) for cell in cells)
    if not are_numbers or len(set(cells)) < _MIN_DISTINCT_FRAC * len(cells):
        return []
    shapes = dict.fromkeys(shape for folder in folders for shape in _numbered(root, folder))
    hits = {shape: _num_hits(shape, cells, root) for shape in shapes}
    before = max((_num_hits(one, cells, root) for one in found), default=0)
    most = max(hits.values(), default=0)
    is_more = most > before and 2 * most >= len(cells)
    return [shape for shape, num in hits.items() if num == most] if is_more else []


def _numbered(root: Path, folder: str) -> Iterator[PathReader]:
    """Yield how the numbered pictures of a folder are named, if some begin with a zero."""
    try:
        with os.scandir(root / folder) as scan:
            names = [entry.name for entry in itertools.islice(scan, _MAX_ENTRIES)]
    except OSError:
        return
    for match in filter(None, map(_WITH_ZEROS.fullmatch, names)):
        if match[3].lower() in PICTURE_ENDS and SLOT not in match[1]:
            yield PathReader(f"{folder}{match[1]}{SLOT}{match[3]}", True, num_digits=len(match[2]))


def _num_hits(reader: PathReader, cells: Sequence[str], root: Path) -> int:
    """Count the cells that name a file; a broken link or a device counts, a folder does not."""
    paths = [os.path.join(root, reader(cell)) for cell in cells if cell.strip()]  # noqa: PTH118
    return sum(os.path.lexists(path) and not os.path.isdir(path) for path in paths)  # noqa: PTH112


def _folders_below(root: Path) -> list[str]:
    """Return the folder itself (an empty name) and the folders one and two levels below it."""
    top = _folders_in(root)
    inner = (f"{name}{below}" for name in top for below in _folders_in(root / name))
    return ["", *top, *itertools.islice(inner, _MAX_FOLDERS_TRIED)]


def _folders_in(root: Path) -> list[str]:
    try:
        with os.scandir(root) as scan:
            entries = itertools.islice(scan, _MAX_ENTRIES)
            names = sorted(e.name for e in entries if e.is_dir() and not is_hidden(e.name))
    except OSError:
        return []
    return [f"{name}/" for name in names[:_MAX_FOLDERS_TRIED]]

"""Find the labels of pictures that are not in class folders: in a table, or in their own names."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from stepladder.config.choices import Split
from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.label_tables.csv_file import read_csv
from stepladder.data.sources.label_tables.json_file import is_json, read_json
from stepladder.data.sources.label_tables.label_cells import (
    find_several,
    measured_values,
)
from stepladder.data.sources.label_tables.labels import (
    LABEL_NAMES,
    ONE_LABEL,
    class_columns,
    classes_of,
    is_number,
    label_candidates,
    plain_name,
)
from stepladder.data.sources.labels.classes_in_names import NUMBERED, classes_in_names
from stepladder.data.sources.labels.metadata_folder import TABLES
from stepladder.data.sources.labels.tool_annotations import find_annotations
from stepladder.data.sources.not_read.spreadsheets import SPREADSHEETS, read_sheet
from stepladder.data.sources.splits.joined_lists import (
    LABEL,
    TableMatch,
    join,
    left_out,
    split_of_table,
)
from stepladder.data.sources.splits.split_names import (
    assign_splits,
    is_of_annotations,
    named_as_splits,
    split_candidates,
)
from stepladder.data.sources.walk import is_hidden, printable, quoted
from stepladder.errors import StepladderError

_USUAL_LABELS: Final = (
    "breed",
    "diagnosis",
    "disease",
    "dx",
    "finding",
    "labels",
    "species",
    "type",
)
_LABEL_NAMES: Final = (LABEL, *LABEL_NAMES, *_USUAL_LABELS)
_TABLE_ENDS: Final = (".csv", ".tsv", ".jsonl")
_LIST_ENDS: Final = (".txt", ".lst", ".json")  # of lists, and of other files
_MAX_LISTS: Final = 10  # in a folder; more of them are annotations of single pictures
_MAX_TABLES: Final = 20
_MAX_TABLE_BYTES: Final = 1 << 28
_MAX_FOLDERS: Final = 50
_MAX_CELLS: Final = 500
_MIN_FOUND_FRAC: Final = 0.5
_MIN_ONE_PLACE_FRAC: Final = 0.9
_MIN_CLASSES: Final = 2
_MAX_CLASSES_NAMED: Final = 5


@dataclass(frozen=True)
class Elsewhere:
    """Where labels were found.

    Attributes:
        where: one sentence.
        fix: what to type.
        labels: labels that were found.
        are_folders: whether each folder has a label of its own: its name in another form.
        is_in_names: whether they are in the names of the pictures.
        are_single: whether annotations have one class for most pictures.
        is_sure: whether a table has a row for most pictures, and its column is named as labels.
    """

    where: str
    fix: str
    labels: frozenset[str]
    are_folders: bool = False
    is_in_names: bool = False
    are_single: bool = False
    is_sure: bool = False


def find_labels(root: Path, paths: Sequence[str], every: Sequence[str] = ()) -> Elsewhere | None:
    """Look for the labels of pictures in tables near them, in their names, and in annotations.

    Args:
        root: the source's folder.
        paths: the pictures, relative to it; those of train alone, if they are in splits.
        every: those of all splits; empty: the same.
    """
    table = find_table(root, paths, every)
    if table is not None:
        return table
    named, annotated = find_in_names(root, paths), _in_annotations(root, every or paths)
    if named is None or annotated is None:
        return annotated or named
    is_same = {one.lower() for one in named.labels} == {one.lower() for one in annotated.labels}
    if annotated.are_single and is_same:
        return annotated  # has the splits, too
    command = annotated.fix.partition(": ")[2]
    other = f" To use these classes: {command}" if annotated.are_single else ""
    return replace(named, where=f"{named.where} {annotated.where}{other}")


def _in_annotations(root: Path, paths: Sequence[str]) -> Elsewhere | None:
    """Look for the annotations of a tool, such as CVAT or YOLO, near the pictures."""
    found = find_annotations(root, paths, typed)
    if found is None:
        return None
    fix = (
        f"Write the classes as a table: {found.edit} && stepladder prepare {typed(found.table)}"
        if found.edit
        else "Crop the boxes to pictures, and put those of each class into a folder of their own; "
        "or write a table with the columns path and label, with one class for each picture."
    )
    is_single = bool(found.edit)
    return Elsewhere(f"{printable(found.described)}.", fix, found.labels, are_single=is_single)


def find_table(root: Path, paths: Sequence[str], every: Sequence[str] = ()) -> Elsewhere | None:
    """Look for a table in a folder, in its subfolders and above it that has the labels.

    If it has only numbers for classes that the names of the pictures contain, these are preferred.
    A list of a split, such as val.txt, is compared with the pictures in the folder of the split.
    """
    found = _matches(root, paths, every)
    if not found:
        return None
    best = max(found, key=lambda match: match.num_named)
    is_label = plain_name(best.label_name) in {*_LABEL_NAMES} - {"type"}  # which may be a format
    is_sure = is_label and best.num_rows >= _MIN_ONE_PLACE_FRAC * len(without_masks(paths))
    named = find_in_names(root, paths) if best.are_numbers_of_names else None
    where = f"{printable(best.table.name)} names these pictures, with {best.described}"
    command = f"stepladder prepare {typed(best.table)}{best.flags()}"
    if _is_spreadsheet(best.table):
        return replace(_of_spreadsheet(best, where), is_sure=is_sure)
    alike = {match.table.parent.name for match in found if match.table.name == best.table.name}
    joined = join(found, root, typed)
    used = [best.table] if joined is None else [match.table for _, match in joined.tables]
    if best.table.name in TABLES and len(named_as_splits(alike)) > 1:
        command = f"stepladder prepare {typed(root)}{best.flags()}"  # reads each split's table
    elif joined is not None:
        *names, last = (printable(_name(table)) for table in used)
        where = f"{', '.join(names)} and {last} name these pictures with their labels"
        command = joined.command
    rest = left_out(used, [match.table for match in found])
    if best.num_folders > 1:
        where += f"; they are in {best.num_folders} folders"
    if best.num_folders > 1 and best.path_format != "{}":
        return Elsewhere(
            f"{where}.{best.problem}{rest}",
            f"Move them to one folder beside the table. If it is images: {command}",
            best.labels,
            is_sure=is_sure,
        )
    how = "Type" if not best.problem else best.remedy
    if named is not None:
        numbers = f"With the numbers in {printable(best.table.name)} as their names: {command}"
        return replace(named, where=f"{named.where} {numbers}{rest and '.'}{rest}")
    said = f"{where}.{best.problem}{rest}"
    return Elsewhere(said, f"{how}: {command}", best.labels, best.are_folders, is_sure=is_sure)


def _of_spreadsheet(match: TableMatch, where: str) -> Elsewhere:
    """Return the labels of a workbook, with the command that writes its sheet as CSV."""
    table = match.table.with_suffix(".csv")
    if table.exists():
        table = table.with_name(f"{table.stem}-of-sheet.csv")
    script = "import sys;from stepladder.data.sources.not_read.spreadsheets import write_csv;"
    script += "write_csv(*sys.argv[1:])"
    edit = f"python -c {shlex.quote(script)} {typed(match.table)} {typed(table)}"
    if match.num_folders > 1:
        match = replace(match, path_format="{}")
    read = f"stepladder prepare {typed(table)}{match.flags()}"
    fix = f"Write its first sheet as CSV: {edit} && {read}\n"
    fix += f"If you saved the sheet in Excel or LibreOffice as CSV UTF-8, {table.name}: {read}"
    return Elsewhere(f"{where}.{match.problem}", fix, match.labels, match.are_folders)


def _is_spreadsheet(table: Path) -> bool:
    return table.name.lower().endswith(SPREADSHEETS)


def _matches(root: Path, paths: Sequence[str], every: Sequence[str]) -> list[TableMatch]:
    """Return the tables that name pictures with their labels; see `find_table`."""
    index = _index(without_masks(paths))
    inside = {split: _index(some) for split, some in _by_split(without_masks(every)).items()}
    tables = list(_tables(root))

    def match(table: Path, like: TableMatch | None = None) -> TableMatch | None:
        splits = split_candidates(split_of_table(table))
        own = next((inside[split] for split in splits if split in inside), None)
        found = None if own is None else _match(table, root, own, like)
        return found or _match(table, root, index, like)

    by_table = {table: match(table) for table in tables}
    likely = [one for one in by_table.values() if one and split_of_table(one.table)]
    like = max(likely, key=lambda one: one.num_named, default=None)
    for table in tables:
        if by_table[table] is None and like is not None and split_of_table(table):
            by_table[table] = match(table, like)
    return [one for one in by_table.values() if one is not None]


def _name(table: Path) -> str:
    """Return a table's name, with its folder if that is what means its split."""
    return table.name if split_candidates(table.stem) else f"{table.parent.name}/{table.name}"


def _index(paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the pictures by their names, with and without the ending."""
    index: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        name = PurePosixPath(path).name
        for key in {name, PurePosixPath(name).stem}:
            index[key].append(path)
    return index


def _by_split(paths: Sequence[str]) -> dict[Split, list[str]]:
    """Return the pictures in each folder of a split, below the folder that has all of them."""
    around = os.path.commonpath([path.rpartition("/")[0] for path in paths]) if paths else ""
    start = len(around) + 1 if around else 0
    tops = [path[start:].partition("/")[0] for path in paths]
    splits = assign_splits(named_as_splits(set(tops)))
    found: dict[Split, list[str]] = defaultdict(list)
    for path, top in zip(paths, tops, strict=True):
        if top in splits:
            found[splits[top]].append(path)
    return found


def typed(path: Path) -> str:
    """Return a path to type in a command: relative if it is below the current folder."""
    with contextlib.suppress(ValueError, OSError):
        path = path.relative_to(Path.cwd())
    return quoted(path)


def without_masks(paths: Sequence[str]) -> list[str]:
    """Leave out files in folders of masks or annotations that have the name of another file."""
    masks = {path for path in paths if any(map(is_of_annotations, path.split("/")[:-1]))}
    stems = {PurePosixPath(path).stem for path in paths if path not in masks}
    return [path for path in paths if path not in masks or PurePosixPath(path).stem not in stems]


def find_in_names(root: Path, paths: Sequence[str]) -> Elsewhere | None:
    """Look for the labels of pictures in their names; masks beside them are left out."""
    pictures = without_masks(paths)
    folder = ""
    if len(pictures) < len(paths):
        folder = os.path.commonpath([path.rpartition("/")[0] for path in pictures])
    paths = pictures
    found = classes_in_names(paths)
    if found is None:
        return None
    pattern, counts = found
    some = ", ".join(f"{name} ({counts[name]})" for name in sorted(counts)[:_MAX_CLASSES_NAMED])
    rest = len(counts) - _MAX_CLASSES_NAMED
    some += f" and {rest} more" if rest > 0 else ""
    example = printable(PurePosixPath(paths[0]).name)
    return Elsewhere(
        f"Names such as {example} contain {len(counts)} classes: {some}.",
        f"Type: stepladder prepare {typed(root / folder)} --label-pattern {shlex.quote(pattern)}",
        frozenset(counts),
        is_in_names=True,
    )


def _tables(root: Path) -> Iterator[Path]:
    """Yield tables in a folder, in its subfolders and in the folder above it."""

    def within() -> Iterator[Path]:
        folders = [root, *islice(_sorted(root, are_folders=True), _MAX_FOLDERS), root.parent]
        for folder in folders:
            yield from _sorted(folder, are_folders=False)
            yield from _sorted(folder, are_folders=False, ends=SPREADSHEETS)

    return islice(within(), _MAX_TABLES)


def has_table(folder: Path) -> bool:
    """Return True if a table or a spreadsheet is in a folder, but not in its subfolders."""
    sheets = _sorted(folder, are_folders=False, ends=SPREADSHEETS)
    return next(tables_in(folder), None) is not None or next(sheets, None) is not None


def tables_in(folder: Path) -> Iterator[Path]:
    """Yield the tables in a folder, but not in its subfolders."""
    return islice(_sorted(folder, are_folders=False), _MAX_TABLES)


def _sorted(folder: Path, *, are_folders: bool, ends: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield the folders, or the tables, in a folder."""
    try:
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: os.fsencode(entry.name))
    except OSError:  # the source is in Spark
        return
    lists = [entry for entry in entries if entry.name.lower().endswith(_LIST_ENDS)]
    if not ends:
        ends = (*_TABLE_ENDS, *_LIST_ENDS) if len(lists) <= _MAX_LISTS else _TABLE_ENDS
    for entry in entries:
        if is_hidden(entry.name):
            continue
        if are_folders and entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)
        is_table = entry.name.lower().endswith(ends)
        if not are_folders and is_table and entry.is_file():
            yield Path(entry.path)


def _read(table: Path) -> TableCells:
    if _is_spreadsheet(table):
        return read_sheet(table)
    return (
        read_json(table)
        if is_json(table)
        else read_csv(table, wanted=("path", "label"), columns=None)
    )


def _match(
    table: Path,
    root: Path,
    index: Mapping[str, Sequence[str]],
    like: TableMatch | None = None,
) -> TableMatch | None:
    """Find the column of a table that names pictures, and the one of labels.

    A short list, whose labels do not repeat, may be read as a longer one that it is like.
    """
    try:
        if table.stat().st_size > _MAX_TABLE_BYTES:
            return None
        file = _read(table)
    except (StepladderError, OSError):
        return None
    above = os.path.relpath(root, table.parent)
    above = "" if above == "." else f"{above}/"
    rows = [cells for _, cells in file.body if len(cells) == len(file.header)]
    has_header = not any(_places(cell, above, index) for cell in file.header)
    if not has_header:
        rows.insert(0, file.header)
    step = max(1, len(rows) // _MAX_CELLS)
    sample = rows[::step][:_MAX_CELLS]
    num_found, path_at, place, num_folders = _path_column(sample, above, index)
    if not num_found:
        return None
    found_labels = _labels_of(file, rows, path_at, has_header=has_header)
    if found_labels is None and like is not None:
        found_labels = _labels_like(file, rows, like, has_header=has_header)
    if found_labels is None:
        return None
    columns: tuple[str, ...] = ()
    header = list(file.header)
    if not has_header:
        header = [f"column{at + 1}" for at in range(len(header))]
        header[path_at] = "path"
        if found_labels.at is not None:
            header[found_labels.at] = "label"
        columns = tuple(header)
    return TableMatch(
        table=table,
        path_format=place,
        path_name=header[path_at],
        label_name="" if found_labels.at is None else header[found_labels.at],
        described=found_labels.described,
        problem=found_labels.problem,
        remedy=found_labels.remedy,
        columns=columns,
        labels=found_labels.labels,
        num_named=num_found,
        num_rows=len(rows),
        num_folders=num_folders,
        are_folders=_are_folders(
            [(cells[path_at].strip(), found_labels.label(cells)) for cells in sample], index
        ),
        delimiter=_delimiter_of(file),
        are_numbers_of_names=found_labels.are_of_names and all(map(is_number, found_labels.labels)),
        path_at=path_at,
    )


def _path_column(
    sample: Sequence[Sequence[str]], above: str, index: Mapping[str, Sequence[str]]
) -> tuple[int, int, str, int]:
    """Return how many cells of a column name pictures, the column, the format, and the folders."""
    best: tuple[int, int, str, int] = (0, 0, "", 0)
    for column in range(len(sample[0]) if sample else 0):
        cells = {cells[column].strip() for cells in sample} - {""}
        places: Counter[str] = Counter()
        num_found, is_unique = 0, True
        for cell in cells:
            found = set(_places(cell, above, index))
            places.update(found)
            num_found += bool(found)
            is_unique = is_unique and len(found) <= 1
        if num_found > max(best[0], 1) and num_found >= _MIN_FOUND_FRAC * len(sample):
            best = (num_found, column, *_common_place(places, num_found, is_unique=is_unique))
    return best


def _delimiter_of(file: TableCells) -> str:
    if file.unit != "row":
        return ""
    return file.delimiter if file.delimiter in ",;\t|" else " "


def _are_folders(pairs: Sequence[tuple[str, str]], index: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the pictures of each folder have one label, and no other folder has it."""
    both = {
        (path.rpartition("/")[0], label)
        for cell, label in pairs
        for path in index.get(cell.rpartition("/")[2], ())
        if f"/{path}".endswith(f"/{cell}") or f"/{cell}".endswith(f"/{path}")
    }
    folders, labels = {folder for folder, _ in both}, {label for _, label in both}
    return len(both) == len(folders) == len(labels) > 1


def _common_place(places: Counter[str], num_found: int, *, is_unique: bool) -> tuple[str, int]:
    """Return the most frequent path format, and the number of folders if it is not the usual.

    Pictures in several folders whose names are unique are found without a path format.
    """
    (place, _), *_ = sorted(places.items(), key=lambda item: (-item[1], item[0]))
    folders: Counter[str] = Counter()
    for one, num in places.items():
        folders[one.partition("{}")[0]] += num
    folder = place.partition("{}")[0]
    if folders[folder] >= _MIN_ONE_PLACE_FRAC * num_found:
        return place, 1
    if is_unique:
        return "{}", len(folders)
    return f"images/{place[len(folder) :]}", len(folders)


def _places(cell: str, above: str, index: Mapping[str, Sequence[str]]) -> list[str]:
    """Return each path format that makes the path of a picture from a cell."""
    found = []
    for path in index.get(cell.rpartition("/")[2], ()):
        whole = above + path
        for ending in ("", PurePosixPath(path).suffix):
            tail = cell + ending
            if f"/{whole}".endswith(f"/{tail}"):
                found.append(f"{whole[: len(whole) - len(tail)]}{{}}{ending}")
                break
    return found


@dataclass(frozen=True)
class _Labels:
    """The labels of a table.

    Attributes:
        at: index of their column; None if each class has its own column.
        labels: all of them.
        label: the one of a row.
        described, problem, remedy: as in TableMatch.
        are_of_names: whether the names of the pictures contain a class for each label.
    """

    at: int | None
    labels: frozenset[str]
    label: Callable[[Sequence[str]], str]
    described: str
    problem: str = ""
    remedy: str = ""
    are_of_names: bool = False


def _labels_of(
    file: TableCells, rows: list[list[str]], path_at: int, *, has_header: bool
) -> _Labels | None:
    """Return the labels of a table, as its reader finds them; None if it has no labels."""
    whole = replace(file, body=list(enumerate(rows)))
    likely = label_candidates(whole, {path_at})
    one_hot = class_columns(whole, {path_at}) if has_header else []
    at = _label_at(file, rows, path_at, likely)
    is_named = at is not None and plain_name(file.header[at]) in _LABEL_NAMES
    if one_hot and not is_named and not (len(likely) == 1 and likely[0] not in one_hot):
        return _of_class_columns(file, rows, one_hot)
    of_names = _column_of_names(rows, path_at) if at is not None and not is_named else None
    at = at if of_names is None else of_names
    if at is None:
        return None
    name = file.header[at] if has_header else LABEL
    cells = [row[at].strip() for row in rows]
    several = find_several(cells, name)
    if several is not None and not several.is_sure:
        several = None
    is_coco = any("COCO annotations" in note for note in file.notes)
    return _Labels(
        at,
        frozenset(cells),
        lambda row: row[at].strip(),
        "a category for each" if is_coco else f"labels in its column {name!r}",
        "" if several is None else f" The {several.describe(name)}. {ONE_LABEL}",
        "To learn each combination as a class of its own",
        are_of_names=of_names is not None,
    )


def _labels_like(
    file: TableCells, rows: Sequence[Sequence[str]], like: TableMatch, *, has_header: bool
) -> _Labels | None:
    """Return the labels in the same column as in another table, if that has all of them."""
    names = file.header if has_header else list(like.columns)
    if like.label_name not in names or len(names) != len(file.header):
        return None
    at = names.index(like.label_name)
    labels = frozenset(row[at].strip() for row in rows)
    return (
        _Labels(at, labels, lambda row: row[at].strip(), like.described)
        if labels <= like.labels
        else None
    )


def _column_of_names(rows: Sequence[Sequence[str]], path_at: int) -> int | None:
    """Return the column that has one value for each class in the names of the pictures."""
    stems = [PurePosixPath(row[path_at].strip()).name for row in rows]
    matches = [re.search(NUMBERED, stem) or re.search(NUMBERED, f"{stem}.x") for stem in stems]
    if None in matches:
        return None
    classes = [match[1] for match in matches if match]
    if not _MIN_CLASSES <= len(set(classes)) <= len(classes) // 2:
        return None
    for at in range(len(rows[0])):
        cells = [row[at].strip() for row in rows]
        if at != path_at and len({*zip(cells, classes, strict=True)}) == len(set(cells)) == len(
            set(classes)
        ):
            return at
    return None


def _of_class_columns(
    file: TableCells, rows: Sequence[Sequence[str]], one_hot: Sequence[int]
) -> _Labels:
    """Return the labels of a table with a column of 0 and 1 for each class."""
    names = [file.header[at] for at in one_hot]
    shown = ", ".join(printable(name) for name in names[:_MAX_CLASSES_NAMED])
    shown += ", …" if len(names) > _MAX_CLASSES_NAMED else ""
    num_wrong = sum(len(classes_of(row, one_hot)) != 1 for row in rows)

    def label(row: Sequence[str]) -> str:
        return ", ".join(file.header[at] for at in classes_of(row, one_hot))

    return _Labels(
        one_hot[0] if num_wrong else None,
        frozenset(names),
        label,
        f"a column for each class: {shown}",
        f" {num_wrong} of its {len(rows)} rows have several classes or none. {ONE_LABEL}"
        if num_wrong
        else "",
        "Leave one 1 in each row, or learn one of the columns alone, such as the first",
    )


def _label_at(
    file: TableCells, rows: Sequence[Sequence[str]], path_at: int, likely: Sequence[int]
) -> int | None:
    """Return the column of labels: by its name, else the first one whose cells repeat."""
    distinct = {
        at: {cells[at].strip() for cells in rows} for at in range(len(file.header)) if at != path_at
    }
    able = [at for at, cells in distinct.items() if len(cells) >= _MIN_CLASSES]
    named = [at for name in _LABEL_NAMES for at in able if plain_name(file.header[at]) == name]
    cells = {at: [row[at].strip() for row in rows] for at in able}
    repeated = [
        at
        for at in able
        if (2 * len(distinct[at]) <= len(rows) and not measured_values(cells[at]))
        or ((several := find_several(cells[at])) is not None and several.is_sure)
    ]
    repeated.sort(key=lambda at: (at not in likely, [*likely, at].index(at)))
    return next(iter((*named, *repeated)), None)

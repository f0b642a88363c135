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
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.classes_in_names import NUMBERED, classes_in_names
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
from stepladder.data.sources.metadata_folder import TABLES
from stepladder.data.sources.split_names import assign_splits, is_of_annotations, named_as_splits
from stepladder.data.sources.spreadsheets import SPREADSHEETS, read_sheet
from stepladder.data.sources.tool_annotations import find_annotations
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
_LABEL: Final = PrepareConfig.label_column
_LABEL_NAMES: Final = (_LABEL, *LABEL_NAMES, *_USUAL_LABELS)
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
        is_sure: whether a table has a row for most pictures, and its column is named as labels.
    """

    where: str
    fix: str
    labels: frozenset[str]
    are_folders: bool = False
    is_in_names: bool = False
    is_sure: bool = False


def find_labels(root: Path, paths: Sequence[str]) -> Elsewhere | None:
    """Look for the labels of pictures in tables near them, in their names, and in annotations.

    Args:
        root: the source's folder.
        paths: the pictures, relative to it.
    """
    return find_table(root, paths) or find_in_names(root, paths) or _in_annotations(root, paths)


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
    return Elsewhere(f"{printable(found.described)}.", fix, found.labels)


def find_table(root: Path, paths: Sequence[str]) -> Elsewhere | None:
    """Look for a table in a folder, in its subfolders and above it that has the labels.

    If it has only numbers for classes that the names of the pictures contain, these are preferred.
    """
    pictures = without_masks(paths)
    index: dict[str, list[str]] = defaultdict(list)
    for path in pictures:
        name = PurePosixPath(path).name
        for key in {name, PurePosixPath(name).stem}:
            index[key].append(path)
    found = [match for table in _tables(root) if (match := _match(table, root, index)) is not None]
    if not found:
        return None
    best = max(found, key=lambda match: match.num_named)
    is_label = plain_name(best.label_name) in {*_LABEL_NAMES} - {"type"}  # which may be a format
    is_sure = is_label and best.num_rows >= _MIN_ONE_PLACE_FRAC * len(pictures)
    named = find_in_names(root, paths) if best.are_numbers_of_names else None
    where = f"{printable(best.table.name)} names these pictures, with {best.described}"
    command = f"stepladder prepare {typed(best.table)}{_flags(best)}"
    if _is_spreadsheet(best.table):
        return replace(_of_spreadsheet(best, where), is_sure=is_sure)
    alike = {match.table.parent.name for match in found if match.table.name == best.table.name}
    splits = _of_splits(found)
    if best.table.name in TABLES and len(named_as_splits(alike)) > 1:
        command = f"stepladder prepare {typed(root)}{_flags(best)}"  # reads each split's table
    elif splits:
        names = " and ".join(printable(match.table.name) for match in splits.values())
        where = f"{names} name these pictures with their labels"
        command = _joined(splits)
    if best.num_folders > 1:
        where += f"; they are in {best.num_folders} folders"
    if best.num_folders > 1 and best.path_format != "{}":
        return Elsewhere(
            f"{where}.{best.problem}",
            f"Move them to one folder beside the table. If it is images: {command}",
            best.labels,
            is_sure=is_sure,
        )
    how = "Type" if not best.problem else best.remedy
    if named is not None:
        numbers = f"With the numbers in {printable(best.table.name)} as their names: {command}"
        return replace(named, where=f"{named.where} {numbers}")
    said = f"{where}.{best.problem}"
    return Elsewhere(said, f"{how}: {command}", best.labels, best.are_folders, is_sure=is_sure)


def _of_spreadsheet(match: _Match, where: str) -> Elsewhere:
    """Return the labels of a workbook, with the command that writes its sheet as CSV."""
    table = match.table.with_suffix(".csv")
    if table.exists():
        table = table.with_name(f"{table.stem}-of-sheet.csv")
    script = "import sys;from stepladder.data.sources.spreadsheets import write_csv;"
    script += "write_csv(*sys.argv[1:])"
    edit = f"python -c {shlex.quote(script)} {typed(match.table)} {typed(table)}"
    if match.num_folders > 1:
        match = replace(match, path_format="{}")
    read = f"stepladder prepare {typed(table)}{_flags(match)}"
    fix = f"Write its first sheet as CSV: {edit} && {read}\n"
    fix += f"If you saved the sheet in Excel or LibreOffice as CSV UTF-8, {table.name}: {read}"
    return Elsewhere(f"{where}.{match.problem}", fix, match.labels, match.are_folders)


def _is_spreadsheet(table: Path) -> bool:
    return table.name.lower().endswith(SPREADSHEETS)


def _of_splits(found: Sequence[_Match]) -> dict[Split, _Match]:
    """Return the tables of splits, such as train_list.txt and val_list.txt; empty if not."""
    by_name = {match.table.stem: match for match in found}
    splits = assign_splits(named_as_splits(by_name))
    tables = {splits[name]: by_name[name] for name in splits}
    shapes = {
        (one.table.parent, one.table.suffix, one.delimiter, one.columns, one.path_format)
        for one in tables.values()
    }
    is_one_each = len(tables) == len(splits) > 1 and len(shapes) == 1 and Split.TRAIN in tables
    is_text = all(match.delimiter for match in tables.values())
    return dict(sorted(tables.items())) if is_one_each and is_text else {}


def _joined(splits: Mapping[Split, _Match]) -> str:
    """Return the command that joins tables of splits, and reads the result."""
    first = next(iter(splits.values()))
    out = first.table.with_name(f"all-splits{first.table.suffix}")
    script = '{sub(/\\r$/,"")}'
    if not first.columns:
        script += f' NR==1{{print $0"{first.delimiter}split"}} FNR==1{{next}}'
    for at, split in enumerate(splits, start=1):
        script += f' FILENAME==ARGV[{at}]{{print $0"{first.delimiter}{split}"}}'
    tables = " ".join(typed(match.table) for match in splits.values())
    columns = (*first.columns, "split") if first.columns else ()
    flags = _flags(replace(first, columns=columns))
    edit = f"awk {shlex.quote(script)} {tables} > {typed(out)}"
    return f"{edit} && stepladder prepare {typed(out)}{flags}"


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


@dataclass(frozen=True)
class _Match:
    """A table that names pictures.

    Attributes:
        label_name: column of labels; empty if each class has its own column.
        described: what has the labels, within a sentence.
        problem: sentences about pictures with several labels, after a blank; empty if there are
            none.
        remedy: what the command does about the problem.
        num_named: number of its rows, of those that were compared, that name a picture.
        num_rows: number of its rows.
        num_folders: number of different places of the pictures relative to the cells.
        are_folders: whether each folder of pictures has a label of its own.
        delimiter: between the cells; empty in JSON.
        are_numbers_of_names: whether the labels are numbers, one for each class in the names of
            the pictures.
    """

    table: Path
    path_format: str
    path_name: str
    label_name: str
    described: str
    problem: str
    remedy: str
    columns: tuple[str, ...]
    labels: frozenset[str]
    num_named: int
    num_rows: int
    num_folders: int
    are_folders: bool
    delimiter: str
    are_numbers_of_names: bool


def _flags(match: _Match) -> str:
    flags = [
        ("--columns", ",".join(match.columns), ""),
        ("--path-column", match.path_name, PrepareConfig.path_column),
        ("--label-column", match.label_name or _LABEL, _LABEL),
        ("--path-format", match.path_format, "{}"),
    ]
    return "".join(
        f" {flag} {shlex.quote(printable(value))}"
        for flag, value, default in flags
        if value != default
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


def _match(table: Path, root: Path, index: Mapping[str, Sequence[str]]) -> _Match | None:
    """Find the column of a table that names pictures, and the one of labels."""
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
    best: tuple[int, int, str, int] = (0, 0, "", 0)
    for column in range(len(file.header)):
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
    num_found, path_at, place, num_folders = best
    found_labels = _labels_of(file, rows, path_at, has_header=has_header) if num_found else None
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
    return _Match(
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
    )


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
        described, problem, remedy: as in _Match.
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
    name = file.header[at] if has_header else _LABEL
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

"""List the pictures of a CSV; errors name the row, the column, and what to type."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.csv_file import read_csv
from stepladder.data.sources.json_file import is_json, read_json
from stepladder.data.sources.listing import Listing, Picture, name_some
from stepladder.data.sources.pixel_cells import find_pixels
from stepladder.data.sources.split_names import SPLIT_WORDS, split_of_cell, split_of_word
from stepladder.data.sources.table_cells import TableCells
from stepladder.data.sources.table_labels import (
    LABEL_NAMES,
    UNREAD_SPLITS,
    cells_with_several,
    class_columns,
    classes_of,
    label_candidates,
    plain_name,
    split_candidates_of,
    split_flags_of,
    with_split_words,
    words_of,
)
from stepladder.data.sources.table_paths import (
    PATH_NAMES,
    SLOT,
    PathReader,
    are_file_names,
    flag_of,
    is_around,
    is_found,
    parse_format,
    read_plainly,
    search,
    some,
)
from stepladder.data.sources.walk import Skipped, printable
from stepladder.errors import DataError, UsageError

_MAX_ROWS_NAMED: Final = 5
_MAX_COLUMNS_NAMED: Final = 5
_WANTED: Final = "Write a header row such as path,label, then one row for each picture."
ALSO_NAMED: Final = {
    "path": PATH_NAMES,
    "label": LABEL_NAMES,
}
"""Other usual names of the columns."""
_NO_VALUE: Final = frozenset({"nan", "<na>"})  # how pandas writes missing values
_ADDRESS: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_DEFAULTS: Final = {field.name: field.default for field in fields(PrepareConfig)}
_MAX_SHOWN: Final = 2
_MAX_LETTERS: Final = 200  # of a path in a message
_MAX_ROWS_REMOVED: Final = 20  # by a command that a message suggests
_ONE_LABEL: Final = "A picture has one label here; training with several of them is not supported."


@dataclass(frozen=True, slots=True)
class _Row:
    """The cells of one picture; split and group are None if the table has no such column."""

    number: int
    path: str
    label: str
    split: str | None
    group: str | None


def list_table(path: Path, config: PrepareConfig) -> Listing:
    """List the pictures of a CSV; relative paths are relative to its folder.

    Raises:
        UsageError: if an option for it has a bad value.
        DataError: if the table is invalid, or none of its files exists; names the file, the rows
            and the column.
    """
    root = path.parent.resolve()
    table = _read_table(path, config, root)
    to_path = table.to_path
    relative_to_root = _Relative(root)
    pictures: dict[str, Picture] = {}
    first_row: dict[str, int] = {}
    num_repeated = 0
    for row in table.rows:
        where = f"{path}: {table.unit} {row.number}"
        split = None if row.split is None else split_of_cell(row.split, where)
        relative = relative_to_root(to_path(row.path))
        picture = Picture(relative, row.label, split, row.group)
        if relative not in pictures:
            pictures[relative] = picture
            first_row[relative] = row.number
        elif pictures[relative] == picture:
            num_repeated += 1
        else:
            raise DataError(
                f"{table.unit}s {first_row[relative]} and {row.number} have different labels, "
                f"splits or groups for {row.path!r}",
                where=str(path),
                fix=f"Keep one {table.unit} for each picture.",
            )
    warnings = [*table.notes, *(f"{path}: {note}" for note in to_path.notes())]
    warnings += _several_labels(path, table)
    if num_repeated:
        warnings.append(f"{path}: skipped {num_repeated} repeated {table.unit}s")
    return Listing(root, list(pictures.values()), Skipped(), tuple(warnings), table.has_group)


@dataclass(frozen=True)
class _Table:
    """All rows, how to make a path of a cell, and whether the table has the group column."""

    rows: list[_Row]
    has_group: bool
    notes: tuple[str, ...]
    unit: str
    to_path: PathReader


def _read_table(path: Path, config: PrepareConfig, root: Path) -> _Table:
    """Read the columns that prepare needs."""
    file = _read_cells(path, config)
    chosen = _Chooser(file, path, config, root).choose()
    file = chosen.file
    columns = chosen.columns
    split_at, group_at = chosen.split, chosen.group
    _check_filled(file, [chosen.path, *columns], path=path, options=chosen.options)
    if split_at is not None and all(_is_empty(cells[split_at]) for _, cells in file.body):
        split_at = None  # an empty column is ignored
    others = [at for at in (split_at, group_at) if at is not None]
    _check_filled(file, others, path=path, options=chosen.options)
    rows = [
        _Row(
            number,
            cells[chosen.path],
            cells[columns[0]].strip()
            if not chosen.is_one_hot
            else file.header[classes_of(cells, columns)[0]],
            None if split_at is None else cells[split_at].strip(),
            None if group_at is None else cells[group_at].strip(),
        )
        for number, cells in file.body
    ]
    notes = (*file.notes, *chosen.notes)
    return _Table(rows, group_at is not None, notes, file.unit, chosen.to_path)


def _read_cells(path: Path, config: PrepareConfig) -> TableCells:
    names = _given_columns(config.columns)
    if not is_json(path):
        file = read_csv(path, wanted=(config.path_column, config.label_column), columns=names)
    elif names:
        raise UsageError(
            "the keys of a JSON file name its columns",
            where="prepare.columns",
            fix="Omit --columns. To choose keys: --path-column KEY --label-column KEY",
        )
    else:
        file = read_json(path)
    if not file.header:
        raise DataError("the table is empty", where=str(path), fix=_WANTED)
    body = [row for row in file.body if [cell.strip() for cell in row[1]] != file.header]
    num_headers = len(file.body) - len(body)
    is_repeated = 0 < num_headers < len(file.body) and file.header_row > 0
    if not is_repeated or any(map(_is_file_name, file.header)):
        return file
    note = f"{path}: skipped {num_headers} repeated header(s)"
    return replace(file, body=body, notes=(*file.notes, note))


def _several_labels(path: Path, table: _Table) -> list[str]:
    """Warn if cells seem to hold several labels."""
    labels = [row.label for row in table.rows]
    several = cells_with_several(labels)
    if not several:
        return []
    return [
        f"{path}: {len(several)} of {len(labels)} labels seem to be several in one cell, such as "
        f"{several[0]!r}; each combination is a class of its own ({len(set(labels))} classes)"
    ]


def _given_columns(text: str | None) -> list[str] | None:
    """Parse the value of --columns."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(
            f"{text!r} has an empty or a repeated name",
            where="prepare.columns",
            fix="Name every column of the table once, such as --columns path,label",
        )
    return names


@dataclass(frozen=True)
class _Chosen:
    """What the columns of a table mean.

    Attributes:
        file: its cells; a first row that is no header is a row.
        path, split, group: index of the column; None if there is no such column.
        columns: the column of labels, or one column of 0 and 1 for each class.
        is_one_hot: whether each class has its own column.
        to_path: makes a path of a cell.
        notes: how the table was read, if not by its header alone.
        options: the options that make this reading explicit.
    """

    file: TableCells
    path: int
    columns: list[int]
    is_one_hot: bool
    split: int | None
    group: int | None
    to_path: PathReader
    notes: tuple[str, ...]
    options: str


class _Chooser:
    """Chooses columns by options and names, else by cells: paths name pictures that exist."""

    def __init__(self, file: TableCells, path: Path, config: PrepareConfig, root: Path) -> None:
        self._file = file
        self._path = path
        self._config = config
        self._root = root
        self._is_headerless = False
        self._shape = parse_format(config.path_format)

    def choose(self) -> _Chosen:
        """Return what the columns mean.

        Raises:
            DataError: if that cannot be determined; the fix is a complete set of options.
        """
        self._refuse_twins()
        wanted = {self._config.path_column, self._config.label_column}
        if not self._file.body and wanted <= set(self._file.header):
            raise DataError(
                "the table has a header but no rows", where=str(self._path), fix=_WANTED
            )
        if self._file.header_row and not wanted & set(self._file.header):
            self._find_header()
        _check_rows(self._file, path=self._path)
        path_at, readers = self._choose_path()
        split_at = self._index(self._config.split_column)
        group_at = self._index(self._config.group_by)
        if split_at is None and self._is_default("split_column"):
            label_at = self._index(self._config.label_column)
            split_at = self._find_split({path_at, label_at, group_at} - {None})
        elif split_at is not None:
            self._read_flags([at for at in split_flags_of(self._file, set()) if at == split_at])
        taken = {at for at in (path_at, split_at, group_at) if at is not None}
        label_at, one_hot = self._choose_label(taken, path_at, readers)
        is_asked = self._config.path_format is None and any(map(is_around, readers))
        if len(readers) != 1 or readers[0].cut or is_asked:
            if not readers:
                self._refuse_pixels()
            raise self._no_file(path_at, label_at, split_at, readers)
        return _Chosen(
            self._file,
            path_at,
            one_hot or [at for at in (label_at,) if at is not None],
            bool(one_hot),
            split_at,
            group_at,
            readers[0],
            tuple(self._notes(path_at, label_at, split_at, one_hot, readers[0])),
            self._options(path_at, label_at, split_at, readers[0]),
        )

    def _choose_path(self) -> tuple[int, list[PathReader]]:
        """Return the column of paths, and how its cells name files; none or several: unclear."""
        name = self._config.path_column
        path_at = self._index(name)
        if path_at is not None:
            return path_at, self._readers(path_at)
        if self._is_default("path_column"):
            path_at, readers = self._find_path()
            if path_at is not None and readers:
                return path_at, readers
        self._refuse_pixels()
        raise self._no_column(name, "path-column")

    def _choose_label(
        self, taken: set[int], path_at: int, readers: list[PathReader]
    ) -> tuple[int | None, list[int]]:
        """Return the column of labels, or None and one column for each class."""
        name = self._config.label_column
        label_at = self._index(name)
        if label_at is not None:
            self._refuse_nested(name)
            return label_at, []
        if not self._is_default("label_column"):
            raise self._no_column(name, "label-column", path_at, readers)
        return self._find_label(taken, readers, path_at)

    def _notes(
        self,
        path_at: int,
        label_at: int | None,
        split_at: int | None,
        one_hot: Sequence[int],
        reader: PathReader,
    ) -> Iterator[str]:
        """Yield how the table is read, if not by its header and options alone."""
        header = self._file.header
        is_as_named = (
            path_at == self._index(self._config.path_column)
            and label_at in {None, self._index(self._config.label_column)}
            and split_at in {None, self._index(self._config.split_column)}
            and reader.written == self._shape.written
        )
        options = self._options(path_at, label_at, split_at, reader)
        if not is_as_named and (options or reader.others):
            reasons = ["there is no header"] if self._is_headerless else []
            if reader.others:
                folders = name_some(list(reader.folders))
                reasons.append(f"each picture is in one of the folders {folders}")
            elif reader.written != self._shape.written:
                exists = printable(reader(self._cells(path_at)[0]))
                reasons.append(f"{exists} exists, {_what_lacks(reader)}")
            reasons += [f"read as with {options}"] if options else []
            yield f"{self._path}: {'; '.join(reasons)}"
        if split_at is None and not one_hot:
            used = {path_at, label_at, self._index(self._config.group_by)}
            others = [name for at, name in enumerate(header) if at not in used]
            for name in [name for name in others if plain_name(name) in UNREAD_SPLITS]:
                yield (
                    f"{self._path}: the column {name!r} is not read as splits, because its cells "
                    "are not train and val or test; to use it, write these words into it"
                )
        if one_hot:
            names = ", ".join(header[at] for at in one_hot[:_MAX_ROWS_NAMED])
            more = ", …" if len(one_hot) > _MAX_ROWS_NAMED else ""
            yield f"{self._path}: read the columns {names}{more} as classes; each row has one 1"

    def _refuse_nested(self, name: str) -> None:
        if name in self._file.nested:
            raise DataError(
                f"{name!r} holds lists or objects, such as several boxes or labels",
                where=f"{self._path}: {self._file.unit} {self._file.nested[name]}",
                why=_ONE_LABEL,
                fix='Write the class of each picture as text or a number: "label": "cat"',
            )

    def _refuse_pixels(self) -> None:
        pixels = find_pixels(self._file)
        if pixels is not None:
            raise DataError(
                pixels.describe(self._file.header),
                where=str(self._path),
                fix=pixels.conversion(self._file, self._path, is_headerless=self._is_headerless),
            )

    def _index(self, name: str | None) -> int | None:
        header = self._file.header
        return header.index(name) if name is not None and name in header else None

    def _is_default(self, option: str) -> bool:
        return bool(getattr(self._config, option) == _DEFAULTS[option])

    def _where(self) -> str:
        row = self._file.header_row
        return f"{self._path}: row {row}" if row else str(self._path)

    def _refuse_twins(self) -> None:
        header = self._file.header
        for option in ("path_column", "label_column", "split_column", "group_by"):
            name = getattr(self._config, option)
            if header.count(name) > 1:
                raise DataError(
                    f"two columns are named {name!r}",
                    where=self._where(),
                    fix=f"Rename one of them, or choose another column: "
                    f"--{option.replace('_', '-')} NAME",
                )

    def _find_header(self) -> None:
        """Make the header a row if it describes a picture: it names one, or its cells repeat."""
        file = self._file
        rows = [cells for _, cells in file.body if len(cells) == len(file.header)]
        is_row = (
            any(map(_is_file_name, file.header))
            or any(
                cell and any(cells[at].strip() == cell for cells in rows)
                for at, cell in enumerate(file.header)
            )
            or (len(rows) == len(file.body) > 0 and self._names_a_picture(file.header))
        )
        if is_row:
            self._is_headerless = True
            self._file = replace(
                file,
                header=[f"column{at + 1}" for at in range(len(file.header))],
                body=[(file.header_row, file.header), *file.body],
            )

    def _names_a_picture(self, header: Sequence[str]) -> bool:
        """Return whether a cell of the header names a picture as the cells below it do."""
        if any(plain_name(cell) in {*PATH_NAMES, *LABEL_NAMES} for cell in header):
            return False
        return any(
            is_found(self._root, reader(cell))
            for at, cell in enumerate(header)
            if cell and self._may_be_paths(at)
            for reader in self._readers(at)
        )

    def _cells(self, at: int) -> list[str]:
        return [cells[at] for _, cells in self._file.body if not _is_empty(cells[at])]

    def _readers(self, at: int) -> list[PathReader]:
        """Return the ways in which the cells of a column name files; several are ambiguous."""
        cells = self._cells(at)
        if not cells:
            return [self._shape]  # refused by row later
        reader = read_plainly(cells, self._root, self._shape)
        if reader is not None:
            return [reader]
        return search(cells, self._root) if self._config.path_format is None else []

    def _find_path(self) -> tuple[int | None, list[PathReader]]:
        """Return the one column whose cells name files, and how they do."""
        able = [at for at in range(len(self._file.header)) if self._may_be_paths(at)]
        named = [at for at in able if are_file_names(some(self._cells(at)))]
        plain = [
            at for at in able if read_plainly(self._cells(at), self._root, self._shape) is not None
        ]
        for tried in (plain, named, able):
            found = {at: readers for at in tried if (readers := self._readers(at))}
            sure = {at: readers for at, readers in found.items() if not readers[0].num_digits}
            found = sure or found  # a label may be the number of a picture, too
            usual = [at for at in found if plain_name(self._file.header[at]) in PATH_NAMES]
            ids = [at for at in found if "id" in words_of(self._file.header[at])]
            for some_found in (list(found), usual, ids):
                if len(some_found) == 1:
                    return some_found[0], found[some_found[0]]
            if found:
                return None, []
        if len(named) == 1:
            return named[0], []
        return None, []

    def _may_be_paths(self, at: int) -> bool:
        """Return whether a column is text that differs in most rows."""
        if self._file.header[at] in self._file.nested:
            return False
        looked_at = some(self._cells(at))
        return bool(looked_at) and 2 * len(set(looked_at)) >= len(looked_at)

    def _find_label(
        self, taken: set[int], readers: list[PathReader], path_at: int
    ) -> tuple[int | None, list[int]]:
        """Return the column of labels, or one column per class.

        Raises:
            DataError: if there is no such column, several may be it, or rows have several classes.
        """
        found = label_candidates(self._file, taken)
        one_hot = [] if self._is_headerless else class_columns(self._file, taken)
        if one_hot and not (len(found) == 1 and found[0] not in one_hot):
            self._check_one_hot(one_hot, path_at, readers)
            return None, one_hot
        if len(found) == 1:
            return found[0], []
        if self._file.nested and not found:
            self._refuse_nested(next(iter(self._file.nested)))
        raise self._no_column(self._config.label_column, "label-column", path_at, readers, found)

    def _find_split(self, taken: Set[int | None]) -> int | None:
        """Return the one column of splits, whatever its name is.

        Raises:
            DataError: if several columns differ in their splits.
        """
        found = split_candidates_of(self._file, taken)
        splits = {tuple(map(split_of_word, self._cells(at))) for at in found}
        if len(splits) > 1:
            names = [self._file.header[at] for at in found]
            raise DataError(
                f"several columns may be the one of splits: {_name_columns(names)}",
                where=self._where(),
                fix=f"Choose one: --split-column {shlex.quote(names[0])}",
            )
        return found[0] if found else self._read_flags(split_flags_of(self._file, taken))

    def _read_flags(self, flags: Sequence[int]) -> int | None:
        """Write split words into the one column such as is_valid; return its index."""
        if len(flags) != 1:
            return None
        self._file = with_split_words(self._file, flags[0])
        return flags[0]

    def _check_one_hot(self, columns: list[int], path_at: int, readers: list[PathReader]) -> None:
        """Check that each row has one class."""
        header = self._file.header
        counts = {number: len(classes_of(cells, columns)) for number, cells in self._file.body}
        for rows, what in (
            ([number for number, count in counts.items() if count > 1], "several classes"),
            ([number for number, count in counts.items() if count == 0], "no class"),
        ):
            if rows:
                command = self._command(
                    path_at, columns[0], None, readers[0] if readers else PathReader()
                )
                raise DataError(
                    f"one column per class, and {what} in {_name_rows(rows, self._file)}",
                    where=str(self._path),
                    why=_ONE_LABEL,
                    fix=f"Leave one 1 in each {self._file.unit}, or learn one of the columns "
                    f"{_name_columns([header[at] for at in columns])} alone, such as the first: "
                    f"{command}",
                )

    def _options(
        self,
        path_at: int,
        label_at: int | None,
        split_at: int | None,
        reader: PathReader,
    ) -> str:
        """Return the options that make this reading explicit; empty if it is the default one."""
        header = self._file.header
        typed: list[str] = []
        if self._is_headerless or (self._config.columns is not None):
            names = [f"column{at + 1}" for at in range(len(header))]
            if self._config.columns is not None:
                names = [
                    name if name not in {"path", "label"} else f"column{at + 1}"
                    for at, name in enumerate(header)
                ]
            for at, name in ((path_at, "path"), (label_at, "label"), (split_at, "split")):
                if at is not None:
                    names[at] = name
            typed.append(f"--columns {shlex.quote(','.join(names))}")
        else:
            if header[path_at] != _DEFAULTS["path_column"]:
                typed.append(f"--path-column {shlex.quote(header[path_at])}")
            if label_at is not None and header[label_at] != _DEFAULTS["label_column"]:
                typed.append(f"--label-column {shlex.quote(header[label_at])}")
            if split_at is not None and header[split_at] != _DEFAULTS["split_column"]:
                typed.append(f"--split-column {shlex.quote(header[split_at])}")
        if self._config.group_by is not None:
            typed.append(f"--group-by {shlex.quote(self._config.group_by)}")
        if reader.written != SLOT and not reader.others:  # several are found without an option
            typed.append(flag_of(reader))
        return " ".join(typed)

    def _command(
        self, path_at: int, label_at: int | None, split_at: int | None, reader: PathReader
    ) -> str:
        """Return the command that reads the table in this way."""
        options = self._options(path_at, label_at, split_at, reader)
        return f"{prepare_command(self._path)} {options}".rstrip()

    def _no_column(
        self,
        name: str,
        option: str,
        path_at: int | None = None,
        readers: Sequence[PathReader] = (),
        able: Sequence[int] = (),
    ) -> DataError:
        """Return an error that suggests an unused column; it names the one found already, too."""
        header = self._file.header
        kind = NoLabelsError if option == "label-column" else DataError
        if self._is_headerless:
            problem = f"no column {name!r}: the first row describes a picture; there is no header"
            columns = _guess_columns(self._file.body[0][1], path_at)
            command = f"{prepare_command(self._path)} --columns {shlex.quote(','.join(columns))}"
            if readers and readers[0].written != SLOT:
                command += "" if readers[0].others else f" {flag_of(readers[0])}"
            return kind(problem, where=self._where(), fix=f"Name the columns: {command}")
        config = self._config
        named = {config.path_column, config.label_column, config.split_column, config.group_by}
        others = [
            at
            for at, column in enumerate(header)
            if column and column not in named and at != path_at and (not able or at in able)
        ]
        near = [at for usual in ALSO_NAMED.get(name, ()) for at in others if _is(header[at], usual)]
        likely = difflib.get_close_matches(name, [header[at] for at in others], n=1, cutoff=0.6)
        near += [header.index(column) for column in likely]
        near = [*able[:1], *near, *(others if len(others) == 1 else [])]
        problem = f"no column {name!r} among {_name_columns(header)}"
        if len(able) > 1:
            some_able = _name_columns([header[at] for at in able])
            problem = f"no column {name!r}, and several may be it: {some_able}"
        flag = f"--{option} {shlex.quote(header[near[0]]) if near else 'COLUMN'}"
        if path_at is not None:
            reader = readers[0] if readers else self._shape
            flag = f"{self._options(path_at, None, None, reader)} {flag}".strip()
        elif (label_at := self._index(config.label_column)) is not None:
            flag += f" --label-column {shlex.quote(header[label_at])}"
            flag = flag.removesuffix(f" --label-column {_DEFAULTS['label_column']}")
        return kind(
            problem,
            where=self._where(),
            fix=f"Name the column: {prepare_command(self._path)} {flag}",
        )

    def _no_file(
        self,
        path_at: int,
        label_at: int | None,
        split_at: int | None,
        readers: Sequence[PathReader],
    ) -> DataError:
        """Return an error for paths that name no file, or names that are in several folders."""
        number, cell = self._first_in_several(path_at, readers)
        where = f"{self._path}: {self._file.unit} {number}"
        reader = replace(
            self._shape, is_stripped=cell != cell.strip(), has_backslashes="\\" in cell
        )
        wanted = reader(cell)
        if not readers and self._config.path_format is not None:  # which does not help
            readers = search(self._cells(path_at), self._root)
        is_address = _ADDRESS.match(wanted) is not None
        problem = (
            f"{printable(wanted)[:_MAX_LETTERS]!r} is an address, not a path"
            if is_address
            else f"no picture {printable(wanted)[:_MAX_LETTERS]!r} in {self._root}"
        )
        if readers:
            found = readers[0]
            here = sorted(readers, key=lambda one: not is_found(self._root, one(cell)))
            exist = " and ".join(printable(one(cell)) for one in here[:_MAX_SHOWN])
            if len(readers) > 1:
                command = self._command(path_at, label_at, split_at, found)
                what, fix = f"{exist} are both pictures", f"To read the first: {command}"
            elif not found.cut:
                command = self._command(path_at, label_at, split_at, found)
                what, fix = f"{exist} exists, {_what_lacks(found)}", f"Type: {command}"
            elif found.cut == "/":
                folder = found.path_format.partition(SLOT)[0].rstrip("/") or "."
                ending = found.path_format.partition(SLOT)[2]
                found = replace(found, cut="", path_format=f"{folder}{SLOT}{ending}")
                command = self._command(path_at, label_at, split_at, found)
                what, fix = f"{exist} exists, the path begins with a slash", f"Type: {command}"
            else:
                what, fix = self._other_start(exist, path_at, label_at, split_at, found)
                what = f"{exist} exists" if is_address else what
            return DataError(f"{problem}: {what}", where=where, fix=fix)
        for other in range(len(self._file.header)):
            if (
                other not in {path_at, split_at}
                and self._may_be_paths(other)
                and (better := self._readers(other))
                and not better[0].cut
            ):
                label = path_at if label_at in {None, other} else label_at
                command = self._command(other, label, split_at, better[0])
                what = f"column {other + 1} names pictures, such as"
                exist = printable(better[0](self._cells(other)[0]))
                return DataError(
                    f"{problem}: {what} {exist}", where=where, fix=f"Use it: {command}"
                )
        for exists in _in_another_case(self._root, wanted):
            return DataError(
                f"{problem}: {printable(exists)} exists, upper and lower case differ",
                where=where,
                fix="Write paths as files are named.",
            )
        if is_address:
            fix = "Download the pictures, and write their paths into the table."
        else:
            fix = (
                "Paths are relative to the table's folder. If they lack a folder or an ending, add "
                "it: --path-format 'FOLDER/{}.jpg'"
            )
        return DataError(problem, where=where, fix=fix)

    def _first_in_several(self, path_at: int, readers: Sequence[PathReader]) -> tuple[int, str]:
        """Return the first row and cell; if readers differ, those that two of them find."""
        rows = [
            (n, cells[path_at]) for n, cells in self._file.body if not _is_empty(cells[path_at])
        ]
        if len(readers) > 1:
            for number, cell in rows:
                if sum(is_found(self._root, one(cell)) for one in readers) > 1:
                    return number, cell
        return rows[0]

    def _other_start(
        self, exists: str, path_at: int, label_at: int | None, split_at: int | None, r: PathReader
    ) -> tuple[str, str]:
        """Return what is wrong with paths whose start is not here, and the command against it."""
        is_other = r.cut.startswith("/") or ":" in r.cut
        what = f"{r.cut!r} {'is a folder of another machine' if is_other else 'is no folder here'}"
        file = self._file
        is_json = file.unit != "row"
        pattern = re.sub(r"([.*^$\[\]|])", r"\\\1", r.cut)
        if is_json:  # which may write \\ and \/
            pattern = pattern.replace("/", r"[\\/]\{1,2\}")
        elif r.has_backslashes:
            pattern = pattern.replace("/", r"[\\/]")
        is_before = any(
            r.cut in cell.replace("\\", "/") for _, cells in file.body for cell in cells[:path_at]
        )
        script = f"s|{pattern}||{'g' if is_before or file.unit == 'item' else ''}"
        here = self._path.with_name(f"here-{self._path.name}")
        command = f"{prepare_command(here)} "
        command += self._options(path_at, label_at, split_at, replace(r, cut=""))
        edit = edit_command(self._path, script, here, file.encoding)
        return f"{exists} exists, {what}", f"Remove it: {edit} && {command.rstrip()}"


class NoLabelsError(DataError):
    """A table has no column of labels, or several columns that may be it."""


def _name_columns(names: Sequence[str]) -> str:
    """Name the first columns."""
    rest = len(names) - _MAX_COLUMNS_NAMED
    shown = ", ".join(repr(printable(name)[:40]) for name in names[:_MAX_COLUMNS_NAMED])
    return f"{shown} and {rest} more" if rest > 0 else shown


def _is(column: str, usual: str) -> bool:
    return usual in {column.lower(), plain_name(column)}


def prepare_command(path: Path) -> str:
    """Return the command that reads a table, to be typed in a shell."""
    return f"stepladder prepare {shlex.quote(printable(str(path)))}"


def edit_command(path: Path, script: str, out: Path, encoding: str) -> str:
    """Return the shell command that writes an edited copy of a text as UTF-8."""
    source, copy = (shlex.quote(printable(str(one))) for one in (path, out))
    if encoding.startswith("utf-8"):
        return f"sed {shlex.quote(script)} {source} > {copy}"
    name = "WINDOWS-1252" if encoding == "cp1252" else encoding.upper()
    return f"iconv -f {name} -t UTF-8 {source} | sed {shlex.quote(script)} > {copy}"


def _is_file_name(cell: str) -> bool:
    return are_file_names([cell])


def _what_lacks(reader: PathReader) -> str:
    start, _, ending = reader.path_format.partition(SLOT)
    folder = start.rpartition("/")[1]
    both = [what for what, part in (("folder", folder), ("ending", ending)) if part]
    missing = f"the {' and the '.join(both)} {'are' if len(both) > 1 else 'is'} missing"
    if not reader.num_digits:
        return missing
    return f"{missing}, and so are zeros: names have {reader.num_digits} digits"


def _guess_columns(cells: Sequence[str], path_at: int | None) -> list[str]:
    """Guess names for the columns of a table from its first row."""
    if path_at is None:
        path_at = next((at for at, cell in enumerate(cells) if _is_file_name(cell)), 0)
    names = [f"column{at + 1}" for at in range(len(cells))]
    names[path_at] = "path"
    for at, cell in enumerate(cells):
        if at != path_at and cell.strip().lower() in SPLIT_WORDS:
            names[at] = "split"
    label_at = [at for at, name in enumerate(names) if name.startswith("column")]
    if label_at:
        names[label_at[0]] = "label"
    return names


def _in_another_case(root: Path, path: str) -> Iterator[str]:
    wanted = path.rpartition("/")[2].casefold()
    beside = root / os.path.dirname(path)  # noqa: PTH120
    if os.path.isdir(beside):  # noqa: PTH112 (Path raises on a long name)
        for name in sorted(os.listdir(beside)):  # noqa: PTH208 (names only)
            if name.casefold() == wanted:
                yield os.path.relpath(beside / name, root)


def _check_rows(file: TableCells, *, path: Path) -> None:
    num_columns = len(file.header)
    wrong = [(number, len(cells)) for number, cells in file.body if len(cells) != num_columns]
    if wrong:
        rows = _name_rows([number for number, _ in wrong], file)
        what = "the header has" if file.header_row else "--columns names"
        raise DataError(
            f"wrong number of cells in {rows}: "
            f"{what} {num_columns}, row {wrong[0][0]} has {wrong[0][1]}",
            where=str(path),
            fix="Put quotes around cells that contain a comma.",
        )


def _check_filled(file: TableCells, columns: list[int], *, path: Path, options: str) -> None:
    for column in columns:
        empty = [number for number, cells in file.body if _is_empty(cells[column])]
        if empty:
            raise DataError(
                f"column {file.header[column]!r} is empty in {_name_rows(empty, file)}",
                where=str(path),
                why="NaN counts as empty.",
                fix=f"Fill in these cells or remove the {file.unit}s."
                + _removal(file, empty, path=path, options=options),
            )


def _removal(file: TableCells, rows: Sequence[int], *, path: Path, options: str) -> str:
    """Return the command that reads a table without some of its rows; empty if they are many."""
    if len(rows) > _MAX_ROWS_REMOVED or len(rows) == len(file.body) or file.unit == "item":
        return ""
    lines = [file.lines_of(number) for number in rows]
    script = ";".join(f"{first}d" if first == last else f"{first},{last}d" for first, last in lines)
    out = path.with_name(f"without-{path.name}")
    command = (
        f"{edit_command(path, script, out, file.encoding)} && {prepare_command(out)} {options}"
    )
    return f" To remove: {command}".rstrip()


def _is_empty(cell: str) -> bool:
    text = cell.strip()
    return not text or text.lower() in _NO_VALUE


def _name_rows(numbers: Sequence[int], file: TableCells) -> str:
    """Name the first rows; and the lines of an editor, if rows have several lines."""
    some_rows = numbers[:_MAX_ROWS_NAMED]
    shown = ", ".join(str(number) for number in some_rows)
    shown += ", …" if len(numbers) > _MAX_ROWS_NAMED else ""
    lines = [file.lines_of(number)[0] for number in some_rows] if file.extra_lines else some_rows
    if list(lines) != list(some_rows):
        shown += f" (line {', '.join(map(str, lines))})"
    return f"{file.unit} {shown}" if len(numbers) == 1 else f"{len(numbers)} {file.unit}s: {shown}"


class _Relative:
    """Makes paths relative to the CSV's folder: a store must not contain absolute paths."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._folders: dict[str, str] = {}

    def __call__(self, cell: str) -> str:
        path = os.path.normpath(os.path.join(self._root, cell))  # noqa: PTH118 (twice as fast)
        folder, name = os.path.split(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.relpath(folder, self._root)
        return name if self._folders[folder] == "." else f"{self._folders[folder]}/{name}"

"""Choose the columns of a table: by options and names, else by cells, which name pictures here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from stepladder.data.sources.label_tables.by_name import Nearby
from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.label_tables.findings import (
    finding_columns,
    refuse_unsure,
    several_findings,
    unsure_warnings,
)
from stepladder.data.sources.label_tables.label_cells import (
    quantity_warnings,
    refuse_captions,
    refuse_measured,
    refuse_several,
)
from stepladder.data.sources.label_tables.labels import (
    LABEL_NAMES,
    UNREAD_SPLITS,
    class_columns,
    label_candidates,
    label_names,
    other_names,
    plain_name,
    split_candidates_of,
    split_flags_of,
    with_split_words,
    words_of,
)
from stepladder.data.sources.label_tables.missing_files import (
    find_named,
    find_renamed,
    no_file,
    no_path_column,
    what_lacks,
)
from stepladder.data.sources.label_tables.nested import (
    parse_object,
    refuse_nested_rows,
    refuse_objects,
)
from stepladder.data.sources.label_tables.paths import (
    PATH_NAMES,
    PathReader,
    are_file_names,
    is_around,
    is_found,
    read_plainly,
    some,
)
from stepladder.data.sources.label_tables.reading import TableColumns, TableReading
from stepladder.data.sources.label_tables.refusals import (
    WANTED,
    check_names,
    check_one_hot,
    check_rows,
    no_column,
    refuse_nested,
    refuse_pixels,
    several_splits,
)
from stepladder.data.sources.listing import Note, name_some
from stepladder.data.sources.splits.split_names import split_of_word
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError

_MAX_CLASSES_NAMED: Final = 5
_MAX_SEARCHED: Final = 20  # columns of any name whose cells may name files in other folders


@dataclass(frozen=True)
class Chosen:
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


class TableChooser:
    """Chooses the columns of one table.

    Args:
        reading: the table; its first row is the header.
    """

    def __init__(self, reading: TableReading) -> None:
        self._reading = reading

    @property
    def reading(self) -> TableReading:
        """The table; a first row that is no header is a row once the columns are chosen."""
        return self._reading

    def choose(self) -> Chosen:
        """Return what the columns mean.

        Raises:
            DataError: if that cannot be determined; the fix is a complete set of options.
        """
        config, file = self._reading.config, self._reading.file
        check_names(self._reading)
        wanted = {config.path_column, config.label_column}
        if not file.body and wanted <= set(file.header):
            where = str(self._reading.path)
            raise DataError("the table has a header but no rows", where=where, fix=WANTED)
        if file.header_row and not wanted & set(file.header):
            self._find_header()
        check_rows(self._reading)
        path_at, readers = self._choose_path()
        group_at = self._reading.index(config.group_by)
        split_at = self._choose_split({path_at, group_at})
        taken = {at for at in (path_at, split_at, group_at) if at is not None}
        label_at, one_hot = self._choose_label(taken, path_at, readers)
        columns = TableColumns(path_at, label_at, split_at)
        warnings: tuple[str, ...] = ()
        for reader in readers[:1]:
            refuse_measured(self._reading, columns, reader)
            refuse_captions(self._reading, columns, reader)
            refuse_unsure(self._reading, columns, reader, taken)
            warnings = (
                *quantity_warnings(self._reading, columns, reader),
                *unsure_warnings(self._reading, columns),
            )
            if label_at != self._reading.index(config.label_column):
                refuse_several(self._reading, columns, reader)
        is_asked = config.path_format is None and any(
            is_around(one) and not _is_within(self._reading, path_at, one) for one in readers
        )
        if len(readers) != 1 or readers[0].cut or is_asked:
            if not readers:
                refuse_pixels(self._reading)
            raise no_file(self._reading, columns, readers, is_one_hot=bool(one_hot))
        return Chosen(
            self._reading.file,
            path_at,
            one_hot or [at for at in (label_at,) if at is not None],
            bool(one_hot),
            split_at,
            group_at,
            readers[0],
            (*_notes(self._reading, columns, one_hot, readers[0]), *warnings),
            self._reading.options(columns, readers[0]),
        )

    def _choose_path(self) -> tuple[int, list[PathReader]]:
        """Return the column of paths, and how its cells name files; none or several: unclear."""
        reading = self._reading
        path_at = reading.index(reading.config.path_column)
        if path_at is not None and reading.file.header[path_at] in reading.file.nested:
            refuse_nested_rows(reading, Nearby(reading.root), is_label_nested=False)
        if path_at is not None:
            readers = reading.readers(path_at)
            if not readers and reading.config.path_format is None:
                renamed = Nearby(reading.root).renamed(reading.cells(path_at))
                readers = [renamed] if renamed is not None else []
            return path_at, readers
        if reading.is_default("path_column"):
            path_at, readers = _find_path(reading)
            if path_at is not None and readers:
                return path_at, readers
        refuse_pixels(reading)
        if not reading.is_default("path_column"):
            raise no_column(reading, "path_column")
        nearby = Nearby(reading.root)
        path_at = find_named(reading, nearby)
        if path_at is None and (found := find_renamed(reading, nearby)) is not None:
            return found[0], [found[1]]
        if path_at is None:
            refuse_nested_rows(reading, nearby, is_label_nested=False)
            raise no_path_column(reading, nearby)
        return path_at, []

    def _choose_split(self, taken: Set[int | None]) -> int | None:
        """Return the column of splits; None if there is no such column."""
        reading = self._reading
        split_at = reading.index(reading.config.split_column)
        if split_at is None and reading.is_default("split_column"):
            label_at = reading.index(reading.config.label_column)
            return self._find_split({*taken, label_at} - {None})
        if split_at is not None:
            self._read_flags([at for at in split_flags_of(reading.file, set()) if at == split_at])
        return split_at

    def _choose_label(
        self, taken: set[int], path_at: int, readers: list[PathReader]
    ) -> tuple[int | None, list[int]]:
        """Return the column of labels, or None and one column for each class."""
        name = self._reading.config.label_column
        label_at = self._reading.index(name)
        if label_at is not None:
            if name in self._reading.file.nested:
                refuse_nested_rows(self._reading, Nearby(self._reading.root), is_label_nested=True)
            refuse_nested(self._reading, name)
            reader = (*readers, PathReader())[0]
            refuse_objects(self._reading, TableColumns(path_at), reader, [label_at])
            return label_at, []
        if not self._reading.is_default("label_column"):
            raise no_column(self._reading, "label_column", path_at, readers)
        return _find_label(self._reading, taken, readers, path_at)

    def _find_header(self) -> None:
        """Make the header a row if it describes a picture: it names one, or its cells repeat."""
        file = self._reading.file
        rows = [cells for _, cells in file.body if len(cells) == len(file.header)]
        is_row = (
            any(are_file_names([cell]) for cell in file.header)
            or any(
                cell and any(cells[at].strip() == cell for cells in rows)
                for at, cell in enumerate(file.header)
            )
            or (len(rows) == len(file.body) > 0 and _header_names_a_picture(self._reading))
        )
        if is_row:
            header = [f"column{at + 1}" for at in range(len(file.header))]
            body = [(file.header_row, file.header), *file.body]
            self._reading = replace(
                self._reading, file=replace(file, header=header, body=body), is_headerless=True
            )

    def _find_split(self, taken: Set[int | None]) -> int | None:
        """Return the one column of splits, whatever its name is.

        Raises:
            DataError: if several columns differ in their splits.
        """
        file = self._reading.file
        found = split_candidates_of(file, taken)
        splits = {tuple(map(split_of_word, self._reading.cells(at))) for at in found}
        if len(splits) > 1:
            raise several_splits(self._reading, found)
        return found[0] if found else self._read_flags(split_flags_of(file, taken))

    def _read_flags(self, flags: Sequence[int]) -> int | None:
        """Write split words into the one column such as is_valid; return its index."""
        if len(flags) != 1:
            return None
        file = with_split_words(self._reading.file, flags[0])
        self._reading = replace(self._reading, file=file)
        return flags[0]


def _is_within(reading: TableReading, path_at: int, reader: PathReader) -> bool:
    """Return whether paths begin with the name of the table's folder, and so remain in it."""
    start = f"../{reading.root.name}/"
    return all(reader(cell).startswith(start) for cell in some(reading.cells(path_at)))


def _header_names_a_picture(reading: TableReading) -> bool:
    """Return whether a cell of the header names a picture as the cells below it do."""
    header = reading.file.header
    if any(plain_name(cell) in {*PATH_NAMES, *LABEL_NAMES} for cell in header):
        return False
    return any(
        is_found(reading.root, reader(cell))
        for at, cell in enumerate(header)
        if cell and reading.may_be_paths(at)
        for reader in reading.readers(at)
    )


def _find_path(reading: TableReading) -> tuple[int | None, list[PathReader]]:
    """Return the one column whose cells name files, and how they do."""
    header = reading.file.header
    able = [at for at in range(len(header)) if reading.may_be_paths(at)]
    named = [at for at in able if are_file_names(some(reading.cells(at)))]
    plain = [
        at
        for at in able
        if read_plainly(reading.cells(at), reading.root, reading.shape) is not None
    ]
    if len(able) > _MAX_SEARCHED:
        able = [at for at in able if _is_named_as_path(header[at])]
    for tried in (plain, named, able):
        found = {at: readers for at in tried if (readers := reading.readers(at))}
        sure = {at: readers for at, readers in found.items() if not readers[0].num_digits}
        found = sure or found  # a label may be the number of a picture, too
        usual = [at for at in found if plain_name(header[at]) in PATH_NAMES]
        ids = [at for at in found if "id" in words_of(header[at])]
        for some_found in (list(found), usual, ids):
            if len(some_found) == 1:
                return some_found[0], found[some_found[0]]
        if found:
            return None, []
    if len(named) == 1:
        return named[0], []
    return None, []


def _is_named_as_path(name: str) -> bool:
    return plain_name(name) in PATH_NAMES or "id" in words_of(name)


def _find_label(
    reading: TableReading, taken: set[int], readers: list[PathReader], path_at: int
) -> tuple[int | None, list[int]]:
    """Return the column of labels, or one column per class.

    Raises:
        DataError: if there is no such column, several may be it, or rows have several classes.
    """
    found = label_candidates(reading.file, taken)
    if not any(label_names([reading.file.header[at] for at in found])):
        _refuse_within_cells(reading, taken, readers, path_at, found)
    findings = [] if reading.is_headerless else finding_columns(reading, taken)
    one_hot = [] if reading.is_headerless else class_columns(reading.file, taken)
    if one_hot and not (len(found) == 1 and found[0] not in one_hot):
        check_one_hot(reading, one_hot, path_at, readers)
        if not findings:
            return None, one_hot
    if findings and not (len(found) == 1 and found[0] not in findings):
        reader = readers[0] if readers else PathReader()
        raise several_findings(reading, findings, path_at, reader)
    if len(found) == 1:
        return found[0], []
    if reading.file.nested and not found:
        refuse_nested(reading, next(iter(reading.file.nested)))
    raise no_column(reading, "label_column", path_at, readers, found)


def _refuse_within_cells(
    reading: TableReading,
    taken: Set[int],
    readers: Sequence[PathReader],
    path_at: int,
    found: Sequence[int],
) -> None:
    """Refuse a table whose labels are within nested values, or JSON objects in cells.

    Raises:
        DataError: if they are.
    """
    header = reading.file.header
    if reading.file.nested:
        refuse_nested_rows(reading, Nearby(reading.root), is_label_nested=True)
    free = [at for at in range(len(header)) if at not in taken]
    objects = [at for at in free if any(map(parse_object, some(reading.cells(at))))]
    if not other_names([header[at] for at in found if at not in objects]):
        splits = split_candidates_of(reading.file, {path_at})
        columns = TableColumns(path_at, None, next((at for at in splits if at in taken), None))
        refuse_objects(reading, columns, (*readers, PathReader())[0], objects)


def _notes(
    reading: TableReading, columns: TableColumns, one_hot: Sequence[int], reader: PathReader
) -> Iterator[str]:
    """Yield how the table is read, if not by its header and options alone."""
    header, config = reading.file.header, reading.config
    is_as_named = (
        columns.path == reading.index(config.path_column)
        and columns.label in {None, reading.index(config.label_column)}
        and columns.split in {None, reading.index(config.split_column)}
        and reader.written == reading.shape.written
    )
    options = reading.options(columns, reader)
    if not is_as_named and (options or reader.others):
        reasons = ["there is no header"] if reading.is_headerless else []
        if reader.others:
            folders = name_some(list(reader.folders))
            reasons.append(f"each picture is in one of the folders {folders}")
        elif reader.written != reading.shape.written:
            exists = printable(reader(reading.cells(columns.path)[0]))
            reasons.append(f"{exists} exists, {what_lacks(reader)}")
        reasons += [f"read as with {options}"] if options else []
        yield Note(f"{reading.path}: {'; '.join(reasons)}")
    if columns.split is None and not one_hot:
        used = {columns.path, columns.label, reading.index(config.group_by)}
        others = [name for at, name in enumerate(header) if at not in used]
        for name in [name for name in others if plain_name(name) in UNREAD_SPLITS]:
            yield (
                f"{reading.path}: the column {name!r} is not read as splits, because its cells "
                "are not train and val or test; to use it, write these words into it"
            )
    if one_hot:
        names = ", ".join(header[at] for at in one_hot[:_MAX_CLASSES_NAMED])
        more = ", …" if len(one_hot) > _MAX_CLASSES_NAMED else ""
        yield Note(f"{reading.path}: read the columns {names}{more} as classes; each row has one 1")

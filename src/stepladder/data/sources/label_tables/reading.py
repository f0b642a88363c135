"""A table and how it is read so far: its cells, its options, and what these choose."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.label_tables.paths import (
    SLOT,
    PathReader,
    are_file_names,
    flag_of,
    read_plainly,
    search,
    some,
)
from stepladder.data.sources.walk import printable

_NO_VALUE: Final = frozenset({"nan", "<na>"})  # how pandas writes missing values
_OF_TABLES: Final = (
    *("columns", "path_column", "label_column", "split_column", "path_format", "group_by"),
)
_DEFAULTS: Final = {field.name: field.default for field in fields(PrepareConfig)}


@dataclass(frozen=True)
class TableColumns:
    """Indices of the columns that prepare needs; None if there is no such column.

    Attributes:
        path: of paths.
        label: of labels; None, too, if each class has its own column.
        split: of splits.
    """

    path: int
    label: int | None = None
    split: int | None = None


@dataclass(frozen=True)
class TableReading:
    """A table, and what is known of it before its columns are chosen.

    Attributes:
        file: its cells.
        path: the table.
        config: the options of prepare.
        root: folder of the table, resolved.
        shape: how a cell names a file according to --path-format.
        is_headerless: whether the first row is no header, but describes a picture.
        folder: the source, if it is the folder of the table or of one for each split.
    """

    file: TableCells
    path: Path
    config: PrepareConfig
    root: Path
    shape: PathReader
    is_headerless: bool = False
    folder: Path | None = None

    @property
    def source(self) -> Path:
        """What a command names as the source."""
        return self.path if self.folder is None else self.folder

    @property
    def where(self) -> str:
        """The place of the header, for an error."""
        row = self.file.header_row
        return f"{self.path}: row {row}" if row else str(self.path)

    def index(self, name: str | None) -> int | None:
        """Return the index of a column; None if there is no column of this name."""
        header = self.file.header  # without blanks around names
        return header.index(name.strip()) if name is not None and name.strip() in header else None

    def is_default(self, option: str) -> bool:
        """Return True if an option has its default."""
        return bool(getattr(self.config, option) == _DEFAULTS[option])

    def cells(self, at: int) -> list[str]:
        """Return the cells of a column that are not empty."""
        return [cells[at] for _, cells in self.file.body if not is_empty(cells[at])]

    def readers(self, at: int) -> list[PathReader]:
        """Return the ways in which the cells of a column name files; several are ambiguous."""
        cells = self.cells(at)
        if not cells:
            return [self.shape]  # refused by row later
        reader = read_plainly(cells, self.root, self.shape)
        if reader is not None:
            return [reader]
        return search(cells, self.root) if self.config.path_format is None else []

    def may_be_paths(self, at: int) -> bool:
        """Return True if a column is text that differs in most rows, or names of files."""
        if self.file.header[at] in self.file.nested:
            return False
        looked_at = some(self.cells(at))
        is_varied = bool(looked_at) and 2 * len(set(looked_at)) >= len(looked_at)
        return is_varied or (len(set(looked_at)) > 1 and are_file_names(looked_at))

    def options(self, columns: TableColumns, reader: PathReader) -> str:
        """Return the options that make a reading explicit; empty if it is the default one."""
        header = self.file.header
        typed: list[str] = []
        if self.is_headerless or (self.config.columns is not None):
            named = ((columns.path, "path"), (columns.label, "label"), (columns.split, "split"))
            names = [f"column{at + 1}" for at in range(len(header))]
            if self.config.columns is not None:
                names = [
                    name if name not in {"path", "label"} else f"column{at + 1}"
                    for at, name in enumerate(header)
                ]
            for chosen, name in named:
                if chosen is not None:
                    names[chosen] = name
            typed.append(f"--columns {shlex.quote(','.join(names))}")
        else:
            for chosen, option in (
                (columns.path, "path_column"),
                (columns.label, "label_column"),
                (columns.split, "split_column"),
            ):
                if chosen is not None and header[chosen] != _DEFAULTS[option]:
                    typed.append(f"--{option.replace('_', '-')} {shlex.quote(header[chosen])}")
        if self.config.group_by is not None:
            typed.append(f"--group-by {shlex.quote(self.config.group_by)}")
        if reader.written != SLOT and not reader.others:  # several are found without an option
            typed.append(flag_of(reader))
        return " ".join(typed)

    def given_options(self) -> str:
        """Return the options of this reading that the user gave, to be typed in a shell."""
        return given_options(self.config)

    def command(self, columns: TableColumns, reader: PathReader) -> str:
        """Return the command that reads the table in this way."""
        return f"{prepare_command(self.source)} {self.options(columns, reader)}".rstrip()


def given_options(config: PrepareConfig) -> str:
    """Return the options of a table that differ from their defaults, to be typed in a shell."""
    return " ".join(
        f"--{option.replace('_', '-')} {shlex.quote(str(value))}"
        for option in _OF_TABLES
        if (value := getattr(config, option)) not in {None, _DEFAULTS[option]}
    )


def is_empty(cell: str) -> bool:
    """Return True if a cell has no value."""
    text = cell.strip()
    return not text or text.lower() in _NO_VALUE


def prepare_command(path: Path) -> str:
    """Return the command that reads a table, to be typed in a shell."""
    return f"stepladder prepare {shlex.quote(printable(str(path)))}"

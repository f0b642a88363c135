"""Read CSV files whose rows hold pictures: pixel values, base64 or bytes in place of paths."""

from __future__ import annotations

import ast
import base64
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.formats import BadPictureError
from stepladder.data.sources.containers.batch_pictures import from_flat
from stepladder.data.sources.containers.contract import (
    Container,
    Item,
    Opened,
    in_batches,
)
from stepladder.data.sources.containers.files import SourceFile, find_files
from stepladder.data.sources.containers.labels import checked_label, encodable
from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.label_tables.csv_file import MAX_CELL, read_start
from stepladder.data.sources.label_tables.json_file import is_json
from stepladder.data.sources.label_tables.labels import (
    is_named_as_splits,
    is_number,
    label_candidates,
    plain_name,
)
from stepladder.data.sources.label_tables.paths import are_file_names, parse_format
from stepladder.data.sources.label_tables.pixel_cells import NUMBER, PixelCells, find_pixels
from stepladder.data.sources.label_tables.reading import TableReading
from stepladder.data.sources.split_names import split_of_cell, split_of_word
from stepladder.data.sources.walk import Skipped
from stepladder.errors import DataError

_SUFFIXES = (".csv", ".tsv", ".txt")
_PANDAS_INDEX = frozenset({"", "unnamed_0", "index"})
_INDEX_NAMES = _PANDAS_INDEX | {"id", "idx"}
_MAX_VALUE = 255


@dataclass(frozen=True)
class _Columns:
    """What the columns of a table of pictures mean.

    Attributes:
        cells: its first rows.
        pixels: the columns with the pictures.
        label, split, group: index of the column; None if there is no such column.
        num_before: rows before the first picture.
    """

    cells: TableCells
    pixels: PixelCells
    label: int
    split: int | None
    group: int | None
    num_before: int


def open_pixel_table(config: PrepareConfig) -> Opened | None:
    """Open a CSV file of pictures; None if it is another file, or columns are not known."""
    source = config.source.expanduser()
    if not source.is_file() or is_json(source):
        return None
    columns = _columns(config)
    if columns is None:
        return None
    found = find_files(source, suffixes=_SUFFIXES, follow_symlinks=config.follow_symlinks)
    return Opened(
        root=found.root,
        containers=[PixelTable(file, columns, config) for file in found.files],
        key=f"pixels {columns} {config.pixel_height} {config.pixel_width}",
        skipped=found.skipped,
        warnings=(*columns.cells.notes, f"{source}: {_told(columns, config)}"),
        has_group=columns.group is not None,
    )


def _columns(config: PrepareConfig) -> _Columns | None:
    names = None if config.columns is None else [one.strip() for one in config.columns.split(",")]
    table = read_start(config, names)
    pixels = None if table is None else find_pixels(table)
    if table is None or pixels is None or config.path_column != PrepareConfig.path_column:
        return None
    if _are_bits(table, pixels) or _names_files(table, pixels, config):
        return None
    if pixels.kind == "pixels" and not (pixels.shape or config.pixel_height):
        return None
    taken = set(pixels.columns)
    is_headerless = table.header_row > 0 and _is_row(table, pixels)
    header = [""] * len(table.header) if is_headerless else table.header

    def index(name: str | None) -> int | None:
        return header.index(name) if name in header else None

    split, group = index(config.split_column), index(config.group_by)
    if split is None and config.split_column == PrepareConfig.split_column:
        split = next(
            (
                at
                for at, name in enumerate(header)
                if at not in taken and is_named_as_splits(name) and _are_splits(table, at)
            ),
            None,
        )
    label = index(config.label_column)
    if label is None and config.label_column == PrepareConfig.label_column:
        taken |= {at for at in (split, group) if at is not None}
        free = [at for at in range(len(header)) if at not in taken]
        if not is_headerless and len(free) > 1:
            free = [at for at in free if plain_name(header[at]) not in _INDEX_NAMES]
        if len(free) > 1:
            free = label_candidates(table, taken)
        label = free[0] if len(free) == 1 else None
    if label is None:
        return None
    return _Columns(table, pixels, label, split, group, max(table.header_row - is_headerless, 0))


def _is_row(table: TableCells, pixels: PixelCells) -> bool:
    """Return True if the header is the first picture, and not the numbers of the columns."""
    names = [table.header[at] for at in pixels.columns]
    if len(names) == 1:
        whole = [(1, table.header)]
        return find_pixels(TableCells(table.header, whole, 0)) is not None
    first = names[0]
    is_count = first.isdecimal() and names == [str(int(first) + at) for at in range(len(names))]
    return not is_count and all(map(is_number, names))


def _are_bits(table: TableCells, pixels: PixelCells) -> bool:
    """Return True if all columns are 0 or 1, as those of one class each."""
    if len(pixels.columns) == 1:
        return False
    values = {cells[at].strip() for _, cells in table.body for at in pixels.columns}
    return values <= {"0", "1", "0.0", "1.0"}


def _names_files(table: TableCells, pixels: PixelCells, config: PrepareConfig) -> bool:
    """Return True if another column names pictures, so that the numbers describe these."""
    path = config.source.expanduser()
    shape = parse_format(config.path_format)
    reading = TableReading(table, path, config, path.parent.resolve(), shape)
    others = [
        at
        for at, name in enumerate(table.header)
        if at not in pixels.columns and plain_name(name) not in _PANDAS_INDEX
    ]
    return any(
        are_file_names(reading.cells(at)) or (reading.may_be_paths(at) and reading.readers(at))
        for at in others
    )


def _are_splits(table: TableCells, at: int) -> bool:
    return all(split_of_word(cells[at]) is not None for _, cells in table.body)


def _told(columns: _Columns, config: PrepareConfig) -> str:
    """Return how the pictures are read."""
    header, pixels = columns.cells.header, columns.pixels
    first, last = header[pixels.columns[0]], header[pixels.columns[-1]]
    what = f"the column {first!r} is" if first == last else f"the columns {first!r} to {last!r} are"
    if columns.num_before < columns.cells.header_row:
        what = "the pixel columns are" if first != last else "a column is"
    said = f"{what} read as pictures"
    if pixels.kind == "pixels":
        height, width, *channels = pixels.shape.split(",") if pixels.shape else ("", "")
        if config.pixel_height or config.pixel_width:
            size = "(--pixel-height, --pixel-width)"
        else:
            size = f"of {width}x{height} pixels in {'RGB' if channels else 'grey'}"
        said += f" {size}, row by row from the top"
    name = header[columns.label]
    is_named = columns.num_before == columns.cells.header_row and name != config.label_column
    return f"{said}; the classes are those of the column {name!r}" if is_named else said


class PixelTable(Container):
    """A CSV with a picture in each row."""

    def __init__(self, file: SourceFile, columns: _Columns, config: PrepareConfig) -> None:
        self.name = file.name
        self.key = file.key
        self.num_rows = None
        self.picture_bytes = file.size_bytes
        self.skipped = Skipped()
        self._file = file
        self._columns = columns
        self._config = config

    def items(self) -> Iterator[list[Item]]:
        """Yield rows; see `Container.items`."""
        yield from in_batches(self._item(row, cells) for row, cells in self._rows())

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        csv.field_size_limit(MAX_CELL)
        table = self._columns.cells
        with (
            self._file.open_ahead() as file,
            io.TextIOWrapper(file, encoding=table.encoding, newline="") as text,
        ):
            reader = csv.reader(text, delimiter=table.delimiter, skipinitialspace=True)
            try:
                for row, cells in enumerate(reader, start=1):
                    is_comment = cells[:1] and cells[0].startswith("#") and len(cells) == 1
                    if row > self._columns.num_before and any(cells) and not is_comment:
                        yield row, cells
            except (csv.Error, UnicodeError) as error:
                raise DataError(
                    f"not a CSV ({str(error)[:100]})",
                    where=f"{self.name}: line {reader.line_num + 1}",
                    fix="Save it as a comma-separated UTF-8 file.",
                ) from None
        self._file.refuse_changed()

    def _item(self, row: int, cells: list[str]) -> Item:
        where = f"{self.name}: row {row}"
        columns, table = self._columns, self._columns.cells
        if len(cells) != len(table.header):
            raise DataError(
                f"wrong number of cells: the other rows have {len(table.header)}, this one has "
                f"{len(cells)}",
                where=where,
                fix="Correct or remove the row.",
            )
        data, reason = b"", None
        try:
            data = self._picture(cells)
        except BadPictureError as error:
            reason = str(error)
        except (ValueError, SyntaxError, TypeError, KeyError):
            reason = "has cells that are no picture"
        split: Split | None = None
        if columns.split is not None:
            split = split_of_cell(cells[columns.split], where)
        group = None if columns.group is None else encodable(cells[columns.group].strip())
        label = checked_label(cells[columns.label], table.header[columns.label], where)
        return Item(row, data, label, split, None, group, reason)

    def _picture(self, cells: list[str]) -> bytes:
        pixels = self._columns.pixels
        found = cells[pixels.columns[0] : pixels.columns[-1] + 1]
        if pixels.kind == "base64":
            return base64.b64decode(found[0].partition("base64,")[2] or found[0])
        if pixels.kind == "bytes":
            value = ast.literal_eval(found[0])
            data: bytes = value["bytes"] if isinstance(value, dict) else value
            return data
        numbers = NUMBER.findall(found[0]) if len(found) == 1 else found
        values = np.array(numbers, dtype=np.float64) * pixels.scale
        if not (values.min() >= 0 and values.max() <= _MAX_VALUE):
            raise BadPictureError("has pixel values below 0 or above 255")
        height, width = self._config.pixel_height, self._config.pixel_width
        return from_flat(np.rint(values).astype(np.uint8).tobytes(), height=height, width=width)

"""Read CSV files whose rows hold pictures: pixel values, base64 or bytes in place of paths."""

from __future__ import annotations

import ast
import base64
import csv
import io
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

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
    label_candidates,
    label_names,
    plain_name,
)
from stepladder.data.sources.label_tables.paths import are_file_names, parse_format
from stepladder.data.sources.label_tables.pixel_cells import NUMBER, PixelCells, find_pixels
from stepladder.data.sources.label_tables.pixel_columns import is_first_picture
from stepladder.data.sources.label_tables.reading import TableReading
from stepladder.data.sources.splits.split_names import split_of_cell, split_of_word
from stepladder.data.sources.walk import Skipped, printable, quoted
from stepladder.errors import DataError, UsageError

_SUFFIXES = (".csv", ".tsv", ".txt")
_PANDAS_INDEX = frozenset({"", "unnamed_0", "index"})
_INDEX_NAMES = _PANDAS_INDEX | {"id", "idx"}
_MAX_VALUE = 255
_MAX_COMPARED = 20_000  # rows


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
    is_of_paths = config.path_column != PrepareConfig.path_column
    pixels = None if table is None or is_of_paths else _pixels(config, table)
    if table is None or pixels is None:
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
        label = _label_at(table, taken, has_names=not is_headerless)
    if label is None:
        return None
    return _Columns(table, pixels, label, split, group, max(table.header_row - is_headerless, 0))


def _label_at(table: TableCells, taken: set[int], *, has_names: bool) -> int | None:
    """Return the column of labels beside pixels; None if it is not clear."""
    names = [plain_name(name) for name in table.header]
    free = [at for at in range(len(names)) if at not in taken]
    if has_names and len(free) > 1:
        free = [at for at in free if names[at] not in _INDEX_NAMES]
    targets = [at for at in free if has_names and names[at] == "y"]  # as in scikit-learn
    if len(free) > 1:
        free = label_candidates(table, taken)
        if targets and not label_names([table.header[at] for at in free])[0]:
            free = targets
    return free[0] if len(free) == 1 else None


def _pixels(config: PrepareConfig, table: TableCells) -> PixelCells | None:
    """Find the columns of pictures; None if there are no such columns, or they are not clear."""
    named = (config.label_column, config.split_column, config.group_by)
    height, width = config.pixel_height, config.pixel_width
    sizes = {height * width, 3 * height * width} if height and width else set()
    pixels = find_pixels(table, named, sizes)
    if pixels is None or _are_bits(table, pixels) or _names_files(table, pixels, config):
        return None
    if pixels.found is not None and pixels.found.ends is not None:
        pixels = _by_ends(config, table, named, sizes)
    is_unknown = pixels is not None and pixels.kind == "pixels" and not pixels.shape
    is_sure = pixels is None or pixels.found is None or pixels.found.is_sure
    return None if is_unknown and not (config.pixel_height and is_sure) else pixels


def _by_ends(
    config: PrepareConfig, table: TableCells, named: Sequence[str | None], sizes: set[int]
) -> PixelCells | None:
    """Find the columns of pictures if only the cells show which end is the class.

    Raises:
        UsageError: if both ends may be the class.
    """
    with config.source.expanduser().open(encoding=table.encoding, newline="") as file:
        rows = islice(enumerate(csv.reader(file, delimiter=table.delimiter), 1), _MAX_COMPARED)
        body = [(row, cells) for row, cells in rows if row > table.header_row]
    pixels = find_pixels(replace(table, body=body), named, sizes)
    found = None if pixels is None else pixels.found
    if found is not None and found.ends is not None and not found.is_sure:
        raise _two_ends(config, table, found.ends, len(found.columns) - 1)
    return pixels


def _two_ends(
    config: PrepareConfig, table: TableCells, ends: tuple[int, int], num: int
) -> UsageError:
    """Return the error that the first or the last column may be the class."""
    source = config.source.expanduser()
    first, last = (f"column {at + 1}" for at in ends)
    if is_first_picture([table.header[at] for at in range(ends[0], ends[1] + 1)]):
        mark = table.delimiter.replace("\t", "\\t")
        before = f"printf 'label'; printf '{mark}%s' $(seq {num}); echo"
        after = f"printf '%s{mark}' $(seq {num}); echo label"
        commands = [
            f"({head}; cat {quoted(source)}) > {quoted(out)} && stepladder prepare {quoted(out)}"
            for head, name in ((before, "first"), (after, "last"))
            for out in [source.with_name(f"{source.stem}-label-{name}.csv")]
        ]
    else:
        first, last = (repr(table.header[at]) for at in ends)
        commands = [
            f"stepladder prepare {quoted(source)} --label-column "
            f"{shlex.quote(printable(table.header[at]))}"
            for at in ends
        ]
    return UsageError(
        f"the table has {num + 1} columns of numbers, {num} of which are the pixels of a picture, "
        f"but it is not clear whether the class is {first} or {last}",
        where=str(source),
        fix=f"If the first one is the class: {commands[0]}. If the last one is: {commands[1]}",
    )


def _is_row(table: TableCells, pixels: PixelCells) -> bool:
    """Return True if the header is the first picture, and not the numbers of the columns."""
    names = [table.header[at] for at in pixels.columns]
    if len(names) == 1:
        whole = [(1, table.header)]
        return find_pixels(TableCells(table.header, whole, 0)) is not None
    return is_first_picture(names)


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
    first, last = header[min(pixels.columns)], header[max(pixels.columns)]
    is_one = len(pixels.columns) == 1
    what = f"the column {first!r} is" if is_one else f"the columns {first!r} to {last!r} are"
    is_headerless = columns.num_before < columns.cells.header_row
    if is_headerless:
        what = "a column is" if is_one else "the pixel columns are"
    said = f"{what} read as pictures"
    if pixels.kind == "pixels":
        height, width, *channels = pixels.shape.split(",") if pixels.shape else ("", "")
        if config.pixel_height or config.pixel_width:
            size = "(--pixel-height, --pixel-width)"
        else:
            size = f"of {width}x{height} pixels in {'RGB' if channels else 'grey'}"
        said += f" {size}, row by row from the top"
    if pixels.found is not None and pixels.found.note:
        said += f" ({pixels.found.note})"
    name = header[columns.label]
    if is_headerless:
        return f"{said}; the classes are those of column {columns.label + 1}"
    is_named = name != config.label_column
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
        found = [cells[at] for at in pixels.columns]
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

"""Read a table as batches: dictionaries of tensors, decoded by row group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from stepladder.data.reading.examples import Examples, Source
from stepladder.data.tables.blocks import Block, BlockCache, Blocks
from stepladder.data.tables.columns import BadCellError, CellColumn, Column, Part
from stepladder.data.tables.footers import RowGroups
from stepladder.data.tables.layout import Layout
from stepladder.errors import DataError
from stepladder.machine import num_cores

_Found = tuple[tuple[Any, ...], np.ndarray, np.ndarray]  # columns, their rows, batch positions


class TableSource(Source):
    """Rows of a table by position: files sorted by name, then row groups and rows in file order.

    `read` returns a dictionary of tensors (lists for strings and bytes) by column, and the target
    separately if there is one. Created by `open_table`.

    Attributes:
        place: path or address of the table.
        version: version of a Delta table; None for other tables.
        is_pinned: whether the version was given, instead of the latest.
        columns: column names, in the order of the batches.
        nullable: names of columns whose cells may be null; see `Choices.as_cells`.
        padded: names of columns whose cells are lists of different lengths.
        block_rows: number of rows in each row group; rows of one group are cheap to read together.
        is_near: whether the whole table is kept decoded in memory.
    """

    def __init__(
        self,
        layout: Layout,
        columns: tuple[Column, ...],
        row_groups: RowGroups,
        *,
        target: str | None,
        key: str,
        is_pinned: bool,
        at_version: Callable[[int], TableSource],
        cache: BlockCache | None = None,
    ) -> None:
        self.place, self.version = layout.listing.place, layout.listing.version
        self.warning = layout.listing.warning
        self.is_pinned = is_pinned
        self.columns = tuple(column.name for column in columns)
        cells = [column for column in columns if isinstance(column, CellColumn)]
        self.nullable = frozenset(column.name for column in cells if column.is_nullable)
        self.padded = frozenset(column.name for column in cells if column.is_padded)
        self.block_rows: tuple[int, ...] = layout.rows
        self.fingerprint = layout.fingerprint(key)
        self._layout = layout
        self._columns = columns
        self._target = target
        self._at_version = at_version
        self._starts = np.concatenate([[0], np.cumsum(layout.rows, dtype=np.int64)])
        self._decoder = _Decoder(layout, columns, row_groups)
        self._blocks = Blocks(self._decoder, self._decoder.forecast_bytes, cache)
        first = next(number for number, rows in enumerate(layout.rows) if rows)
        self._decoder.row_bytes = self._decoder(first).num_bytes / layout.rows[first]
        self.is_near = self._blocks.reserve(self.decoded_bytes)
        # half of the cache: the next window is decoded while one is read
        self.max_window_rows = int(self._blocks.limit / 2 / max(self._decoder.row_bytes, 1))
        self._whole: tuple[Any, ...] | None = None
        self._making = threading.Lock()

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def decoded_bytes(self) -> int:
        """Estimated memory of the whole decoded table."""
        return int(len(self) * self._decoder.row_bytes)

    def at_version(self, version: int) -> TableSource:
        """Open the same columns of another version of the Delta table.

        Raises:
            DataError: if the version does not exist.
        """
        return self._at_version(version)

    def read(self, rows: np.ndarray) -> Examples:
        """Return a batch of rows in the given order."""
        found = self._held(rows) if self.is_near else self._streamed(rows)
        gathered: dict[str, Any] = {}
        for i, column in enumerate(self._columns):
            parts = [Part(values[i], local, places) for values, local, places in found]
            gathered |= column.gather(parts, len(rows))
        targets = None if self._target is None else gathered.pop(self._target)
        return Examples(gathered, targets)

    def expect(self, rows: np.ndarray) -> None:
        """Prefetch the row groups of these rows."""
        if self.is_near:
            return
        numbers, firsts = np.unique(self._block_of(rows), return_index=True)
        self._blocks.expect(numbers[np.argsort(firsts)].tolist())

    def describe(self, row: int) -> str:
        """Return the name of a row: its file and its position in the file."""
        number = int(self._block_of(np.array([row]))[0])
        kept = self._layout.kept[number]
        local = row - int(self._starts[number])
        name = self._layout.row_name(number, local if kept is None else int(kept[local]))
        return name.removeprefix(f"{self.place}: ")

    def _held(self, rows: np.ndarray) -> list[_Found]:
        """Find rows in the whole table, which is decoded at the first call."""
        with self._making:
            if self._whole is None:
                self._whole = self._decoder.whole()
        return [(self._whole, rows, np.arange(len(rows)))]

    def _streamed(self, rows: np.ndarray) -> list[_Found]:
        """Find rows in their row groups."""
        blocks = self._block_of(rows)
        order = np.argsort(blocks, kind="stable")
        numbers, firsts = np.unique(blocks[order], return_index=True)
        return [
            (self._blocks.get(number).values, rows[places] - self._starts[number], places)
            for number, places in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True)
        ]

    def _block_of(self, rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.searchsorted(self._starts, rows, side="right") - 1
        return found


class _Decoder:
    """Reads and decodes row groups; keeps no reference to the source, so that it can be freed."""

    row_bytes = 0.0  # mean size of a decoded row; 0 before the first

    def __init__(self, layout: Layout, columns: tuple[Column, ...], row_groups: RowGroups) -> None:
        self._layout = layout
        self._columns = columns
        self._row_groups = row_groups

    def forecast_bytes(self, number: int) -> int:
        """Return the estimated memory of a decoded row group."""
        return int(self._layout.rows[number] * self.row_bytes)

    def whole(self) -> tuple[Any, ...]:
        """Decode all row groups and concatenate them, column by column."""
        with ThreadPoolExecutor(num_cores(), "stepladder-table") as pool:
            blocks = [list(block.values) for block in pool.map(self, range(len(self._layout.rows)))]
        values = []
        for i, column in enumerate(self._columns):
            parts = [block[i] for block in blocks]
            for block in blocks:
                block[i] = None  # at most one column is in memory twice
            values.append(column.concat(parts))
        return tuple(values)

    def __call__(self, number: int) -> Block:
        """Decode the rows of a row group that belong to the split."""
        layout = self._layout
        names = [column.name for column in self._columns]
        table = self._row_groups.read(*layout.groups[number], names)
        kept = layout.kept[number]
        values = []
        for column in self._columns:
            cells = table.column(column.name)
            try:
                values.append(column.decode(cells if kept is None else cells.take(pa.array(kept))))
            except BadCellError as error:
                row = error.row if kept is None else int(kept[error.row])
                raise DataError(
                    error.what,
                    where=layout.row_name(number, row),
                    fix=f"Correct the value and write the file again, or {error.cure}.",
                ) from None
        sizes = (c.num_bytes(v) for c, v in zip(self._columns, values, strict=True))
        return Block(tuple(values), sum(sizes))

"""Columns as the cells of a pandas DataFrame, nulls among them: for a function that takes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepladder.data.tables.columns import (
    Column,
    ListColumn,
    MlVectorColumn,
    NumberColumn,
    ObjectColumn,
    Part,
    VectorColumn,
    joined,
)


def cells_of(columns: Sequence[Column], nullable: Collection[str]) -> tuple[Column, ...]:
    """Let columns give cells and keep their nulls; those of Spark's VectorUDT stay tensors.

    Args:
        nullable: names of those that may hold nulls.
    """
    return tuple(
        column
        if isinstance(column, MlVectorColumn)
        else CellColumn(column, is_nullable=column.name in nullable)
        for column in columns
    )


class CellColumn(Column):
    """A column as pandas has it: NaN or None is a null, a list is an array.

    The type is that of all batches: where there is a null in any of them, whole numbers are float64
    and booleans are objects.

    Args:
        column: the same as tensors.
        is_nullable: whether it may hold nulls.
    """

    def __init__(self, column: Column, *, is_nullable: bool) -> None:
        super().__init__(column.name)
        self.is_nullable = is_nullable
        self.is_padded = isinstance(column, ListColumn)
        self._column = column

    def decode(self, values: pa.ChunkedArray) -> pa.Array:
        """Give the values, as Arrow holds them."""
        array, column = joined(values), self._column
        if isinstance(column, NumberColumn) and not isinstance(column, VectorColumn):
            return column.as_numbers(array)
        return array

    def concat(self, values: Sequence[pa.Array]) -> pa.Array:
        """Give one array."""
        return pa.concat_arrays(values)

    def num_bytes(self, values: pa.Array) -> int:
        """Give the bytes of the values and of where they begin."""
        return int(values.nbytes)

    def gather(self, parts: Sequence[Part], num_rows: int) -> dict[str, Any]:  # noqa: ARG002
        """Give an array of numbers, or a list of texts, bytes or arrays."""
        taken = pa.concat_arrays([part.values.take(pa.array(part.rows)) for part in parts])
        order = np.argsort(np.concatenate([part.places for part in parts]))
        return {self.name: self._cells(taken.take(pa.array(order)))}

    def _cells(self, array: pa.Array) -> Any:
        if isinstance(self._column, ObjectColumn):
            return array.to_pylist()
        if isinstance(self._column, (VectorColumn, ListColumn)):
            return self._lists(array, self._column)
        if not self.is_nullable:
            return array.to_numpy(zero_copy_only=False)
        if pa.types.is_boolean(array.type):
            return np.array(array.to_pylist(), dtype=object)
        if not pa.types.is_floating(array.type):
            array = array.cast(pa.float64(), safe=False)  # as in pandas, large ones are rounded
        return array.to_numpy(zero_copy_only=False)

    def _lists(self, array: pa.Array, column: VectorColumn | ListColumn) -> list[Any]:
        """Give an array for each list, and None for a null."""
        numbers = column.as_numbers(pc.list_flatten(array))
        flat = np.array(numbers.to_numpy(zero_copy_only=False))  # that a function may write into
        ends = np.cumsum(pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False))
        cells: list[Any] = np.split(flat, ends[:-1])
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)):
            cells[row] = None
        return cells

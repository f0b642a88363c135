"""Convert columns of a table to the values of a batch.

A row group is decoded once into arrays; batches gather their rows from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

LENGTHS = "_lengths"
Scalar = bool | int | float | str | bytes
_LARGEST = (1 << 63) - 1  # of int64


class BadCellError(Exception):
    """An invalid value.

    Attributes:
        row: row in the decoded array.
        what: the problem.
        cure: a fix other than rewriting the file.
    """

    def __init__(self, row: int, what: str, *, cure: str = "omit the column") -> None:
        super().__init__(what)
        self.row = row
        self.what = what
        self.cure = cure


class Part(NamedTuple):
    """Some rows of one decoded row group and their positions in the batch."""

    values: Any
    rows: np.ndarray
    places: np.ndarray


class Column(ABC):
    """One column.

    Args:
        fill: value that replaces nulls, of the batch's type; None: a null is an error.
    """

    null_cure: str | None = None  # how to handle a null if fill is not available

    def __init__(self, name: str, *, fill: Scalar | None = None) -> None:
        self.name = name
        self.fill = fill

    @property
    def names(self) -> tuple[str, ...]:
        """Names of this column's values in a batch."""
        return (self.name,)

    @abstractmethod
    def decode(self, values: pa.ChunkedArray) -> Any:
        """Decode the values of a row group.

        Raises:
            BadCellError: at a null without a fill value, or a value of the wrong length.
        """

    @abstractmethod
    def concat(self, values: Sequence[Any]) -> Any:
        """Concatenate decoded row groups."""

    @abstractmethod
    def num_bytes(self, values: Any) -> int:
        """Return the memory used by decoded values."""

    @abstractmethod
    def gather(self, parts: Sequence[Part], num_rows: int) -> dict[str, Any]:
        """Return the values of a batch by name."""

    def _refuse_nulls(self, array: pa.Array) -> None:
        if array.null_count:
            row = int(np.argmax(pc.is_null(array).to_numpy(zero_copy_only=False)))
            raise BadCellError(row, f"column {self.name} is null", cure=self._null_cure)

    @property
    def _null_cure(self) -> str:
        fill = f"pass fill={{'{self.name}': VALUE}} to open_table, or omit the column"
        return self.null_cure or fill

    def _filled(self, array: pa.Array) -> pa.Array:
        """Replace nulls with the fill value."""
        if array.null_count == 0:
            return array
        if self.fill is None:
            self._refuse_nulls(array)
        return pc.fill_null(array, pa.scalar(self.fill, array.type))


class _Numeric(Column):
    """One or more numbers of the same type in each row."""

    def __init__(self, name: str, number: pa.DataType, *, fill: Scalar | None = None) -> None:
        super().__init__(name, fill=fill)
        self.number = number

    def as_numbers(self, array: pa.Array) -> pa.Array:
        """Convert an array to a number type that torch supports; nulls are kept.

        Raises:
            BadCellError: if a number is too large.
        """
        try:
            return array.cast(self.number)
        except pa.ArrowInvalid:  # only unsigned 64-bit integers can be too large
            is_over = pc.greater(array, pa.scalar(_LARGEST, array.type)).fill_null(False)
            row = int(np.argmax(is_over.to_numpy(zero_copy_only=False)))
            raise BadCellError(
                row, f"column {self.name} has a number above 2^63 - 1, the largest that torch has"
            ) from None

    def _numbers(self, array: pa.Array) -> np.ndarray:
        """Convert an array to numbers, with nulls filled."""
        filled = self._filled(self.as_numbers(array))
        result: np.ndarray = filled.to_numpy(zero_copy_only=False)
        return result

    def _elements(self, lists: pa.Array) -> np.ndarray:
        """Return the numbers in lists; nulls among them are filled, or raise an error."""
        flat = pc.list_flatten(lists)
        if flat.null_count and self.fill is None:
            row = _row_of(lists, int(np.argmax(pc.is_null(flat).to_numpy(zero_copy_only=False))))
            what = f"column {self.name} contains a null in its list"
            raise BadCellError(row, what, cure=self._null_cure)
        try:
            return self._numbers(flat)
        except BadCellError as error:
            error.row = _row_of(lists, error.row)
            raise


class NumberColumn(_Numeric):
    """One number a row. Shapes: (n,)."""

    def decode(self, values: pa.ChunkedArray) -> np.ndarray:
        """Return the numbers."""
        return self._numbers(joined(values))

    def concat(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return one array."""
        return np.concatenate(values)

    def num_bytes(self, values: np.ndarray) -> int:
        """Return the size of the numbers in bytes."""
        return int(values.nbytes)

    def gather(self, parts: Sequence[Part], num_rows: int) -> dict[str, Any]:
        """Return a tensor."""
        first = parts[0].values
        out = np.empty((num_rows, *first.shape[1:]), dtype=first.dtype)
        for part in parts:
            out[part.places] = part.values[part.rows]
        return {self.name: torch.from_numpy(out)}


class VectorColumn(NumberColumn):
    """The same number of values in each row. Shapes: (n, k)."""

    _length_cure = "remove the column from vectors, so that its lists are padded"

    def __init__(
        self, name: str, number: pa.DataType, length: int, *, fill: Scalar | None = None
    ) -> None:
        super().__init__(name, number, fill=fill)
        self.length = length

    def decode(self, values: pa.ChunkedArray) -> np.ndarray:
        """Return the numbers, (rows, k)."""
        array = joined(values)
        if self.fill is None:
            self._refuse_nulls(array)
        self._require_length(pc.list_value_length(array).fill_null(self.length))
        return self._spread(self._elements(array), array)

    def _require_length(self, lengths: pa.Array) -> None:
        """Raise an error if a vector has a different length; nulls are accepted."""
        other = pc.not_equal(lengths, self.length).to_numpy(zero_copy_only=False)
        if other.any():
            row = int(np.argmax(other))
            what = f"column {self.name} has {lengths[row]} values, but {self.length} in other rows"
            raise BadCellError(row, what, cure=self._length_cure)

    def _spread(self, flat: np.ndarray, array: pa.Array) -> np.ndarray:
        """Return all rows: the given numbers for non-null rows, the fill value for the others."""
        vectors = flat.reshape(len(array) - array.null_count, self.length)
        if not array.null_count:
            return vectors
        out = np.full((len(array), self.length), self.fill, dtype=flat.dtype)
        out[array.is_valid().to_numpy(zero_copy_only=False)] = vectors
        return out


class _Ragged(NamedTuple):
    """Concatenated lists: row i is flat[starts[i] : starts[i + 1]]."""

    flat: np.ndarray
    starts: np.ndarray


class ListColumn(_Numeric):
    """Lists of numbers, such as tokens, padded to the longest list of the batch.

    Shapes: NAME (n, t); NAME_lengths int64 (n,).
    """

    def __init__(
        self, name: str, number: pa.DataType, *, pad: float, fill: Scalar | None = None
    ) -> None:
        super().__init__(name, number, fill=fill)
        self.pad = pad

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the padded lists and of their lengths."""
        return (self.name, self.name + LENGTHS)

    def decode(self, values: pa.ChunkedArray) -> _Ragged:
        """Return the lists; with a fill value, null lists become empty lists."""
        array = joined(values)
        if self.fill is None:
            self._refuse_nulls(array)
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return _Ragged(self._elements(array), starts)

    def concat(self, values: Sequence[_Ragged]) -> _Ragged:
        """Return concatenated lists."""
        counts = np.concatenate([np.diff(part.starts) for part in values])
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return _Ragged(np.concatenate([part.flat for part in values]), starts)

    def num_bytes(self, values: _Ragged) -> int:
        """Return the size of the numbers and the list offsets in bytes."""
        return int(values.flat.nbytes + values.starts.nbytes)

    def gather(self, parts: Sequence[Part], num_rows: int) -> dict[str, Any]:
        """Return a padded tensor and the lengths."""
        lengths = np.empty(num_rows, dtype=np.int64)
        for part in parts:
            starts = part.values.starts
            lengths[part.places] = starts[part.rows + 1] - starts[part.rows]
        longest = int(lengths.max(initial=0))
        out = np.full((num_rows, longest), self.pad, dtype=parts[0].values.flat.dtype)  # (n, t)
        for part in parts:
            counts = lengths[part.places]
            before = np.cumsum(counts) - counts
            column = np.arange(counts.sum()) - np.repeat(before, counts)
            first = np.repeat(part.values.starts[part.rows], counts)
            out[np.repeat(part.places, counts), column] = part.values.flat[first + column]
        return {
            self.name: torch.from_numpy(out),
            self.name + LENGTHS: torch.from_numpy(lengths),
        }


class _ArrowColumn(Column):
    """A column that stays an Arrow array until a batch is assembled."""

    def concat(self, values: Sequence[pa.Array]) -> pa.Array:
        """Return one array."""
        return pa.concat_arrays(values)

    def num_bytes(self, values: pa.Array) -> int:
        """Return the size of the values and their offsets in bytes."""
        return int(values.nbytes)


class ObjectColumn(_ArrowColumn):
    """Strings or bytes, as a list."""

    def decode(self, values: pa.ChunkedArray) -> pa.Array:
        """Return the values as an Arrow array."""
        return self._filled(joined(values))

    def gather(self, parts: Sequence[Part], num_rows: int) -> dict[str, Any]:
        """Return a list of str or bytes."""
        out: list[Any] = [None] * num_rows
        for part in parts:
            taken = part.values.take(pa.array(part.rows)).to_pylist()
            for place, value in zip(part.places.tolist(), taken, strict=True):
                out[place] = value
        return {self.name: out}


class MlVectorColumn(VectorColumn):
    """A column of Spark's VectorUDT, dense or sparse. Shapes: (n, k)."""

    _length_cure = "omit the column"

    def decode(self, values: pa.ChunkedArray) -> np.ndarray:
        """Return the numbers, (rows, k); missing entries of sparse vectors are 0."""
        array = joined(values)
        if self.fill is None:
            self._refuse_nulls(array)
        stored, indices, sizes, kinds = (
            pc.struct_field(array, name) for name in ("values", "indices", "size", "type")
        )
        counts = pc.list_value_length(stored).fill_null(0)
        is_dense = pc.equal(kinds, 1)
        lengths = pc.if_else(is_dense, counts.cast(pa.int32()), sizes)
        self._require_length(lengths.fill_null(self.length))
        counts = counts.to_numpy(zero_copy_only=False)
        before = np.cumsum(counts) - counts
        place = np.arange(counts.sum()) - np.repeat(before, counts)
        is_sparse = pc.invert(is_dense).fill_null(False).to_numpy(zero_copy_only=False)
        named = pc.list_flatten(indices).to_numpy(zero_copy_only=False)
        place[np.repeat(is_sparse, counts)] = named
        out = np.zeros((len(array), self.length))
        flat = pc.list_flatten(stored).to_numpy(zero_copy_only=False)
        out[np.repeat(np.arange(len(array)), counts), place] = flat
        if array.null_count:
            out[array.is_null().to_numpy(zero_copy_only=False)] = self.fill
        return out


def _row_of(lists: pa.Array, place: int) -> int:
    """Return the row of the list that contains a position of the flattened lists."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return int(np.searchsorted(np.cumsum(lengths), place, "right"))


def joined(values: pa.ChunkedArray) -> pa.Array:
    """Return one array; strings and bytes get 64-bit offsets, so that they can exceed 2 GiB."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_text(kind):
        kind = pa.large_string()
    elif is_bytes(kind):
        kind = pa.large_binary()
    elif pa.types.is_list(kind):
        kind = pa.large_list(kind.value_field)
    values = values if kind == values.type else values.cast(kind)
    array = values.combine_chunks()
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def is_text(kind: pa.DataType) -> bool:
    """Return True if a type is a string type."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return True if a type is a binary type."""
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Return True if a type is a list type."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_ml_vector(kind: pa.DataType) -> bool:
    """Return True if a type is the struct that Spark writes for its VectorUDT."""
    if not pa.types.is_struct(kind):
        return False
    return [kind.field(i).name for i in range(kind.num_fields)] == _VECTOR_FIELDS


_VECTOR_FIELDS = ["type", "size", "indices", "values"]


def number_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the number type that a batch uses for a type; None if it is not numeric.

    Times become integers in the unit of the column. Unsigned types with little support in torch
    become the next wider signed type.
    """
    types = pa.types
    if types.is_boolean(kind) or types.is_signed_integer(kind) or types.is_floating(kind):
        return kind
    if types.is_decimal(kind):
        return pa.float64()
    if types.is_temporal(kind) and not types.is_interval(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return _WIDENED.get(kind)


_WIDENED: Mapping[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.uint8(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
}


def cells_of(columns: Sequence[Column], nullable: Collection[str]) -> tuple[Column, ...]:
    """Return columns that yield pandas cells with nulls; VectorUDT columns stay tensors.

    Args:
        nullable: names of columns that may contain nulls.
    """
    return tuple(
        column
        if isinstance(column, MlVectorColumn)
        else CellColumn(column, is_nullable=column.name in nullable)
        for column in columns
    )


class CellColumn(_ArrowColumn):
    """A column as in pandas: nulls are NaN or None, lists are arrays.

    All batches have the same type: if any contains a null, integers become float64 and booleans
    become objects.

    Args:
        column: the same column as tensors.
        is_nullable: whether it may contain nulls.
    """

    def __init__(self, column: Column, *, is_nullable: bool) -> None:
        super().__init__(column.name)
        self.is_nullable = is_nullable
        self.is_padded = isinstance(column, ListColumn)
        self._column = column

    def decode(self, values: pa.ChunkedArray) -> pa.Array:
        """Return the values as an Arrow array."""
        array, column = joined(values), self._column
        if isinstance(column, NumberColumn) and not isinstance(column, VectorColumn):
            return column.as_numbers(array)
        return array

    def gather(self, parts: Sequence[Part], num_rows: int) -> dict[str, Any]:  # noqa: ARG002
        """Return an array of numbers, or a list of strings, bytes or arrays."""
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
            array = array.cast(pa.float64(), safe=False)  # as in pandas, large integers are rounded
        return array.to_numpy(zero_copy_only=False)

    def _lists(self, array: pa.Array, column: VectorColumn | ListColumn) -> list[Any]:
        """Return an array for each list and None for each null."""
        numbers = column.as_numbers(pc.list_flatten(array))
        flat = np.array(numbers.to_numpy(zero_copy_only=False))  # a writable copy
        ends = np.cumsum(pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False))
        cells: list[Any] = np.split(flat, ends[:-1])
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)):
            cells[row] = None
        return cells

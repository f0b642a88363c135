"""Choose the columns of a table and how each is converted for a batch."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from stepladder.data.sources.safe_arrow import extension_of
from stepladder.data.tables.columns import (
    LENGTHS,
    Column,
    ListColumn,
    MlVectorColumn,
    NumberColumn,
    ObjectColumn,
    Scalar,
    VectorColumn,
    is_bytes,
    is_list,
    is_ml_vector,
    is_text,
    joined,
    number_type,
)
from stepladder.errors import DataError, UsageError

_TIMES = (datetime.date, datetime.time, datetime.timedelta)
_MAX_NAMED = 5


def fitting_fill(fill: Any, name: str, kind: pa.DataType, place: str) -> Scalar | None:
    """Return the fill value of a column, converted to the type of its batches.

    Raises:
        UsageError: if the value does not fit the column.
    """
    wanted = _wanted(kind)
    if fill is None or wanted is None:
        return None
    value = _as_value(fill, kind)
    if value is None:
        raise UsageError(
            f"fill={{{name!r}: {fill!r}}} does not fit column {name} of type {kind}",
            where=place,
            fix=f"Use {wanted}.",
        )
    return value


def fitting_pad(pad: Any, name: str, kind: pa.DataType, place: str) -> Any:
    """Return the padding value of a column's lists, converted to the type of its batches.

    Raises:
        UsageError: if the value does not fit the column.
    """
    value = _as_value(pad, kind)
    if value is None:
        raise UsageError(
            f"pad_value={pad!r} does not fit column {name} of type {kind}",
            where=place,
            why="The shorter lists of a batch are padded with this value.",
            fix=f"Use {_wanted(kind)}, or leave the column out by listing only the other columns "
            "in columns=[...].",
        )
    return value


def _as_value(given: Any, kind: pa.DataType) -> Scalar | None:
    """Return a value with the type of a batch; None if it has another type or is too large."""
    value = given.item() if isinstance(given, np.generic) else given
    if is_text(kind):
        return value if isinstance(value, str) else None
    if is_bytes(kind):
        return value if isinstance(value, bytes) else None
    if isinstance(value, _TIMES):
        value = _counted(value, kind.value_type if is_list(kind) else kind)
    number = _number(kind)
    if number is None or not isinstance(value, int | float):
        return None
    low, high = _bounds(number)
    if pa.types.is_floating(number):
        is_finite = isinstance(value, int) or math.isfinite(value)
        return float(value) if low <= value <= high or not is_finite else None
    if not (low <= value <= high and value == int(value)):
        return None
    return bool(value) if pa.types.is_boolean(number) else int(value)


def _counted(value: Any, kind: pa.DataType) -> int | None:
    """Convert a date or a time to an integer in the unit of a column."""
    try:
        found: int = pa.scalar(value, kind).cast(number_type(kind)).as_py()
    except (pa.ArrowException, TypeError):
        return None
    return found


def _number(kind: pa.DataType) -> pa.DataType | None:
    if is_ml_vector(kind):
        return pa.float64()
    return number_type(kind.value_type if is_list(kind) else kind)


def _bounds(number: pa.DataType) -> tuple[float, float]:
    """Return the smallest and the largest finite number of a type."""
    if pa.types.is_boolean(number):
        return 0, 1
    dtype = np.dtype(number.to_pandas_dtype())
    if pa.types.is_floating(number):
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _wanted(kind: pa.DataType) -> str | None:
    """Return a description of valid values for a column; None if no value is valid."""
    if is_text(kind):
        return "a string, such as ''"
    if is_bytes(kind):
        return "bytes, such as b''"
    number = _number(kind)
    if number is None:
        return None
    low, high = _bounds(number)
    if pa.types.is_boolean(number):
        return "True or False"
    if pa.types.is_floating(number):
        return f"a number from {low:.3g} to {high:.3g}, or float('nan')"
    return f"an integer from {low} to {high}"


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The options for reading a table; see `open_table`.

    Attributes:
        as_cells: return batches as cells of a pandas DataFrame, including nulls.
        null_cure: how to handle a null if fill is not available.
    """

    columns: tuple[str, ...] | None = None
    target: str | None = None
    vectors: frozenset[str] = frozenset()
    fill: Mapping[str, Scalar] = field(default_factory=dict)
    pad_value: float = 0
    as_cells: bool = field(default=False, repr=False)  # repr is part of the fingerprint of the rows
    null_cure: str | None = field(default=None, repr=False)

    def names(self, schema: pa.Schema, place: str) -> tuple[str, ...]:
        """Return the columns to read, including the target.

        Raises:
            UsageError: if a column does not exist; lists the columns of the table.
        """
        wanted = list(schema.names if self.columns is None else self.columns)
        if self.target is not None and self.target not in wanted:
            wanted.append(self.target)
        named = [*wanted, *self.vectors, *self.fill]
        unknown = [name for name in dict.fromkeys(named) if name not in schema.names]
        if unknown:
            raise UsageError(
                f"the table has no column{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}",
                where=place,
                fix=f"Name some of its columns: {_some(schema.names)}.",
            )
        return tuple(dict.fromkeys(wanted))


def _some(names: Sequence[str]) -> str:
    """Name the first five columns."""
    rest = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def columns_of(
    schema: pa.Schema,
    names: Sequence[str],
    choices: Choices,
    *,
    place: str,
    values: Callable[[str], Iterable[pa.ChunkedArray]],
) -> tuple[Column, ...]:
    """Return the columns of a table.

    Args:
        names: names of the columns to read.
        values: yields the values of a column by row group, used to determine the length of its
            vectors.

    Raises:
        DataError: if a type cannot be converted to a tensor or a list.
        UsageError: if the target is not numeric, names clash, or an option does not fit.
    """
    columns = []
    for name in names:
        kind = plain_type(schema.field(name), place)
        column = _column(name, kind, choices, place=place, values=values)
        if column is None:
            raise DataError(
                f"column {name} has type {kind}, which cannot be converted to a tensor or a list",
                where=place,
                fix="Leave it out by listing only the other columns in columns=[...], or write it "
                "as numbers, strings, bytes or lists of numbers.",
            )
        column.null_cure = choices.null_cure
        columns.append(column)
    _refuse_clashes([name for column in columns for name in column.names], place)
    if choices.target is not None:
        _require_numbers(columns[list(names).index(choices.target)], place)
    return tuple(columns)


def plain_type(given: pa.Field, place: str) -> pa.DataType:
    """Return the type of a field that is not an extension type.

    Raises:
        DataError: if it is an extension type, which may contain pickles.
    """
    kind, name = given.type, extension_of(given)
    if name is not None:
        raise DataError(
            f"column {given.name} has the Arrow extension type {name}, which is not read",
            where=place,
            why="Extension types may contain pickled objects, which could execute code.",
            fix="Leave it out by listing only the other columns in columns=[...], or write it as "
            "numbers, strings, bytes or lists of numbers.",
        )
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def difference(
    first: pa.Schema, other: pa.Schema, names: Collection[str], constants: Collection[str]
) -> str | None:
    """Return how the columns of a file differ from those of the first; None if they do not."""
    for name in names:
        if name in constants:
            continue
        if name not in other.names:
            return f"column {name} is missing"
        kinds = first.field(name).type, other.field(name).type
        if not _is_same(*kinds):
            return f"column {name} has type {kinds[1]}, but {kinds[0]} in the first file"
    return None


def _is_same(a: pa.DataType, b: pa.DataType) -> bool:
    """Return True if two types are read the same way, however strings are stored."""
    a, b = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (a, b))
    if is_list(a) and is_list(b):
        lengths = [getattr(kind, "list_size", None) for kind in (a, b)]
        return lengths[0] == lengths[1] and _is_same(a.value_type, b.value_type)
    return bool(a == b) or (is_text(a) and is_text(b)) or (is_bytes(a) and is_bytes(b))


def _column(
    name: str,
    kind: pa.DataType,
    choices: Choices,
    *,
    place: str,
    values: Callable[[str], Iterable[pa.ChunkedArray]],
) -> Column | None:
    fill = fitting_fill(choices.fill.get(name), name, kind, place)
    if is_text(kind) or is_bytes(kind):
        return ObjectColumn(name, fill=fill)
    if is_ml_vector(kind):
        length = _vector_length(name, values(name), fill, place)
        return MlVectorColumn(name, pa.float64(), length, fill=fill)
    number = number_type(kind.value_type if is_list(kind) else kind)
    if number is None or not is_list(kind):
        return None if number is None else NumberColumn(name, number, fill=fill)
    if pa.types.is_fixed_size_list(kind):
        return VectorColumn(name, number, kind.list_size, fill=fill)
    if name in choices.vectors:
        length = _vector_length(name, values(name), fill, place)
        return VectorColumn(name, number, length, fill=fill)
    pad = fitting_pad(choices.pad_value, name, kind, place)
    return ListColumn(name, number, pad=pad, fill=fill)


def _vector_length(
    name: str, groups: Iterable[pa.ChunkedArray], fill: Scalar | None, place: str
) -> int:
    """Return the length of the first vector that is not null; 0 for a table without rows.

    Raises:
        DataError: if all vectors are null and a fill value is set.
    """
    has_rows = False
    for values in groups:
        has_rows = True
        known = joined(values).drop_null()
        if len(known):
            return _length(known[0].as_py())
    if has_rows and fill is not None:
        raise DataError(
            f"column {name} is to be read as vectors, but contains only nulls, so the length of "
            "the vectors is unknown",
            where=place,
            fix="Leave it out by listing only the other columns in columns=[...], or write it as "
            "fixed-size lists.",
        )
    return 0  # without a fill value, nulls raise an error when they are read


def _length(vector: list[float] | dict[str, Any]) -> int:
    """Return the length of a vector; a sparse vector of Spark stores its size."""
    if isinstance(vector, list):
        return len(vector)
    return int(vector["size"] if vector["type"] == 0 else len(vector["values"]))


def _refuse_clashes(names: Sequence[str], place: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"a batch would have several columns of the same name: {', '.join(twice)}",
            where=place,
            why=f"For a column NAME of lists, a column NAME{LENGTHS} with their lengths is added.",
            fix="List the columns to read, without one of these, in columns=[...].",
        )


def _require_numbers(column: Column, place: str) -> None:
    if isinstance(column, ObjectColumn):
        raise UsageError(
            f"the target column {column.name} contains strings or bytes, but the loss needs "
            "numbers",
            where=place,
            fix="Write the column as numbers. Or leave out target, and convert the column to "
            "numbers in loss() of your Task.",
        )

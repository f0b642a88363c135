"""Values that a user gives for a table: in place of nulls, and behind the ends of lists."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pyarrow as pa

from stepladder.data.tables.columns import (
    Scalar,
    is_bytes,
    is_list,
    is_ml_vector,
    is_text,
    number_type,
)
from stepladder.errors import UsageError

_TIMES = (datetime.date, datetime.time, datetime.timedelta)


def fitting_fill(fill: Any, name: str, kind: pa.DataType, place: str) -> Scalar | None:
    """Give what takes the place of a column's nulls as a value of its batches.

    Raises:
        UsageError: if it is none; says what to give.
    """
    wanted = _wanted(kind)
    if fill is None or wanted is None:
        return None
    value = _as_value(fill, kind)
    if value is None:
        raise UsageError(
            f"fill={{{name!r}: {fill!r}}} does not fit column {name}, which is {kind}",
            where=place,
            fix=f"Give {wanted}.",
        )
    return value


def fitting_pad(pad: Any, name: str, kind: pa.DataType, place: str) -> Any:
    """Give what stands behind the end of a column's shorter lists as a number of its batches.

    Raises:
        UsageError: if it is none; says what to give.
    """
    value = _as_value(pad, kind)
    if value is None:
        raise UsageError(
            f"pad_value={pad!r} does not fit column {name}, which is {kind}",
            where=place,
            why="Shorter lists of a batch are padded with it.",
            fix=f"Give {_wanted(kind)}, or leave the column out by columns=[...].",
        )
    return value


def _as_value(given: Any, kind: pa.DataType) -> Scalar | None:
    """Give a value as batches hold it; None: it is of another type, or too large."""
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
    """Count a date or a time in the unit of a column."""
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
    """Give the smallest and the largest finite number of a type."""
    if pa.types.is_boolean(number):
        return 0, 1
    dtype = np.dtype(number.to_pandas_dtype())
    if pa.types.is_floating(number):
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _wanted(kind: pa.DataType) -> str | None:
    """Say what fits a column; None: nothing does."""
    if is_text(kind):
        return "a text, such as ''"
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
    return f"a whole number from {low} to {high}"

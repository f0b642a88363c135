"""Petastorm's TransformSpec: a function on batches as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepladder.data.reading.examples import Examples, Source
from stepladder.data.tables.source import TableSource
from stepladder.errors import DataError, StepladderError, UsageError


class TransformSpec:
    """Transformation of a batch before it is converted to tensors.

    Args:
        func: takes a pandas DataFrame and returns one with the same number of rows; None: no
            function.
        edit_fields: (name, numpy type, shape, is_nullable) of columns that func adds or changes.
        removed_fields: columns to leave out.
        selected_fields: columns to keep, in this order; not together with removed_fields.
    """

    def __init__(
        self,
        func: Callable[[Any], Any] | None = None,
        edit_fields: Sequence[Any] | None = None,
        removed_fields: Sequence[str] | None = None,
        selected_fields: Sequence[str] | None = None,
    ) -> None:
        if removed_fields and selected_fields is not None:
            raise UsageError(
                "removed_fields and selected_fields are both set, but each of them decides which "
                "columns remain",
                where="TransformSpec",
                fix="Set only one of the two.",
            )
        self.func = func
        self.edit_fields = list(edit_fields or ())
        self.removed_fields = list(removed_fields or ())
        self.selected_fields = None if selected_fields is None else list(selected_fields)


class TransformedSource(Source):
    """A table whose batches are transformed by a TransformSpec, in the reading threads.

    Args:
        source: a table that returns cells, including nulls; see `Choices.as_cells`.
    """

    def __init__(self, source: TableSource, spec: TransformSpec) -> None:
        try:
            import pandas
        except ModuleNotFoundError:
            raise UsageError(
                "a TransformSpec works on pandas DataFrames, and pandas is not installed",
                fix="pip install pandas",
            ) from None
        self._pandas = pandas
        self._source = source
        self._spec = spec
        self._fields = {field[0]: (field[1], field[2]) for field in spec.edit_fields}
        self.fingerprint = source.fingerprint
        self.block_rows = source.block_rows
        self.has_mixed_blocks = source.has_mixed_blocks
        self.max_window_rows = source.max_window_rows
        self.is_near = source.is_near
        self.warning = source.warning

    def __len__(self) -> int:
        return len(self._source)

    @property
    def cell_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Shapes of cells by column, for columns whose shape differs between rows.

        They are those of edit_fields, with None for a dimension that varies, and those of lists of
        different lengths.
        """
        lists: dict[str, tuple[int | None, ...]] = dict.fromkeys(self._source.padded, (None,))
        return lists | {name: tuple(shape) for name, (_, shape) in self._fields.items() if shape}

    def expect(self, rows: np.ndarray) -> None:
        """Announce the next rows to the source."""
        self._source.expect(rows)

    def describe(self, row: int) -> str:
        """Return the description of a row by its source."""
        return self._source.describe(row)

    def read(self, rows: np.ndarray) -> Examples:
        """Read rows and transform them.

        Raises:
            DataError: if the function fails, or returns another number of rows, nulls, or values of
                different shapes.
            UsageError: if the TransformSpec names a column that does not exist.
        """
        columns = self._source.read(rows).inputs
        given = self._pandas.DataFrame({name: _cells(values) for name, values in columns.items()})
        whole = {name for name in given if not self._has_null(name, given[name])}
        frame, has_nulls = given, len(whole) < len(columns)
        if self._spec.func is not None:
            frame = self._changed(given, self._spec.func, where=self.describe(int(rows[0])))
        values = {}
        for name in self._names(frame):
            # if nothing was null before, NaN is a stored or computed number
            may_be_nan = not has_nulls or name in whole
            self._refuse_nulls(name, frame[name], rows, may_be_nan=may_be_nan)
            values[name] = self._values(name, frame[name])
        return Examples(values, None)

    def _has_null(self, name: str, series: Any) -> bool:
        is_number = series.dtype.kind in "biuf"
        return bool((not is_number or name in self._source.nullable) and series.isna().any())

    def _refuse_nulls(self, name: str, series: Any, rows: np.ndarray, *, may_be_nan: bool) -> None:
        """Reject remaining nulls; in float columns, NaN is a null unless `may_be_nan` is set.

        Raises:
            DataError: for the first null; names its row, unless the function changed the index.
        """
        is_null = series.isna().to_numpy()
        if not is_null.any() or (may_be_nan and series.dtype.kind == "f"):
            return
        label = series.index[int(is_null.argmax())]
        is_row = isinstance(label, (int, np.integer)) and 0 <= label < len(rows)
        after = " after the function of the TransformSpec" if self._spec.func else ""
        raise DataError(
            f"column {name} is null{after}",
            where=self.describe(int(rows[label if is_row else 0])),
            fix=f"Fill it in the function of the TransformSpec, for example with "
            f"df['{name}'].fillna(0), or in the DataFrame; or add it to removed_fields.",
        )

    def _changed(self, frame: Any, function: Callable[[Any], Any], *, where: str) -> Any:
        """Call the function, and check its result."""
        num_rows = len(frame)
        try:
            changed = function(frame)
        except StepladderError:
            raise
        except Exception as error:
            raise DataError(
                f"the function of the TransformSpec failed ({type(error).__name__}: {error})",
                where=where,
                fix="Fix the error in this function; its traceback is above.",
            ) from error
        if not isinstance(changed, self._pandas.DataFrame):
            raise DataError(
                f"the TransformSpec's function returned {type(changed).__name__}, not a DataFrame",
                where=where,
                fix="Return the changed DataFrame.",
            )
        if len(changed) != num_rows:
            rows = "row" if len(changed) == 1 else "rows"
            raise DataError(
                f"the function of the TransformSpec returned {len(changed)} {rows} instead of "
                f"{num_rows}",
                where=where,
                why="All shards must have the same number of batches, computed in advance.",
                fix="Return one row for each row. To drop rows, filter the DataFrame before "
                "converting it, for example with df.filter(...) or df.dropna().",
            )
        return changed

    def _names(self, frame: Any) -> list[str]:
        """Return the columns of a batch: the selected ones, or all except the removed ones."""
        spec, given = self._spec, list(frame.columns)
        names = spec.selected_fields
        if names is None:
            every = dict.fromkeys([*given, *self._fields])
            names = [name for name in every if name not in spec.removed_fields]
        missing = [name for name in names if name not in given]
        if missing or not names:
            raise UsageError(
                f"the TransformSpec names missing column{'s' if len(missing) > 1 else ''}: "
                f"{', '.join(missing)}"
                if missing
                else "the TransformSpec removes all columns",
                where="transform_spec",
                fix=f"The columns are: {', '.join(map(str, given))}.",
            )
        return names

    def _values(self, name: str, series: Any) -> Tensor | list[Any]:
        """Return a tensor if cells are numbers or arrays, else a list."""
        dtype, shape = self._fields.get(name, (None, None))
        cells = list(series) if series.dtype.kind not in "biuf" else None
        if cells is not None and isinstance(cells[0], (str, bytes, bytearray)):
            return cells
        try:
            array = series.to_numpy() if cells is None else np.stack(cells)
            if shape and None not in shape:
                array = array.reshape(len(series), *shape)
            return torch.from_numpy(_for_torch(array, dtype))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"column {name} of the TransformSpec's result cannot be a tensor ({error})",
                where="transform_spec",
                fix="Return numbers, or arrays of the same shape and of the type in edit_fields.",
            ) from None


def _cells(values: Any) -> Any:
    """Return the cells of a column; for Spark vectors, which are one tensor, an array per row."""
    return list(values.numpy()) if isinstance(values, Tensor) else values


def _for_torch(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Return writable numbers of the requested type, or of the next larger type of torch."""
    wider = {np.dtype("uint16"): np.int32, np.dtype("uint32"): np.int64}
    wanted = array.dtype if dtype is None else np.dtype(dtype)
    return np.array(array, dtype=wider.get(wanted, wanted))

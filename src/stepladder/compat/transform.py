"""Petastorm's TransformSpec: a function on batches as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepladder.data.examples import Examples, Source
from stepladder.data.tables.columns import LENGTHS
from stepladder.errors import DataError, StepladderError, UsageError


class TransformSpec:
    """How a batch is changed before it becomes tensors.

    Args:
        func: takes a pandas DataFrame and gives one with as many rows; None: only fields change.
        edit_fields: (name, numpy type, shape, is_nullable) of columns that func makes or changes.
        removed_fields: columns that are left out.
        selected_fields: columns that are kept, in this order; not together with removed_fields.
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
                "removed_fields and selected_fields are both given",
                where="TransformSpec",
                fix="Give one of them.",
            )
        self.func = func
        self.edit_fields = list(edit_fields or ())
        self.removed_fields = list(removed_fields or ())
        self.selected_fields = None if selected_fields is None else list(selected_fields)


class TransformedSource(Source):
    """A table whose batches go through a TransformSpec, in the threads that read them."""

    def __init__(self, source: Source, spec: TransformSpec) -> None:
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
        """Shapes of cells by column, where it is known that they are not those of any row.

        As edit_fields names them, where None stands for what varies; and lists of several lengths.
        """
        names = self._source.read(np.zeros(1, dtype=np.int64)).inputs
        lists = {name: (None,) for name in names if name + LENGTHS in names}
        return lists | {name: tuple(shape) for name, (_, shape) in self._fields.items() if shape}

    def expect(self, rows: np.ndarray) -> None:
        """Pass on which rows come next."""
        self._source.expect(rows)

    def describe(self, row: int) -> str:
        """Name a row as its source does."""
        return self._source.describe(row)

    def read(self, rows: np.ndarray) -> Examples:
        """Put rows together and transform them.

        Raises:
            DataError: if the function fails, or gives other than a row for each row, or values of
                several shapes.
            UsageError: if the TransformSpec names a column that is not there.
        """
        columns = self._source.read(rows).inputs
        frame = self._pandas.DataFrame(_cells(columns))
        if self._spec.func is not None:
            frame = self._changed(frame, self._spec.func, where=self.describe(int(rows[0])))
        return Examples(
            {name: self._values(name, frame[name]) for name in self._names(frame)}, None
        )

    def _changed(self, frame: Any, function: Callable[[Any], Any], *, where: str) -> Any:
        """Call the function, and look at what it gives."""
        num_rows = len(frame)
        try:
            changed = function(frame)
        except StepladderError:
            raise
        except Exception as error:
            raise DataError(
                f"the function of the TransformSpec failed ({type(error).__name__}: {error})",
                where=where,
                fix="The fault is in that function, whose own error is shown above.",
            ) from error
        if not isinstance(changed, self._pandas.DataFrame):
            raise DataError(
                f"the function of the TransformSpec gave {type(changed).__name__}, no DataFrame",
                where=where,
                fix="Let it return the DataFrame that it has changed.",
            )
        if len(changed) != num_rows:
            raise DataError(
                f"the function of the TransformSpec made {len(changed)} rows of {num_rows}",
                where=where,
                fix="Let it give a row for each row; filter the DataFrame before.",
            )
        return changed

    def _names(self, frame: Any) -> list[str]:
        """Give the columns of a batch: those that are selected, or all but those removed."""
        spec, given = self._spec, list(frame.columns)
        names = spec.selected_fields
        if names is None:
            every = dict.fromkeys([*given, *self._fields])
            names = [name for name in every if name not in spec.removed_fields]
        missing = [name for name in names if name not in given]
        if missing or not names:
            raise UsageError(
                f"there is no column {', '.join(missing)}" if missing else "no column is left",
                where="transform_spec",
                fix=f"Its function gives: {', '.join(map(str, given))}.",
            )
        return names

    def _values(self, name: str, series: Any) -> Tensor | list[Any]:
        """Give a tensor where cells are numbers or arrays, else a list."""
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
                fix="Let its function give numbers, or arrays of one shape and of the type that "
                "edit_fields names.",
            ) from None


def _cells(columns: dict[str, Any]) -> dict[str, Any]:
    """Give columns of single cells: arrays of several numbers become an array a row."""
    cells = {}
    for name, values in columns.items():
        if name.endswith(LENGTHS) and name.removesuffix(LENGTHS) in columns:
            continue
        lengths = columns.get(name + LENGTHS)
        if not isinstance(values, Tensor):
            cells[name] = values
        elif values.ndim == 1:
            cells[name] = values.numpy()
        elif lengths is None:
            cells[name] = list(values.numpy())
        else:
            pairs = zip(values.numpy(), lengths.tolist(), strict=True)
            cells[name] = [row[:length] for row, length in pairs]
    return cells


def _for_torch(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Give numbers of the type that is wanted and that torch has, in memory that may be written."""
    wider = {np.dtype("uint16"): np.int32, np.dtype("uint32"): np.int64}
    wanted = array.dtype if dtype is None else np.dtype(dtype)
    return np.array(array, dtype=wider.get(wanted, wanted))

"""Choose the columns of a table, and how each becomes part of a batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

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

_EXTENSION = b"ARROW:extension:name"


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a user chose of a table; see `open_table`."""

    columns: tuple[str, ...] | None = None
    target: str | None = None
    vectors: frozenset[str] = frozenset()
    fill: Mapping[str, Scalar] = field(default_factory=dict)
    pad_value: float = 0

    def names(self, schema: pa.Schema, place: str) -> tuple[str, ...]:
        """Give the columns to read, the target among them, and refuse names that are not there.

        Raises:
            UsageError: at an unknown name; lists those of the table.
        """
        wanted = list(schema.names if self.columns is None else self.columns)
        if self.target is not None and self.target not in wanted:
            wanted.append(self.target)
        named = [*wanted, *self.vectors, *self.fill]
        unknown = [name for name in dict.fromkeys(named) if name not in schema.names]
        if unknown:
            raise UsageError(
                f"there is no column {', '.join(unknown)}",
                where=place,
                fix=f"The columns are: {', '.join(schema.names)}.",
            )
        return tuple(dict.fromkeys(wanted))


def columns_of(
    schema: pa.Schema,
    names: Sequence[str],
    choices: Choices,
    *,
    place: str,
    first: Callable[[str], pa.ChunkedArray],
) -> tuple[Column, ...]:
    """Give the columns of a table.

    Args:
        names: of the columns to read.
        first: gives the first row group of a column, where the length of a vector is looked up.

    Raises:
        DataError: if a type cannot be a tensor or a list.
        UsageError: if the target is no number, or names clash.
    """
    columns = []
    for name in names:
        kind = plain_type(schema.field(name), place)
        column = _column(name, kind, choices, first=first)
        if column is None:
            raise DataError(
                f"column {name} is of type {kind}, which cannot be a tensor or a list",
                where=place,
                fix="Name the columns to read, such as columns=[...], or write it as numbers, "
                "text, bytes or lists of numbers.",
            )
        columns.append(column)
    _refuse_clashes([name for column in columns for name in column.names], place)
    if choices.target is not None:
        _require_numbers(columns[list(names).index(choices.target)], place)
    return tuple(columns)


def plain_type(given: pa.Field, place: str) -> pa.DataType:
    """Give the type of a field that needs no code to be understood.

    Raises:
        DataError: at an extension type, which may hold pickles.
    """
    kind = given.type
    extension = (given.metadata or {}).get(_EXTENSION)
    if isinstance(kind, pa.BaseExtensionType) or extension is not None:
        name = extension.decode(errors="replace") if extension else str(kind)
        raise DataError(
            f"column {given.name} is of the extension type {name}",
            where=place,
            why="Such a type may hold pickled objects, which are never opened.",
            fix="Write the column as numbers, text, bytes or lists of numbers.",
        )
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def difference(
    first: pa.Schema, other: pa.Schema, names: Collection[str], constants: Collection[str]
) -> str | None:
    """Say how the columns of a file are other than those of the first one; None: they are not."""
    for name in names:
        if name in constants:
            continue
        if name not in other.names:
            return f"column {name} is missing"
        kinds = first.field(name).type, other.field(name).type
        if not _is_same(*kinds):
            return f"column {name} is {kinds[1]}, and {kinds[0]} in the first file"
    return None


def _is_same(a: pa.DataType, b: pa.DataType) -> bool:
    """Tell whether two types are read alike: how texts are stored does not matter."""
    a, b = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (a, b))
    if is_list(a) and is_list(b):
        lengths = [getattr(kind, "list_size", None) for kind in (a, b)]
        return lengths[0] == lengths[1] and _is_same(a.value_type, b.value_type)
    return bool(a == b) or (is_text(a) and is_text(b)) or (is_bytes(a) and is_bytes(b))


def _column(
    name: str, kind: pa.DataType, choices: Choices, *, first: Callable[[str], pa.ChunkedArray]
) -> Column | None:
    fill = choices.fill.get(name)
    if is_text(kind) or is_bytes(kind):
        return ObjectColumn(name, fill=fill)
    if is_ml_vector(kind):
        return MlVectorColumn(name, pa.float64(), _ml_length(first(name)))
    number = number_type(kind.value_type if is_list(kind) else kind)
    if number is None or not is_list(kind):
        return None if number is None else NumberColumn(name, number, fill=fill)
    length = getattr(kind, "list_size", None)
    if name in choices.vectors and length is None:
        length = _list_length(first(name))
    if length is not None:
        return VectorColumn(name, number, length, fill=fill)
    return ListColumn(name, number, pad=choices.pad_value, fill=fill)


def _list_length(values: pa.ChunkedArray) -> int:
    """Give the length of the first list that is not null."""
    lengths = pc.list_value_length(joined(values)).drop_null()
    return int(lengths[0].as_py()) if len(lengths) else 0


def _ml_length(values: pa.ChunkedArray) -> int:
    """Give the length of the first vector: a sparse one says it, a dense one has it."""
    for value in joined(values)[:64].to_pylist():
        if value is not None:
            return int(value["size"] if value["type"] == 0 else len(value["values"]))
    return 0


def _refuse_clashes(names: Sequence[str], place: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"two columns would be called {', '.join(twice)}",
            where=place,
            why=f"The lengths of a list are given as NAME{LENGTHS}.",
            fix="Name the columns to read, such as columns=[...].",
        )


def _require_numbers(column: Column, place: str) -> None:
    if isinstance(column, ObjectColumn):
        raise UsageError(
            f"the target {column.name} is text or bytes",
            where=place,
            why="A loss is computed from numbers.",
            fix="Write it as numbers, or leave target out and map it in the Task's loss.",
        )

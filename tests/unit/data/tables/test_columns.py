"""Columns of every kind, gathered in any order, compared with pyarrow's values."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from stepladder.data import open_table
from stepladder.errors import DataError, UsageError

ROWS = np.array([8, 0, 9, 3, 3])
NUMBERS = [
    ([1, -2, 3], pa.int8(), torch.int8),
    ([1, -2, 3], pa.int64(), torch.int64),
    ([1, 2, 200], pa.uint8(), torch.uint8),
    ([1, 2, 65535], pa.uint16(), torch.int32),
    ([1, 2, 4294967295], pa.uint32(), torch.int64),
    ([0.5, -2.0, 3.25], pa.float16(), torch.float16),
    ([0.5, -2.0, 3.25], pa.float32(), torch.float32),
    ([0.5, -2.0, 3.25], pa.float64(), torch.float64),
    ([True, False, True], pa.bool_(), torch.bool),
    ([Decimal("1.25"), Decimal("-3.50"), Decimal("0.00")], pa.decimal128(9, 2), torch.float64),
]
ML_VECTOR = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)


def write(folder: Path, columns: dict[str, Any], *, rows_a_group: int = 4) -> Path:
    """Write one file in several row groups."""
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=rows_a_group)
    return folder


@pytest.mark.parametrize(("values", "kind", "dtype"), NUMBERS, ids=lambda item: str(item))
def test_numbers_come_as_tensors_of_their_type(
    values: list[Any], kind: pa.DataType, dtype: torch.dtype, tmp_path: Path
) -> None:
    ten = (values * 4)[:10]
    source = open_table(write(tmp_path, {"x": pa.array(ten, kind)}))
    got = source.read(ROWS).inputs["x"]
    assert got.dtype == dtype
    assert got.tolist() == [float(ten[i]) for i in ROWS]


def test_times_are_counted_in_the_units_of_their_column(tmp_path: Path) -> None:
    day = datetime.datetime(1970, 1, 3)
    columns = {
        "ms": pa.array([day] * 10, pa.timestamp("ms")),
        "utc": pa.array([day] * 10, pa.timestamp("us", "UTC")),
        "day": pa.array([day.date()] * 10),
    }
    got = open_table(write(tmp_path, columns)).read(ROWS[:1]).inputs
    assert {name: value.tolist() for name, value in got.items()} == {
        "ms": [172_800_000],
        "utc": [172_800_000_000],
        "day": [2],
    }


def test_times_of_any_year_that_are_stored_as_int96_are_counted_in_microseconds(
    tmp_path: Path,
) -> None:
    times = [datetime.datetime(year, 12, 31, 1, 2, 3, 4) for year in (1, 1677, 1970, 2262, 9999)]
    columns = {
        "t": pa.array([*times, None], pa.timestamp("us")),
        "l": pa.array([[time] for time in times] + [None], pa.list_(pa.timestamp("us"))),
    }
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), file, use_deprecated_int96_timestamps=True)
    begin = datetime.datetime(1970, 1, 1)
    wanted = [(time - begin) // datetime.timedelta(microseconds=1) for time in times]
    source = open_table(tmp_path, vectors=["l"], fill={"t": begin, "l": 0})
    got = source.read(np.arange(6)).inputs
    assert got["t"].tolist() == [*wanted, 0]
    assert got["l"].tolist() == [[count] for count in [*wanted, 0]]


def test_texts_and_bytes_come_as_lists(tmp_path: Path) -> None:
    texts = [f"text {i}" for i in range(10)]
    columns = {
        "text": texts,
        "category": pa.array(texts).dictionary_encode(),
        "raw": pa.array([text.encode() for text in texts], pa.binary()),
    }
    got = open_table(write(tmp_path, columns)).read(ROWS).inputs
    wanted = [texts[i] for i in ROWS]
    assert got == {"text": wanted, "category": wanted, "raw": [w.encode() for w in wanted]}


def test_lists_are_padded_to_the_longest_of_the_batch(tmp_path: Path) -> None:
    tokens = [list(range(i)) for i in range(10)]
    source = open_table(write(tmp_path, {"tokens": tokens}), pad_value=-1)
    got = source.read(np.array([3, 0, 5])).inputs
    assert got["tokens"].tolist() == [[0, 1, 2, -1, -1], [-1] * 5, [0, 1, 2, 3, 4]]
    assert got["tokens_lengths"].tolist() == [3, 0, 5]
    assert source.read(np.array([0])).inputs["tokens"].shape == (1, 0)


@pytest.mark.parametrize("kind", [pa.list_(pa.float32(), 3), pa.list_(pa.float32())], ids=str)
def test_vectors_come_as_one_tensor(kind: pa.DataType, tmp_path: Path) -> None:
    values = np.arange(30, dtype=np.float32).reshape(10, 3)
    column = pa.array(values.tolist(), kind)
    got = open_table(write(tmp_path, {"v": column}), vectors=["v"]).read(ROWS).inputs
    assert torch.equal(got["v"], torch.from_numpy(values[ROWS]))


def test_spark_ml_vectors_come_dense(tmp_path: Path) -> None:
    rows = [
        {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0, 3.0]},
        {"type": 0, "size": 3, "indices": [2], "values": [5.0]},
        {"type": 0, "size": 3, "indices": [], "values": []},
    ]
    source = open_table(write(tmp_path, {"v": pa.array(rows, ML_VECTOR)}))
    got = source.read(np.array([2, 1, 0])).inputs["v"]
    assert got.tolist() == [[0, 0, 0], [0, 0, 5], [1, 2, 3]]
    column = pa.array([None, *rows[:2]], ML_VECTOR)
    source = open_table(write(tmp_path, {"v": column}, rows_a_group=1), fill={"v": 7})
    assert source.read(np.arange(3)).inputs["v"].tolist() == [[7, 7, 7], [1, 2, 3], [0, 0, 5]]


@pytest.mark.parametrize(
    ("column", "vectors", "said"),
    [
        (pa.array([1.0] * 6 + [None]), [], "column x is null"),
        (pa.array(["a"] * 6 + [None]), [], "column x is null"),
        (pa.array([[1]] * 6 + [None]), [], "column x is null"),
        (pa.array([[1, 2]] * 6 + [[3, None]]), [], "column x contains a null in its list"),
        (pa.array([[1, 2]] * 6 + [[3, None]]), ["x"], "column x contains a null in its list"),
        (pa.array([[1, 2]] * 6 + [[3]]), ["x"], "column x has 1 values, but 2 in other rows"),
    ],
    ids=str,
)
def test_a_bad_cell_is_named_by_file_and_row(
    column: pa.Array, vectors: list[str], said: str, tmp_path: Path
) -> None:
    source = open_table(write(tmp_path, {"x": column}), vectors=vectors)
    with pytest.raises(DataError, match=rf"a\.parquet, row 6: {said}"):
        source.read(np.array([5, 1]))


def test_nulls_are_filled_where_a_value_is_given(tmp_path: Path) -> None:
    columns = {
        "x": pa.array([1.0, None, 3.0]),
        "s": pa.array(["a", None, "c"]),
        "t": pa.array([[1, None], None, [3]]),
        "v": pa.array([[1.0, None], None, [3.0, 4.0]]),
    }
    fill = {"x": -1.0, "s": "", "t": 7, "v": 9.0}
    source = open_table(write(tmp_path, columns), fill=fill, vectors=["v"])
    got = source.read(np.array([0, 1, 2])).inputs
    assert got["x"].tolist() == [1, -1, 3]
    assert got["s"] == ["a", "", "c"]
    assert got["t"].tolist() == [[1, 7], [0, 0], [3, 0]]
    assert got["t_lengths"].tolist() == [2, 0, 1]
    assert got["v"].tolist() == [[1, 9], [9, 9], [3, 4]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None, 2**63 - 1, 2**63], pa.uint64()),
        pa.array([[1, 2], None, [2**63]], pa.list_(pa.uint64())),
    ],
    ids=str,
)
def test_a_number_too_large_for_its_tensor_is_refused(column: pa.Array, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 2: column x has a number above"):
        open_table(write(tmp_path, {"x": column}), fill={"x": 0})


TIME = pa.timestamp("ms")
FILLS = [
    (pa.int64(), 3.0, 3),
    (pa.int64(), np.int64(3), 3),
    (pa.uint16(), -1, -1),  # a batch stores it as int32
    (pa.float16(), 0.5, 0.5),
    (pa.float32(), float("inf"), float("inf")),
    (pa.bool_(), True, True),
    (pa.bool_(), 0, False),
    (pa.decimal128(9, 2), 0.125, 0.125),
    (pa.date32(), datetime.date(1970, 1, 3), 2),
    (TIME, datetime.datetime(1970, 1, 1, 0, 0, 1), 1000),
    (TIME, 5, 5),
    (pa.string(), "none", "none"),
    (pa.dictionary(pa.int32(), pa.string()), "none", "none"),
    (pa.binary(2), b"none", b"none"),
]


@pytest.mark.parametrize(("kind", "fill", "wanted"), FILLS, ids=str)
def test_a_fill_value_is_one_of_the_batch(
    kind: pa.DataType, fill: Any, wanted: Any, tmp_path: Path
) -> None:
    source = open_table(write(tmp_path, {"x": pa.array([None], kind)}), fill={"x": fill})
    [got] = source.read(np.array([0])).inputs["x"]
    assert got == wanted


@pytest.mark.parametrize(
    ("kind", "fill", "give"),
    [
        (pa.int64(), "x", "an integer from -9223372036854775808 to 9223372036854775807"),
        (pa.int64(), 0.5, "an integer"),
        (pa.int64(), float("nan"), "an integer"),
        (pa.int64(), 2**63, "an integer"),
        (pa.list_(pa.int8()), 128, "an integer from -128 to 127"),
        (pa.uint16(), 2**31, "an integer from -2147483648 to 2147483647"),
        (TIME, 0.5, "an integer"),
        (pa.bool_(), 2, "True or False"),
        (pa.float32(), 1e300, r"a number from -3.4e\+38 to 3.4e\+38"),
        (pa.float64(), 10**400, "a number from"),
        (pa.decimal128(9, 2), "0", "a number from"),
        (ML_VECTOR, "0", "a number from"),
        (pa.string(), 0, "a string, such as ''"),
        (pa.binary(), "a", "bytes, such as b''"),
    ],
    ids=str,
)
def test_a_fill_value_of_another_type_is_refused_with_what_to_give(
    kind: pa.DataType, fill: Any, give: str, tmp_path: Path
) -> None:
    write(tmp_path, {"x": pa.array([None], kind)})
    with pytest.raises(UsageError, match=rf"does not fit column x of type (.|\n)*Use {give}"):
        open_table(tmp_path, fill={"x": fill})


@pytest.mark.parametrize(
    ("kind", "pad"),
    [
        (pa.uint8(), -100),
        (pa.int64(), 0.5),
        (pa.int64(), float("nan")),
        (pa.int64(), "x"),
        (pa.bool_(), 2),
        (pa.float16(), 1e6),
    ],
    ids=str,
)
def test_a_pad_value_that_does_not_fit_is_refused(
    kind: pa.DataType, pad: Any, tmp_path: Path
) -> None:
    write(tmp_path, {"t": pa.array([[1], [1, 0]]).cast(pa.list_(kind)), "x": [1, 2]})
    said = r"pad_value=.* does not fit column t of type list(.|\n)*Use (True|a)"
    with pytest.raises(UsageError, match=said):
        open_table(tmp_path, pad_value=pad)
    assert open_table(tmp_path, columns=["x"], pad_value=pad).columns == ("x",)
    assert open_table(tmp_path, pad_value=1).read(np.arange(2)).inputs["t"].tolist()[0] == [1, 1]


def test_the_length_of_vectors_is_that_of_the_first_one_that_is_not_null(tmp_path: Path) -> None:
    empty = pa.table({"v": pa.array([], pa.list_(pa.float64()))})
    null = pa.table({"v": pa.array([None, None], pa.list_(pa.float64()))})
    vector = pa.table({"v": pa.array([[1.0, 2.0]], pa.list_(pa.float64()))})
    with pq.ParquetWriter(tmp_path / "a.parquet", empty.schema) as writer:
        for table in (empty, null, vector):
            writer.write_table(table)
    source = open_table(tmp_path, vectors=["v"], fill={"v": 0})
    assert source.block_rows == (0, 2, 1)
    assert source.read(np.arange(3)).inputs["v"].tolist() == [[0, 0], [0, 0], [1, 2]]
    with pytest.raises(DataError, match=r"a\.parquet, row 0: column v is null"):
        open_table(tmp_path, vectors=["v"])
    pq.write_table(null, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="the length of the vectors is unknown"):
        open_table(tmp_path, vectors=["v"], fill={"v": 0})


def test_a_fill_value_is_no_cure_for_vectors_of_other_lengths(tmp_path: Path) -> None:
    write(tmp_path, {"v": [[1, 2], [3]]})
    with pytest.raises(DataError, match="has 1 values, but 2 in other rows") as caught:
        open_table(tmp_path, vectors=["v"])
    assert "remove the column from vectors" in str(caught.value.fix)
    assert "fill=" not in str(caught.value)


class Pickled(pa.ExtensionType):
    """What a hostile file would contain."""

    def __init__(self) -> None:
        super().__init__(pa.binary(), "arrow.py_extension_type")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"cos\nsystem\n"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, data: bytes) -> Pickled:
        raise AssertionError("was opened")


def test_an_extension_type_is_refused_and_not_opened(tmp_path: Path) -> None:
    column = pa.ExtensionArray.from_storage(Pickled(), pa.array([b"x"], pa.binary()))
    write(tmp_path, {"x": column, "y": pa.array([1])})
    with pytest.raises(DataError, match="column x has the Arrow extension type arrow"):
        open_table(tmp_path)
    assert open_table(tmp_path, columns=["y"]).columns == ("y",)


def test_a_type_that_is_not_a_tensor_is_refused(tmp_path: Path) -> None:
    columns = {"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}
    with pytest.raises(DataError, match="column m has type map"):
        open_table(write(tmp_path, columns))


def test_names_that_clash_and_targets_of_text_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"t": [[1]], "t_lengths": [1], "s": ["a"]})
    with pytest.raises(
        UsageError, match="a batch would have several columns of the same name: t_lengths"
    ):
        open_table(tmp_path)
    with pytest.raises(UsageError, match="the target column s contains strings"):
        open_table(tmp_path, columns=["t"], target="s")
    with pytest.raises(UsageError, match="the table has no column q"):
        open_table(tmp_path, columns=["q"])

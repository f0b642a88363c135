"""The columns of a Delta table are those of its log, whether or not a file has them."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from stepladder.data import open_table
from stepladder.errors import DataError

deltalake = pytest.importorskip("deltalake")

from deltalake.schema import Field, PrimitiveType  # noqa: E402


def test_a_column_that_no_file_holds_is_null_of_the_type_of_the_log(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"x": [1, 2]}))
    kinds = {"z": "integer", "s": "string", "t": "timestamp"}
    fields = [Field(name, PrimitiveType(kind)) for name, kind in kinds.items()]
    deltalake.DeltaTable(tmp_path).alter.add_columns(fields)
    fill = {"z": 7, "s": "", "t": datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)}
    got = open_table(tmp_path, fill=fill).read(np.arange(2)).inputs
    assert list(got) == ["x", "z", "s", "t"]
    assert (got["z"].dtype, got["z"].tolist()) == (torch.int32, [7, 7])
    assert got["s"] == ["", ""]
    assert got["t"].tolist() == [1_000_000, 1_000_000]
    assert open_table(tmp_path, version=0).columns == ("x",)
    with pytest.raises(DataError, match="column z is null"):
        open_table(tmp_path)


def test_columns_that_rows_are_partitioned_by_have_the_types_of_the_log(tmp_path: Path) -> None:
    columns = {
        "x": [1, 2],
        "none": pa.array([None, None], pa.string()),
        "small": pa.array([3, None], pa.int16()),
        "day": pa.array([datetime.date(1970, 1, 3)] * 2),
    }
    names = ["none", "small", "day"]
    deltalake.write_deltalake(tmp_path, pa.table(columns), partition_by=names)
    got = open_table(tmp_path, fill={"none": "?", "small": -1}).read(np.arange(2)).inputs
    assert list(got) == ["x", "day", "none", "small"]
    assert got["none"] == ["?", "?"]
    assert (got["small"].dtype, sorted(got["small"].tolist())) == (torch.int16, [-1, 3])
    assert got["day"].tolist() == [2, 2]


@pytest.mark.usefixtures("short_vectors")
def test_views_of_texts_are_read_where_rows_were_deleted(
    tmp_path: Path, delete_by_vector: object
) -> None:
    import pyarrow.parquet as pq

    texts = [f"text {i}" for i in range(6)]
    table = pa.table({"s": pa.array(texts, pa.string_view())})
    pq.write_table(table, tmp_path / "rows.parquet")
    deltalake.convert_to_deltalake(tmp_path)
    delete_by_vector(tmp_path, [0, 4])  # type: ignore[operator]
    source = open_table(tmp_path)
    assert source.read(np.arange(4)).inputs["s"] == [texts[i] for i in (1, 2, 3, 5)]


def test_the_time_of_a_file_is_no_part_of_a_version(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"x": [1, 2]}))
    first = open_table(tmp_path).fingerprint
    for file in tmp_path.glob("*.parquet"):
        file.touch()
    assert open_table(tmp_path).fingerprint == first

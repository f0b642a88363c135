"""Tables in an object store, on a real S3 server."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.s3.models import s3_backends

from stepladder.data import open_table

deltalake = pytest.importorskip("deltalake")

from deltalake.schema import Field, PrimitiveType  # noqa: E402


def put(s3: Any, folder: Path, key: str, values: list[int]) -> None:
    file = folder / "rows.parquet"
    pq.write_table(pa.table({"x": values}), file, compression="none", use_dictionary=False)
    s3.upload_file(str(file), "photos", key)


@pytest.mark.parametrize("path", ["plain", "plain/a.parquet", "plain/*.parquet"])
def test_an_object_that_took_the_place_of_another_is_other_data(
    path: str, s3: Any, tmp_path: Path
) -> None:
    def written(values: list[int], second: int) -> str:
        put(s3, tmp_path, "plain/a.parquet", values)
        [backend] = [
            each["aws"] for each in s3_backends.values() if "photos" in each["aws"].buckets
        ]
        changed = datetime.datetime(2026, 1, 1, second=second)
        backend.buckets["photos"].keys["plain/a.parquet"].last_modified = changed
        return open_table(f"s3://photos/{path}").fingerprint

    first, other = written([1, 2, 3, 9], 1), written([1, 3, 2, 9], 2)
    assert first != other
    assert written([1, 2, 3, 9], 1) == first


def test_a_folder_whose_name_is_a_glob_is_taken_as_it_is(s3: Any, tmp_path: Path) -> None:
    put(s3, tmp_path, "g[1]/a.parquet", [1, 2])
    put(s3, tmp_path, "g1/a.parquet", [3])
    for path in ("g[1]", "g[1]/a.parquet", "g[1]/*.parquet"):
        source = open_table(f"s3://photos/{path}")
        assert source.read(np.arange(len(source))).inputs["x"].tolist() == [1, 2]


@pytest.mark.usefixtures("s3")
def test_a_column_that_only_the_log_names_is_found_there(endpoint: str) -> None:
    options = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
    place = "s3://photos/delta"
    deltalake.write_deltalake(place, pa.table({"x": [1, 2]}), storage_options=options)
    table = deltalake.DeltaTable(place, storage_options=options)
    table.alter.add_columns([Field("z", PrimitiveType("integer"))])
    got = open_table(place, fill={"z": 7}).read(np.arange(2)).inputs
    assert {name: values.tolist() for name, values in got.items()} == {"x": [1, 2], "z": [7, 7]}

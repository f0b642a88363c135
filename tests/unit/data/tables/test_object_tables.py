"""Tables that lie in an object store, on a real S3 server."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from stepladder.data import open_table

deltalake = pytest.importorskip("deltalake")

from deltalake.schema import Field, PrimitiveType  # noqa: E402


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server; its address."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of the server, which the environment names, with a bucket."""
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="rows")
    return client


def put(s3: Any, folder: Path, key: str, values: list[int]) -> None:
    file = folder / "rows.parquet"
    pq.write_table(pa.table({"x": values}), file, compression="none", use_dictionary=False)
    s3.upload_file(str(file), "rows", key)


@pytest.mark.parametrize("path", ["plain", "plain/a.parquet", "plain/*.parquet"])
def test_an_object_that_took_the_place_of_another_is_other_data(
    path: str, s3: Any, tmp_path: Path
) -> None:
    def written(values: list[int], second: int) -> str:
        put(s3, tmp_path, "plain/a.parquet", values)
        [backend] = [each["aws"] for each in s3_backends.values() if "rows" in each["aws"].buckets]
        changed = datetime.datetime(2026, 1, 1, second=second)
        backend.buckets["rows"].keys["plain/a.parquet"].last_modified = changed
        return open_table(f"s3://rows/{path}").fingerprint

    first, other = written([1, 2, 3, 9], 1), written([1, 3, 2, 9], 2)
    assert first != other
    assert written([1, 2, 3, 9], 1) == first


def test_a_folder_whose_name_is_a_glob_is_taken_as_it_is(s3: Any, tmp_path: Path) -> None:
    put(s3, tmp_path, "g[1]/a.parquet", [1, 2])
    put(s3, tmp_path, "g1/a.parquet", [3])
    for path in ("g[1]", "g[1]/a.parquet", "g[1]/*.parquet"):
        source = open_table(f"s3://rows/{path}")
        assert source.read(np.arange(len(source))).inputs["x"].tolist() == [1, 2]


@pytest.mark.usefixtures("s3")
def test_a_column_that_only_the_log_names_is_found_there(endpoint: str) -> None:
    options = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
    place = "s3://rows/delta"
    deltalake.write_deltalake(place, pa.table({"x": [1, 2]}), storage_options=options)
    table = deltalake.DeltaTable(place, storage_options=options)
    table.alter.add_columns([Field("z", PrimitiveType("integer"))])
    got = open_table(place, fill={"z": 7}).read(np.arange(2)).inputs
    assert {name: values.tolist() for name, values in got.items()} == {"x": [1, 2], "z": [7, 7]}

"""Other Parquet readers read the same data from a store's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from stepladder.config.choices import Encoding, Fit, Split
from stepladder.data.decoding.decode import decode_picture
from stepladder.data.store.publish import publish_as_delta
from stepladder.data.store.store import Store
from stepladder.records import Manifest

Rows = list[dict[str, Any]]


def by_pyarrow(folder: Path, names: list[str]) -> Rows:
    rows: Rows = []
    for name in names:
        rows += pq.ParquetFile(folder / name, page_checksum_verification=True).read().to_pylist()
    return rows


def by_arrow_dataset(folder: Path, names: list[str]) -> Rows:
    import pyarrow.dataset

    files = [str(folder / name) for name in names]
    found: Rows = pyarrow.dataset.dataset(files, format="parquet").to_table().to_pylist()
    return found


def by_duckdb(folder: Path, names: list[str]) -> Rows:
    import duckdb

    files = [str(folder / name) for name in names]
    with duckdb.connect() as connection:
        query = connection.execute("SELECT * FROM read_parquet(?)", [files])
        columns = [column[0] for column in query.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in query.fetchall()]


def by_polars(folder: Path, names: list[str]) -> Rows:
    import polars

    return polars.read_parquet([folder / name for name in names]).to_dicts()


def by_deltalake(folder: Path, names: list[str]) -> Rows:
    from deltalake import DeltaTable

    publish_as_delta(folder)
    rows: Rows = DeltaTable(folder).to_pyarrow_table().to_pylist()
    assert len(DeltaTable(folder).file_uris()) == len(names)
    return rows


def by_polars_delta(folder: Path, names: list[str]) -> Rows:
    import polars

    publish_as_delta(folder)
    return polars.read_delta(str(folder)).to_dicts()


@pytest.fixture(scope="module", params=list(Encoding))
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, build_store: Any
) -> Path:
    """A store with two files for each of train, val and test."""
    folder = tmp_path_factory.mktemp("readers") / "store"
    rows = {"train": 40, "val": 9, "test": 7}
    build_store(folder, num_rows=rows, size=16, encoding=request.param)
    return Path(folder)


@pytest.mark.parametrize(
    "read", [by_pyarrow, by_arrow_dataset, by_duckdb, by_polars, by_deltalake, by_polars_delta]
)
def test_another_reader_reads_the_same_rows(
    store: Path, read: Callable[[Path, list[str]], Rows]
) -> None:
    opened = Store.open(store)
    manifest: Manifest = opened.manifest
    names = [shard.name for shard in manifest.shards]
    found = {row["path"]: row for row in read(store, names)}
    assert len(found) == 56
    for split in Split:
        part = opened.split(split)
        assert part is not None
        for at in range(len(part)):
            row = found.pop(part.describe(at))
            assert row["label"] == part.labels[at]
            assert row["sha256"] == part.sha256(at)
            assert pixels(row["picture"], manifest) == part.picture(at).tobytes()
    assert found == {}


def pixels(picture: bytes, manifest: Manifest) -> bytes:
    """Return a row's pixels, decoded if the store holds JPEGs."""
    if manifest.encoding == Encoding.PIXELS:
        return picture
    decoded: np.ndarray = decode_picture(picture, size=manifest.size, fit=Fit(manifest.fit))
    return decoded.tobytes()

"""Parquet, tars and Delta tables in an object store, on a real S3 server."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from stepladder.config.choices import SourceFormat
from stepladder.data.sources.containers.files import SourceFile
from stepladder.data.sources.delta_log import read_version
from stepladder.errors import DataError, ResourceError, UsageError

KINDS = ("apple", "bread")


def columns(shop: Any, span: range) -> dict[str, Any]:
    """Return rows of pictures."""
    return {
        "image": [shop.photo(row) for row in span],
        "label": [KINDS[row % 2] for row in span],
    }


def same_store(shop: Any, remote: str, local: Path | str, **options: Any) -> None:
    """Prepare from both places and compare every byte."""
    ours = shop.contents(shop.make(remote, "remote", **options).folder)
    assert ours == shop.contents(shop.make(local, "local", **options).folder)


def test_parquet_is_read_by_prefix_object_and_pattern(shop: Any, s3: Any) -> None:
    for part in range(2):
        path = shop.table(f"in/part-{part}.parquet", columns(shop, range(9 * part, 9 * part + 9)))
        s3.upload_file(str(path), "photos", f"some/where/{path.name}")
    s3.put_object(Bucket="photos", Key="some/where/_SUCCESS", Body=b"")
    same_store(shop, "s3://photos/some/where", shop.folder / "in")
    again = shop.make("s3://photos/some/where", "remote")
    assert again.is_up_to_date
    one = shop.make("s3://photos/some/where/part-1.parquet", "one", val_frac=0.5)
    assert {path.partition("#")[0] for path in shop.labels(one.folder)} == {"part-1.parquet"}
    braces = shop.make("s3://photos/some/where/part-{0,1}.parquet", "braces")
    assert shop.contents(braces.folder) == shop.contents(again.folder)


def test_tars_are_read(shop: Any, s3: Any) -> None:
    members = []
    for row in range(18):
        members += [(f"{row}.cls", b"%d" % (row % 2)), (f"{row}.jpg", shop.photo(row))]
    path = shop.tar("in/0.tar", members)
    s3.upload_file(str(path), "photos", "tars/0.tar")
    same_store(shop, "s3://photos/tars", shop.folder / "in")


def test_a_tar_takes_few_requests(shop: Any, s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request may take 100 ms, and a member needs two or more reads."""
    members = []
    for row in range(18):
        members += [(f"{row}.cls", b"%d" % (row % 2)), (f"{row}.jpg", shop.photo(row))]
    s3.upload_file(str(shop.tar("in/0.tar", members)), "photos", "tars/0.tar")
    reads = []

    class Counted(io.RawIOBase):
        def __init__(self, file: Any) -> None:
            self._file = file

        def readable(self) -> bool:
            return True

        def seekable(self) -> bool:
            return True

        def seek(self, place: int, whence: int = 0) -> int:
            return int(self._file.seek(place, whence))

        def readinto(self, buffer: Any) -> int:
            data = self._file.read(len(buffer))
            reads.append(len(data))
            buffer[: len(data)] = data
            return len(data)

    opened = SourceFile.open
    monkeypatch.setattr(SourceFile, "open", lambda self: Counted(opened(self)))
    assert len(shop.labels(shop.make("s3://photos/tars").folder)) == 18
    assert 0 < len(reads) <= 3  # after the first read: the rest, and the end


def test_a_delta_table_is_read_at_its_version(shop: Any, s3: Any) -> None:
    local = shop.folder / "table"
    for half in range(2):
        import pyarrow as pa

        made = pa.table(columns(shop, range(10 * half, 10 * half + 10)))
        write_deltalake(local, made, mode="append")
    for path in local.rglob("*"):
        if path.is_file():
            s3.upload_file(str(path), "photos", f"table/{path.relative_to(local)}")
    same_store(shop, "s3://photos/table", local)
    old = shop.make("s3://photos/table", "old", delta_version=0)
    assert len(shop.labels(old.folder)) == 10
    gone = next(local.glob("*.parquet")).name
    s3.delete_object(Bucket="photos", Key=f"table/{gone}")
    with pytest.raises(
        DataError, match=f"a data file of version 1 of the Delta table is missing: {gone}"
    ):
        shop.make("s3://photos/table", "gone")


@pytest.mark.parametrize("name", ["pictures", "pictures/table.csv"])
def test_single_pictures_are_not_read_from_here(shop: Any, s3: Any, name: str) -> None:
    s3.put_object(Bucket="photos", Key="pictures/apple/0.jpg", Body=shop.photo(0))
    s3.put_object(Bucket="photos", Key="pictures/table.csv", Body=b"path,label\napple/0.jpg,a\n")
    with pytest.raises(UsageError, match="cannot be read from an object store") as caught:
        shop.make(f"s3://photos/{name}")
    assert caught.value.where == f"s3://photos/{name}"
    assert "--engine spark" in str(caught.value.fix)


@pytest.mark.parametrize("place", ["s3://photos/nothing", "s3://no-such-bucket/x.parquet"])
def test_what_is_not_there_is_named_and_no_secret_is_reported(
    shop: Any, s3: Any, place: str
) -> None:
    with pytest.raises(UsageError) as caught:
        shop.make(place)
    assert place.rpartition("/")[0] in str(caught.value)
    assert "canary-secret" not in str(caught.value)


def test_a_store_elsewhere_is_not_a_source(shop: Any, s3: Any) -> None:
    made = shop.make(shop.table("in/all.parquet", columns(shop, range(20)))).folder
    for path in made.iterdir():
        s3.upload_file(str(path), "photos", f"made/{path.name}")
    with pytest.raises(UsageError, match="the source is already a store") as caught:
        shop.make("s3://photos/made", "again")
    assert str(caught.value.fix).startswith(
        "Train on it: stepladder train --data.store s3://photos/made. "
    )


def test_a_delta_table_without_credentials_is_reported(
    shop: Any, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"], "AWS_ALLOW_HTTP": "true"}
    table = pa.table(columns(shop, range(20)))
    write_deltalake("s3://photos/table", table, storage_options=options)
    assert len(shop.labels(shop.make("s3://photos/table").folder)) == 20
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(ResourceError, match="credentials"):
        read_version(Path("s3://photos/table"), None)


def test_what_petastorm_wrote_is_known_elsewhere(shop: Any, s3: Any) -> None:
    source = shop.table("in/all.parquet", columns(shop, range(20)))
    schema = pa.schema([("label", pa.string())], {b"dataset-toolkit.unischema.v1": b"x"})
    pq.write_metadata(schema, shop.folder / "_common_metadata")
    options = {"source_format": SourceFormat.PETASTORM}
    s3.upload_file(str(source), "photos", "pet/all.parquet")
    with pytest.raises(UsageError, match="s3://photos/pet: not a Petastorm dataset"):
        shop.make("s3://photos/pet", **options)
    s3.upload_file(str(shop.folder / "_common_metadata"), "photos", "pet/_common_metadata")
    assert len(shop.labels(shop.make("s3://photos/pet", **options).folder)) == 20

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepladder.data.prepare.target import open_target
from stepladder.data.remote.cache_folder import cache_folder
from stepladder.data.remote.copies import open_copies
from stepladder.data.remote.places import (
    ObjectPlace,
    address_shown,
    object_place,
    shown,
    supported_place,
)
from stepladder.data.store.store import Store
from stepladder.data.tables.spark_converter import local_folder
from stepladder.errors import UsageError


def test_a_path_keeps_bucket_and_key() -> None:
    place = object_place(Path("s3://photos/a/store"))
    assert place == ObjectPlace("photos", "a/store")
    assert str(place) == "s3://photos/a/store"
    assert object_place(place.path) == place


def test_a_place_below_and_a_sibling_place() -> None:
    place = ObjectPlace("photos", "a/store")
    assert str(place.join("manifest.json")) == "s3://photos/a/store/manifest.json"
    assert str(place.beside(".features").join("KEY")) == "s3://photos/a/store.features/KEY"
    assert str(ObjectPlace("photos", "").join("manifest.json")) == "s3://photos/manifest.json"


@pytest.mark.parametrize("path", ["store", "/data/s3/store", "data/s3:/b", ".", "S3://b/k"])
def test_any_other_path_is_of_this_machine(path: str) -> None:
    assert object_place(Path(path)) is None
    assert shown(Path(path)) == str(Path(path))


@pytest.mark.parametrize("path", ["s3://", "s3://photos/../other"])
def test_an_invalid_place_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="s3://"):
        object_place(path)


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("s3://AKIA:wJalr/canary@photos/t", "s3://…@photos/t"),
        ("s3://AKIA@photos/t", "s3://…@photos/t"),
        ("s3://AKIA:canary", "s3://…"),
    ],
)
def test_a_key_in_an_address_is_refused_and_not_reported(path: str, where: str) -> None:
    with pytest.raises(
        UsageError, match="the address contains an access key or a password"
    ) as caught:
        object_place(Path(path))
    assert caught.value.where == where
    assert "AKIA" not in str(caught.value)
    assert "canary" not in str(caught.value)


def test_an_access_point_is_a_bucket() -> None:
    name = "arn:aws:s3:us-west-2:123456789012:accesspoint:one"
    assert object_place(f"s3://{name}/k@1") == ObjectPlace(name, "k@1")


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("gs://photos/store", "s3://BUCKET/PREFIX"),
        ("hdfs://host:9000/store", "s3://BUCKET/PREFIX"),
        ("abfss://photos@account/store", "s3://BUCKET/PREFIX"),
        ("s3a://photos/store", "Use s3://photos/store"),
        ("S3://photos/store", "Use s3://photos/store"),
        ("dbfs:/photos/store", "Use /dbfs/photos/store"),
        ("file:///photos/store", "Use /photos/store"),
    ],
)
@pytest.mark.parametrize("kind", [str, Path])
def test_an_address_of_another_kind_is_refused_with_what_to_write(
    path: str, fix: str, kind: type
) -> None:
    with pytest.raises(UsageError, match="addresses are not supported here") as caught:
        supported_place(kind(path))
    assert fix in str(caught.value.fix)


@pytest.mark.parametrize("path", ["store", "/data/gs:/store", "a:/b", "data/gs:/b", "~/store"])
def test_a_folder_of_this_machine_is_not_an_address(path: str) -> None:
    assert supported_place(Path(path)) is None


def test_s3_is_supported() -> None:
    assert supported_place(Path("s3://photos/store")) == ObjectPlace("photos", "store")


@pytest.mark.parametrize(
    "address",
    [
        "s3a://AKIA:wJalr/canary@photos/store",
        "s3n://AKIA:canary",
        "hdfs://AKIA:canary?canary@host/store",
        "wasbs://host/store?sig=canary",
    ],
)
def test_what_is_secret_in_an_address_is_not_reported(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        supported_place(Path(address))
    assert "canary" not in str(caught.value)
    assert "AKIA" not in str(caught.value)
    assert "canary" not in address_shown(Path(address))


@pytest.mark.parametrize("opens", [open_target, open_copies, cache_folder, Store.open])
def test_no_option_that_names_a_folder_takes_an_address_of_another_kind(
    opens: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="gs:// addresses are not supported here"):
        opens(Path("gs://photos/store"))
    assert list(tmp_path.iterdir()) == []


def test_a_cache_for_spark_is_not_an_address_and_no_secret_of_it_is_reported() -> None:
    with pytest.raises(UsageError, match="mounted on every machine") as caught:
        local_folder("S3A://AKIA:canary@photos/cache")
    assert caught.value.where == "S3A://…@photos/cache"

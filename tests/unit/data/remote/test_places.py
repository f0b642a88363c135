from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.data.remote.places import ObjectPlace, object_place, shown
from stepladder.errors import UsageError


def test_a_path_keeps_bucket_and_key() -> None:
    place = object_place(Path("s3://photos/a/store"))
    assert place == ObjectPlace("photos", "a/store")
    assert str(place) == "s3://photos/a/store"
    assert object_place(place.path) == place


def test_a_place_below_and_a_place_beside() -> None:
    place = ObjectPlace("photos", "a/store")
    assert str(place.join("manifest.json")) == "s3://photos/a/store/manifest.json"
    assert str(place.beside(".features").join("KEY")) == "s3://photos/a/store.features/KEY"
    assert str(ObjectPlace("photos", "").join("manifest.json")) == "s3://photos/manifest.json"


@pytest.mark.parametrize("path", ["store", "/data/s3/store", "data/s3:/b", ".", "S3://b/k"])
def test_any_other_path_is_of_this_machine(path: str) -> None:
    assert object_place(Path(path)) is None
    assert shown(Path(path)) == str(Path(path))


@pytest.mark.parametrize("path", ["s3://", "s3://photos/../other"])
def test_a_place_that_is_none_is_refused(path: str) -> None:
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
def test_a_key_in_an_address_is_refused_and_not_told(path: str, where: str) -> None:
    with pytest.raises(UsageError, match="must not hold a key or a password") as caught:
        object_place(Path(path))
    assert caught.value.where == where
    assert "AKIA" not in str(caught.value)
    assert "canary" not in str(caught.value)


def test_an_access_point_is_a_bucket() -> None:
    name = "arn:aws:s3:us-west-2:123456789012:accesspoint:one"
    assert object_place(f"s3://{name}/k@1") == ObjectPlace(name, "k@1")

"""Names from Spark are listed by the same rules as local folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.config.choices import Split
from stepladder.data.sources.folders.folders import list_walk
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.walk import Skipped, Walk
from stepladder.data.spark.listing import (
    list_names,
    relative_names,
    spark_address,
    split_pattern,
)
from stepladder.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("source", "address"),
    [
        ("hdfs://host:8020/photos", "hdfs://host:8020/photos"),
        ("s3a://bucket/photos", "s3a://bucket/photos"),
        ("dbfs:/mnt/photos", "dbfs:/mnt/photos"),
        ("abfss://photos@account.net/x", "abfss://photos@account.net/x"),
        ("file:/photos", "file:/photos"),
        ("/photos/*/*.jpg", "/photos/*/*.jpg"),
        ("/photos", None),
        ("photos", None),
    ],
)
def test_an_address_is_distinguished_from_a_folder(source: str, address: str | None) -> None:
    assert spark_address(Path(source)) == address


@pytest.mark.parametrize(
    "address",
    ["s3a://AKIA:can/canary@photos/x", "s3a://AKIA@photos/x", "hdfs://AKIA:canary@host/x"],
)
def test_a_key_in_an_address_is_refused_and_not_reported(address: str) -> None:
    with pytest.raises(
        UsageError, match="the address contains an access key or a password"
    ) as caught:
        spark_address(Path(address))
    assert "AKIA" not in str(caught.value)
    assert "canary" not in str(caught.value)


def test_a_pattern_of_names_is_cut_off() -> None:
    assert split_pattern("/photos/*/*.jpg") == ("/photos/*", "*.jpg")
    assert split_pattern("/photos/20*") == ("/photos/20*", None)
    assert split_pattern("/photos/a.b") == ("/photos/a.b", None)


@pytest.mark.parametrize(
    ("names", "address", "wanted"),
    [
        (["hdfs://h:1/p/a/1.jpg", "hdfs://h:1/p/b/2.jpg"], "hdfs:///p", ["a/1.jpg", "b/2.jpg"]),
        (["file:/p/a/1.jpg"], "/p", ["a/1.jpg"]),
        (["file:///p/a/1.jpg"], "file:/p", ["a/1.jpg"]),
        (["file:/p/x/a/1.jpg", "file:/p/y/a/1.jpg"], "/p/*", ["x/a/1.jpg", "y/a/1.jpg"]),
        (["/q/a/1.jpg", "/q/a/b/1.jpg", "/q/ab/1.jpg"], None, ["a/1.jpg", "a/b/1.jpg", "ab/1.jpg"]),
        (["a/1.jpg", "/b/1.jpg"], None, ["a/1.jpg", "/b/1.jpg"]),
    ],
)
def test_no_host_and_no_folder_of_the_source_is_in_a_name(
    names: list[str], address: str | None, wanted: list[str]
) -> None:
    assert relative_names(names, address) == wanted


def test_names_are_listed_as_their_folder_is(tmp_path: Path) -> None:
    names = [
        *("train/b/2.jpg", "train/b/10.jpg", "train/b.c/x", "train/b/deep/er/1.PNG"),
        *("train/b/.hid.jpg", "train/b/notes.txt", "val/b/1.jpg", "val/__MACOSX/1.jpg"),
        *("extra/y/1.jpg", "loose.jpg", "train/loose.jpg", "train/ü/é.gif"),
    ]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff")  # a JPEG's: a file without an ending counts by content
    found = list_names(names[::-1], tmp_path, Skipped())
    local: Listing = list_walk(Walk(str(tmp_path), False, Skipped()), tmp_path)
    assert found.pictures == local.pictures
    assert found.skipped == local.skipped
    assert found.warnings == local.warnings
    assert {picture.split for picture in found.pictures} == {Split.TRAIN, Split.VAL}


def test_names_without_a_picture_are_refused_as_a_folder_is() -> None:
    with pytest.raises(DataError, match="no class folders with pictures"):
        list_names(["notes.txt"], Path("x"), Skipped())

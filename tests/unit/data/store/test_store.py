"""Stores: what was written is read, changes are rejected, and verify finds all of them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.config.choices import Encoding, Split, VerifyPages
from stepladder.data.store.index import index_path
from stepladder.data.store.manifest import fingerprint_of, load_manifest
from stepladder.data.store.store import Store, StoreSplit, verify_store
from stepladder.errors import DataError
from stepladder.records import write_json


def train_of(folder: Path, **options: Any) -> StoreSplit:
    split = Store.open(folder, **options).split(Split.TRAIN)
    assert split is not None
    return split


def test_every_row_is_as_it_was_written(tmp_path: Path, build_store: Any) -> None:
    pictures = build_store(tmp_path / "s", num_rows={"train": 150, "val": 7}, shards=3)
    store = Store.open(tmp_path / "s")
    for split in (Split.TRAIN, Split.VAL):
        rows = store.split(split)
        assert rows is not None
        assert len(rows) == len(pictures[split])
        assert all(np.array_equal(rows.picture(r), pictures[split][r]) for r in range(len(rows)))
        assert rows.labels.tolist() == [r % 3 for r in range(len(rows))]
        assert rows.describe(5) == f"corn/{split} 5.jpg"
        hashes = sorted(hashlib.sha256(f"0{split}{r}".encode()).digest() for r in range(len(rows)))
        assert [rows.sha256(r) for r in range(len(rows))] == hashes
    assert store.split(Split.TEST) is None
    assert store.split(Split.TRAIN) is store.split(Split.TRAIN)
    assert verify_store(tmp_path / "s") == []


def test_jpegs_are_decoded(tmp_path: Path, build_store: Any) -> None:
    pictures = build_store(tmp_path / "s", encoding=Encoding.JPEG, size=32)
    rows = train_of(tmp_path / "s")
    apart = np.abs(rows.picture(3).astype(int) - pictures["train"][3]).mean()
    assert apart < 8  # JPEG's own loss; another picture differs by 30 or more
    assert verify_store(tmp_path / "s") == []


def test_rows_that_do_not_exist_are_refused(tmp_path: Path, build_store: Any) -> None:
    build_store(tmp_path / "s")
    rows = train_of(tmp_path / "s")
    for row in (-1, 20):
        with pytest.raises(IndexError):
            rows.picture(row)
        with pytest.raises(IndexError):
            rows.describe(row)


@pytest.mark.parametrize("damage", ["missing", "foreign", "flipped", "empty"])
def test_an_index_that_cannot_be_used_is_made_again(
    tmp_path: Path, build_store: Any, damage: str
) -> None:
    pictures = build_store(tmp_path / "s")
    path = index_path(tmp_path / "s" / "train-0.parquet")
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "foreign":  # of a shard of the same size with other pictures
        build_store(tmp_path / "other", seed=9)
        shutil.copy(tmp_path / "other" / path.name, path)
    elif damage == "flipped":
        path.write_bytes(whole[:100] + bytes([whole[100] ^ 4]) + whole[101:])
    else:
        path.write_bytes(b"")
    assert len(verify_store(tmp_path / "s")) == 1
    rows = train_of(tmp_path / "s")
    assert np.array_equal(rows.picture(0), pictures["train"][0])
    assert path.read_bytes() == whole


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def first_picture_offset(folder: Path) -> int:
    return train_of(folder)._shards[0].index.offsets[0]


def test_a_flipped_byte_is_reported_with_row_path_and_what_to_type(
    tmp_path: Path, build_store: Any
) -> None:
    build_store(tmp_path / "s")
    flip(tmp_path / "s" / "train-0.parquet", first_picture_offset(tmp_path / "s"))
    with pytest.raises(DataError) as caught:
        train_of(tmp_path / "s").picture(0)
    text = str(caught.value)
    assert "train-0.parquet: row 0 (apple/train 0.jpg)" in text
    assert "CRC" in text
    assert "stepladder verify" in text
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("mode", "is_found_later"),
    [(VerifyPages.ALWAYS, True), (VerifyPages.FIRST_TOUCH, True), (VerifyPages.NEVER, False)],
)
def test_pages_are_trusted_only_while_the_file_is_unchanged(
    tmp_path: Path, build_store: Any, mode: VerifyPages, is_found_later: bool
) -> None:
    build_store(tmp_path / "s")
    rows = train_of(tmp_path / "s", verify_pages=mode)
    rows.picture(0)
    with (tmp_path / "s" / "train-0.parquet").open("r+b") as file:  # in place: the inode stays
        file.seek(rows._shards[0].index.offsets[0])
        file.write(b"other")
    if is_found_later:
        with pytest.raises(DataError, match="CRC"):
            rows.picture(0)
    else:
        assert bytes(rows.picture(0).reshape(-1)[:5]) == b"other"


def test_a_change_that_another_read_has_seen_first_is_not_forgotten(
    tmp_path: Path, build_store: Any
) -> None:
    build_store(tmp_path / "s")
    rows = train_of(tmp_path / "s")
    rows.picture(0)
    flip(tmp_path / "s" / "train-0.parquet", rows._shards[0].index.offsets[0])
    assert not rows._shards[0].is_unchanged(), "like a check before reading names"
    with pytest.raises(DataError, match="CRC"):
        rows.picture(0)


def test_a_page_is_checked_once_on_first_touch(
    tmp_path: Path, build_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepladder.data.store import shard

    calls: list[int] = []
    real = shard.crc32
    monkeypatch.setattr(shard, "crc32", lambda *parts: calls.append(1) or real(*parts))
    build_store(tmp_path / "s")
    calls.clear()
    rows = train_of(tmp_path / "s")
    calls.clear()
    for _ in range(3):
        rows.picture(2)
    assert len(calls) == 1


def test_a_store_that_is_replaced_stays_readable_where_it_is_open(
    tmp_path: Path, build_store: Any
) -> None:
    first = build_store(tmp_path / "s", seed=1)
    rows = train_of(tmp_path / "s")
    build_store(tmp_path / "s", seed=2)
    assert np.array_equal(rows.picture(3), first["train"][3])


def test_a_shard_of_another_store_is_refused(tmp_path: Path, build_store: Any) -> None:
    """Same size, valid pages, valid index, but not the shard in the manifest."""
    options = {"num_rows": {"train": 3}, "shards": 1}
    build_store(tmp_path / "s", **options)
    size = (tmp_path / "s" / "train-0.parquet").stat().st_size
    for seed in range(1, 30):  # page headers vary in length by a byte
        build_store(tmp_path / "other", seed=seed, **options)
        if (tmp_path / "other" / "train-0.parquet").stat().st_size == size:
            break
    for name in ("train-0.parquet", "train-0.parquet.index"):
        shutil.copy(tmp_path / "other" / name, tmp_path / "s" / name)
    assert (tmp_path / "s" / "train-0.parquet").stat().st_size == size
    assert size == load_manifest(tmp_path / "s").shards[0].size_bytes
    with pytest.raises(DataError, match="sha256 does not match manifest"):
        train_of(tmp_path / "s")


def drop_shard(folder: Path) -> None:
    (folder / "train-1.parquet").unlink()


def add_shard(folder: Path) -> None:
    shutil.copy(folder / "train-1.parquet", folder / "train-9.parquet")


def cut_shard(folder: Path) -> None:
    data = (folder / "train-1.parquet").read_bytes()
    (folder / "train-1.parquet").write_bytes(data[:-10])


def empty_shard(folder: Path) -> None:
    (folder / "train-1.parquet").write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (drop_shard, "shard train-1.parquet is missing"),
        (add_shard, "shard train-9.parquet is not in the manifest"),
        (cut_shard, "shard train-1.parquet has"),
        (empty_shard, "shard train-1.parquet has 0 bytes"),
    ],
)
def test_a_store_that_is_not_whole_is_refused(
    tmp_path: Path, build_store: Any, damage: Callable[[Path], None], told: str
) -> None:
    build_store(tmp_path / "s")
    damage(tmp_path / "s")
    with pytest.raises(DataError, match=told) as caught:
        Store.open(tmp_path / "s")
    assert "stepladder prepare" in str(caught.value)
    assert any(told in problem for problem in verify_store(tmp_path / "s"))


def test_what_killed_processes_leave_is_passed_over(tmp_path: Path, build_store: Any) -> None:
    build_store(tmp_path / "s")
    (tmp_path / "s" / ".train-3.parquet.tmp").write_bytes(b"half")
    (tmp_path / "s" / ".DS_Store").write_bytes(b"x")
    assert verify_store(tmp_path / "s") == []


def test_a_folder_without_a_store_suggests_a_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the folder does not exist"):
        Store.open(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"is not a store[\s\S]*stepladder prepare"):
        Store.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format_version": 2}, "written in format 2"),
        ({"classes": ["a", "b"]}, "does not have counts for every class"),
        ({"classes": ["x", "y", "z"]}, "fingerprint does not match"),
        ({"size": "8"}, "a count is not an integer"),
        ({"encoding": "webp"}, "the manifest is damaged"),
        ({"surprise": 1}, "missing or unknown keys: surprise"),
        ({"shards": []}, "counts 20 pictures of train, but its shards have 0"),
        ({"class_counts": None}, "the manifest is damaged"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(
    tmp_path: Path, build_store: Any, change: dict[str, Any], told: str
) -> None:
    build_store(tmp_path / "s")
    path = tmp_path / "s" / "manifest.json"
    write_json(path, json.loads(path.read_text()) | change)
    with pytest.raises(DataError, match=told):
        Store.open(tmp_path / "s")
    assert len(verify_store(tmp_path / "s")) == 1


@pytest.mark.parametrize(
    "name",
    ["../train-0.parquet", "/etc/train-0.parquet", "train-0.parquet\n", "train-.parquet", "x"],
)
def test_a_shard_name_cannot_lead_out_of_the_store(
    tmp_path: Path, build_store: Any, name: str
) -> None:
    build_store(tmp_path / "s")
    path = tmp_path / "s" / "manifest.json"
    value = json.loads(path.read_text())
    value["shards"][0]["name"] = name
    write_json(path, value)
    with pytest.raises(DataError, match="lists an invalid shard"):
        load_manifest(tmp_path / "s")


def test_a_label_beyond_the_classes_is_refused_before_training(
    tmp_path: Path, build_store: Any
) -> None:
    build_store(tmp_path / "s")
    path = tmp_path / "s" / "manifest.json"
    value = json.loads(path.read_text())
    value["classes"] = ["apple", "bread"]
    value["class_counts"] = {
        split: [n[0], n[1] + n[2]] for split, n in value["class_counts"].items()
    }
    write_json(path, value)
    value["fingerprint"] = fingerprint_of_value(value)
    write_json(path, value)
    with pytest.raises(DataError, match=r"label 2 is not one of the 2 classes"):
        _ = train_of(tmp_path / "s").labels
    assert any("label 2" in problem for problem in verify_store(tmp_path / "s"))


def fingerprint_of_value(value: dict[str, Any]) -> str:
    from stepladder.data.store.manifest import _parse

    return fingerprint_of(_parse(value))


def test_verify_names_every_damaged_row(tmp_path: Path, build_store: Any) -> None:
    build_store(tmp_path / "s")
    index = train_of(tmp_path / "s")._shards[0].index
    for row in (0, 3):
        flip(tmp_path / "s" / "train-0.parquet", index.offsets[row] + 5)
    problems = verify_store(tmp_path / "s")
    assert [problem.split(":")[:2] for problem in problems] == [
        ["shard train-0.parquet", " row 0"],
        ["shard train-0.parquet", " row 3"],
    ]

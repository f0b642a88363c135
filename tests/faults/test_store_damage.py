"""Injected damage to a store: every flip is detected, a truncated file never kills the process."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.config.choices import Encoding, Split
from stepladder.data.reading.reader import Reader
from stepladder.data.store.manifest import load_manifest
from stepladder.data.store.store import Store, StoreSplit, verify_store
from stepladder.data.store.verify import damaged_shards
from stepladder.errors import DataError, ResourceError

NUM_FLIPS = 200


def train_of(folder: Path) -> StoreSplit:
    split = Store.open(folder).split(Split.TRAIN)
    assert split is not None
    return split


def read_all(split: StoreSplit) -> None:
    for _ in Reader(split, seed=0, global_batch_size=16).epoch(0):
        pass


@pytest.mark.parametrize("encoding", list(Encoding))
def test_two_hundred_flipped_bytes_of_pictures_are_all_found(
    tmp_path: Path, build_store: Any, encoding: Encoding
) -> None:
    build_store(tmp_path / "s", encoding=encoding, shards=1, size=16)
    index = train_of(tmp_path / "s")._shards[0].index
    path = tmp_path / "s" / "train-0.parquet"
    draw = random.Random(7)
    found = 0
    for _ in range(NUM_FLIPS):
        row = draw.randrange(20)
        offset = index.offsets[row] + draw.randrange(index.lengths[row])
        with path.open("r+b") as file:
            file.seek(offset)
            whole = file.read(1)
            file.seek(offset)
            file.write(bytes([whole[0] ^ 1 << draw.randrange(8)]))
        with pytest.raises(DataError, match=rf"row {row} \(.*CRC"):
            train_of(tmp_path / "s").picture(row)
        found += 1
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(whole)
    assert found == NUM_FLIPS
    assert verify_store(tmp_path / "s") == []


def test_verify_finds_a_flip_anywhere_in_a_store(tmp_path: Path, build_store: Any) -> None:
    build_store(tmp_path / "s", num_rows={"train": 6}, shards=1)
    draw = random.Random(3)
    for path in sorted((tmp_path / "s").iterdir()):
        whole = path.read_bytes()
        for _ in range(60):
            offset = draw.randrange(len(whole))
            flipped = bytes([whole[offset] ^ 1 << draw.randrange(8)])
            path.write_bytes(whole[:offset] + flipped + whole[offset + 1 :])
            assert verify_store(tmp_path / "s"), f"{path.name}: byte {offset}"
        path.write_bytes(whole)
    assert verify_store(tmp_path / "s") == []


def test_a_shard_cut_while_it_is_read_is_an_error(tmp_path: Path, build_store: Any) -> None:
    build_store(tmp_path / "s")
    rows = train_of(tmp_path / "s")
    rows.picture(3)
    os.truncate(tmp_path / "s" / "train-0.parquet", 100)
    with pytest.raises(DataError, match="truncated or replaced"):
        rows.picture(3)
    with pytest.raises(DataError, match="truncated or replaced"):
        read_all(rows)


CUT_INDEX = """
import os, sys
from pathlib import Path
from stepladder.config.choices import Split
from stepladder.data.store.store import Store
from stepladder.errors import DataError
folder = Path(sys.argv[1])
rows = Store.open(folder).split(Split.TRAIN)
if sys.argv[2] != "first":
    rows.picture(0)
os.truncate(folder / "train-0.parquet.index", 0)
if sys.argv[2] == "unchecked":
    rows._shards[0].index.offsets[0]
else:
    try:
        rows.picture(0)
    except DataError as error:
        print(error)
        sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(
    ("mode", "encoding", "code"),
    [
        ("first", Encoding.PIXELS, 3),
        ("later", Encoding.JPEG, 3),  # cached pixels need no index
        ("unchecked", Encoding.JPEG, -signal.SIGBUS),
    ],
)
def test_a_cut_index_does_not_kill_the_process(
    tmp_path: Path, build_store: Any, mode: str, encoding: Encoding, code: int
) -> None:
    """Without the check, reading the mapping ends with SIGBUS, so the check matters."""
    build_store(tmp_path / "s", encoding=encoding)
    words = [sys.executable, "-c", CUT_INDEX, str(tmp_path / "s"), mode]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert (
        "train-0.parquet.index: this file of the store was truncated or replaced" in done.stdout
    ) == (code == 3)


def test_a_sector_that_cannot_be_read_is_damage_of_its_file(
    tmp_path: Path, build_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(file: int, num_bytes: int, at: int) -> bytes:
        if os.fstat(file).st_ino == bad and at > 100:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(file, num_bytes, at)

    build_store(tmp_path / "s")
    bad, pread = (tmp_path / "s" / "train-1.parquet").stat().st_ino, os.pread
    monkeypatch.setattr(os, "pread", lost)
    told = ["shard train-1.parquet: cannot be read (Input/output error)"]
    assert verify_store(tmp_path / "s") == told
    damaged = damaged_shards(tmp_path / "s", load_manifest(tmp_path / "s"))
    assert [info.name for info in damaged] == ["train-1.parquet"]


def test_too_few_file_handles_are_reported(tmp_path: Path, build_store: Any) -> None:
    build_store(tmp_path / "s", num_rows={"train": 200}, shards=64)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 20, limits[1]))
        rows = train_of(tmp_path / "s")  # raises the limit itself
        assert np.array_equal(rows.picture(0), rows.picture(0))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for handle in held:
            os.close(handle)


def test_a_hard_limit_of_file_handles_is_an_error_with_a_way_out(
    tmp_path: Path, build_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_store(tmp_path / "s", num_rows={"train": 200}, shards=64)
    monkeypatch.setattr("stepladder.data.store.store._allow_files", lambda num_more: None)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 20, limits[1]))
        with pytest.raises(ResourceError, match=r"too many open files[\s\S]*ulimit -n"):
            train_of(tmp_path / "s")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_folder_that_cannot_be_written_to_is_read_without_its_index(
    tmp_path: Path, build_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    pictures = build_store(tmp_path / "s")
    (tmp_path / "s" / "train-0.parquet.index").unlink()
    monkeypatch.setattr("stepladder.data.store.shard.write_bytes", refuse)
    assert np.array_equal(train_of(tmp_path / "s").picture(0), pictures["train"][0])
    assert not (tmp_path / "s" / "train-0.parquet.index").exists()

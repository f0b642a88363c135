"""Hashes of source files: when they can be reused without hashing again."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.data.prepare.hashing import Hashed

WRITTEN = b"a picture"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "picture.jpg"
    path.write_bytes(WRITTEN)
    return path


def seen(path: Path) -> Hashed:
    status = os.stat(path)  # noqa: PTH116
    stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
    return Hashed(hashlib.sha256(WRITTEN).digest(), stamp, changed_ns=status.st_ctime_ns)


def test_a_file_that_nothing_touched_is_not_hashed_again(file: Path) -> None:
    assert seen(file).holds(b"never read", str(file), file.stat())


def test_a_file_hashed_soon_after_a_change_is_hashed_again(file: Path) -> None:
    unsettled = replace(seen(file), changed_ns=None)
    assert unsettled.holds(WRITTEN, str(file), file.stat())
    assert not unsettled.holds(b"other", str(file), file.stat())


def test_a_change_shows_though_size_time_and_inode_are_put_back(file: Path) -> None:
    before = file.stat()
    hashed = replace(seen(file), changed_ns=before.st_ctime_ns - 1)  # the clock is coarse
    file.write_bytes(b"a PICTURE")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == hashed.stamp
    assert not hashed.holds(b"a PICTURE", str(file), after)


def test_a_change_between_status_and_read_shows(file: Path) -> None:
    hashed, before = seen(file), file.stat()
    file.write_bytes(b"another, longer picture")
    assert not hashed.holds(b"another, longer picture", str(file), before)


def test_a_file_only_touched_still_holds(file: Path) -> None:
    hashed = seen(file)
    os.utime(file, ns=(0, 0))
    assert hashed.holds(WRITTEN, str(file), file.stat())

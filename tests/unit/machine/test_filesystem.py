from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from stepladder.machine.filesystem import (
    FileCalls,
    find_abilities,
    is_far,
    kind_of,
    nearest_folder,
)

CALLS = {
    "link": ("has_hard_links",),
    "rename": ("has_folder_rename",),
    "replace": ("has_file_rename",),
    "lock": ("has_locks",),
    "sync": ("has_sync",),
    "sync_folder": ("has_folder_sync",),
    "write_at": ("has_random_writes",),
    "map": ("has_mapping",),
}


def test_a_local_disk_does_all_and_nothing_is_left(tmp_path: Path) -> None:
    abilities = find_abilities(tmp_path)
    assert abilities is not None
    assert abilities.is_plain
    assert abilities.can_hold_work
    assert abilities.missing() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EIO])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_is_found(tmp_path: Path, call: str, number: int) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, "no")

    calls = FileCalls()
    setattr(calls, call, fail)
    abilities = find_abilities(tmp_path, calls)
    assert abilities is not None
    assert abilities.is_plain == (call in {"link", "sync_folder"})
    lacking = {name for names in CALLS.values() for name in names if not getattr(abilities, name)}
    assert lacking == set(CALLS[call])
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_does_nothing_is_found(tmp_path: Path) -> None:
    calls = FileCalls()
    calls.write_at = lambda handle, data, at: None  # type: ignore[method-assign]
    abilities = find_abilities(tmp_path, calls)
    assert abilities is not None
    assert abilities.missing() == ["files do not support random writes"]


def test_locks_that_everybody_gets_are_not_locks(tmp_path: Path) -> None:
    calls = FileCalls()
    calls.lock = lambda handle: None  # type: ignore[method-assign]
    abilities = find_abilities(tmp_path, calls)
    assert abilities is not None
    assert abilities.missing() == ["files cannot be locked"]


def test_concurrent_probes_do_not_conflict(tmp_path: Path) -> None:
    """Processes of two containers may have the same pid."""
    calls = FileCalls()
    others: list[Any] = []
    calls.sync = lambda handle: others.append(find_abilities(tmp_path))  # type: ignore[method-assign]
    found = [find_abilities(tmp_path, calls), *others]
    assert [abilities is not None and abilities.is_plain for abilities in found] == [True, True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "far"),
    [("ext4", False), ("fuseblk", False), ("fuse.s3fs", True), ("nfs4", True), ("9p", True)],
)
def test_a_network_is_recognized_by_its_kind(tmp_path: Path, kind: str, far: bool) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"it / {kind} rw 0 0\n")
    assert is_far(tmp_path, mounts) == far


def test_where_nothing_can_be_written_nothing_is_said(tmp_path: Path) -> None:
    assert find_abilities(tmp_path / "absent") is None


def test_the_kind_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    inner = tmp_path / "a b"
    inner.mkdir()
    escaped = str(inner).replace(" ", "\\040")
    mounts.write_text(
        f"/dev/sda / ext4 rw 0 0\nbucket {escaped} fuse.s3fs rw 0 0\nproc /proc proc rw 0 0\n"
    )
    assert kind_of(inner / "deep", mounts) == "fuse.s3fs"
    assert kind_of(tmp_path / "a", mounts) == "ext4"
    assert kind_of(tmp_path, tmp_path / "absent") == ""


def test_the_nearest_folder_is_there(tmp_path: Path) -> None:
    assert nearest_folder(tmp_path / "not" / "yet") == tmp_path
    assert nearest_folder(tmp_path) == tmp_path

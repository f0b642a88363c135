"""File systems with missing features: detected by trying, and checkpoints work anyway."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from stepladder.errors import ResourceError
from stepladder.machine.filesystem import FileCalls, FolderAbilities
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.folder_checks import limits, probe, require_space

FROZEN = {"trunk": torch.arange(4.0)}


class NoLinks(FileCalls):
    """Like FAT and many network shares."""

    def link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")


class NoFolderRename(FileCalls):
    """Like FUSE mounts of object stores."""

    def rename(self, source: Path, target: Path) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")


class NoFolderSync(FileCalls):
    """Like some FUSE mounts."""

    def sync_folder(self, folder: Path) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


class NoLocks(FileCalls):
    """Like NFS without a lock service."""

    def lock(self, handle: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")


class Nothing(NoLinks, NoFolderRename, NoFolderSync, NoLocks):
    """The minimum that a run needs."""


ALL_OPS = [FileCalls, NoLinks, NoFolderRename, NoFolderSync, NoLocks, Nothing]


def step(number: int) -> str:
    return f"step-{number:09d}"


def make(folder: Path, ops: FileCalls) -> Checkpoints:
    folder.mkdir(exist_ok=True)
    return Checkpoints(folder, file_system=probe(folder, ops), ops=ops)


def save(checkpoints: Checkpoints, number: int, *, value: float = 0.0) -> None:
    tensors = {"model": {"w": torch.full((3,), value)}}
    checkpoints.save(step(number), tensors, {"value": value}, FROZEN)


@pytest.mark.parametrize(
    ("ops", "wanted"),
    [
        (FileCalls(), FolderAbilities()),
        (NoLinks(), FolderAbilities(has_hard_links=False)),
        (NoFolderRename(), FolderAbilities(has_folder_rename=False)),
        (NoFolderSync(), FolderAbilities(has_folder_sync=False)),
        (NoLocks(), FolderAbilities(has_locks=False)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_probe_finds_what_works_and_leaves_nothing(
    tmp_path: Path, ops: FileCalls, wanted: FolderAbilities
) -> None:
    assert probe(tmp_path, ops) == wanted
    assert list(tmp_path.iterdir()) == []
    assert len(limits(wanted)) == (wanted != FolderAbilities())


def test_the_probe_names_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="cannot write files"):
        probe(tmp_path / "missing")


@pytest.mark.parametrize("ops", ALL_OPS)
def test_saving_loading_replacing_and_pruning_work_everywhere(
    tmp_path: Path, ops: type[FileCalls]
) -> None:
    checkpoints = make(tmp_path / "c", ops())
    for number in (1, 2, 3):
        save(checkpoints, number, value=number)
    save(checkpoints, 3, value=33)
    checkpoints.prune([])
    later = make(tmp_path / "c", ops())
    loaded = later.newest()
    assert loaded is not None
    assert loaded.state == {"value": 33}
    assert loaded.frozen["trunk"].equal(FROZEN["trunk"])
    assert later.names() == [step(2), step(3)]
    assert later.verify() == checkpoints.warnings == later.warnings == []
    assert [path.name for path in (tmp_path / "c").glob(".*")] == []


def test_a_kill_in_the_middle_of_a_manifest_leaves_the_one_before_readable(tmp_path: Path) -> None:
    """Files are then written in place: the new manifest may be incomplete at any byte."""
    folder = tmp_path / "c"
    checkpoints = make(folder, NoFolderRename())
    save(checkpoints, 1, value=1)
    whole = (folder / step(1) / "MANIFEST.json").read_bytes()
    shutil.copytree(folder / step(1), folder / f".{step(1)}.99999999.old")
    for num_bytes in (0, 1, len(whole) // 2, len(whole) - 1):
        (folder / step(1) / "MANIFEST.json").write_bytes(whole[:num_bytes])
        assert make(folder, NoFolderRename()).load(step(1)).state == {"value": 1}
    save(make(folder, NoFolderRename()), 2, value=2)
    later = make(folder, NoFolderRename())
    assert later.load(step(1)).state == {"value": 1}
    assert later.verify() == []


@pytest.mark.parametrize("ops", ALL_OPS)
def test_a_failed_replacement_leaves_the_old_one_readable(
    tmp_path: Path, ops: type[FileCalls]
) -> None:
    class Full(ops):  # type: ignore[misc, valid-type]
        """Has no space left at the moment of commit."""

        is_full = False

        def sync_folder(self, folder: Path) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full = Full()
    checkpoints = make(tmp_path / "c", full)
    save(checkpoints, 1, value=1)
    full.is_full = True
    with pytest.raises(ResourceError, match="No space left"):
        save(checkpoints, 1, value=2)
    full.is_full = False
    loaded = make(tmp_path / "c", full).newest()
    assert loaded is not None
    assert loaded.state == {"value": 1}


@pytest.mark.parametrize("num_files", range(3))
def test_without_folder_rename_a_half_written_folder_is_not_a_checkpoint(
    tmp_path: Path, num_files: int
) -> None:
    checkpoints = make(tmp_path / "c", NoFolderRename())
    save(checkpoints, 1, value=1)
    (tmp_path / "c" / step(2)).mkdir()
    for file in sorted((tmp_path / "c" / step(1)).iterdir())[1 : 1 + num_files]:
        (tmp_path / "c" / step(2) / file.name).write_bytes(file.read_bytes())
    later = make(tmp_path / "c", NoFolderRename())
    loaded = later.newest()
    assert loaded is not None
    assert loaded.name == step(1)
    assert later.warnings == []
    save(later, 3, value=3)
    assert later.names() == [step(1), step(3)]


def test_without_folder_rename_only_a_first_half_written_folder_is_a_new_run(
    tmp_path: Path,
) -> None:
    checkpoints = make(tmp_path / "c", NoFolderRename())
    (tmp_path / "c" / step(1)).mkdir()
    assert checkpoints.newest() is None


def test_without_folder_rename_a_replacement_killed_halfway_loses_nothing(tmp_path: Path) -> None:
    checkpoints = make(tmp_path / "c", NoFolderRename())
    save(checkpoints, 1, value=1)

    class Snapshot(dict[str, torch.Tensor]):
        """Copies the disk before each write, as a kill at that moment would leave it."""

        def items(self) -> Any:
            shutil.copytree(tmp_path / "c", tmp_path / "killed")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(step(1), {"model": Snapshot()}, {"value": 2}, {})
    for folder in (tmp_path / "killed", tmp_path / "c"):
        assert not (folder / step(1) / "MANIFEST.json").exists()
        later = make(folder, NoFolderRename())
        loaded = later.newest()
        assert loaded is not None
        assert loaded.state == {"value": 1}
        save(later, 1, value=3)
        assert later.load(step(1)).state == {"value": 3}
        assert [path.name for path in folder.glob(".*")] == []


def test_links_that_stop_working_are_replaced_by_files(tmp_path: Path) -> None:
    class TooMany(FileCalls):
        """Refuses the link after the probe found that links work."""

        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.EMLINK, "Too many links")

    checkpoints = Checkpoints(tmp_path / "c", ops=TooMany())
    for number in (1, 2):
        save(checkpoints, number)
    assert checkpoints.verify() == []


def test_old_checkpoints_that_cannot_be_removed_are_a_warning(tmp_path: Path) -> None:
    class Stuck(FileCalls):
        """Refuses to rename existing checkpoints."""

        def rename(self, source: Path, target: Path) -> None:
            if source.name.startswith("step-"):
                raise OSError(errno.EBUSY, "Device or resource busy")
            super().rename(source, target)

    checkpoints = Checkpoints(tmp_path / "c", keep_last=1, ops=Stuck())
    for number in (1, 2):
        save(checkpoints, number)
    checkpoints.prune([])
    assert len(checkpoints.warnings) == 1
    assert checkpoints.names() == [step(1), step(2)]


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    require_space(tmp_path, 1, purpose="a checkpoint")
    with pytest.raises(ResourceError, match=r"disk space for a checkpoint: .* MB free"):
        require_space(tmp_path, 1 << 60, purpose="a checkpoint")

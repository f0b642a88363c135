"""Full disks, file size limits and read-only folders, all real."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from stepladder.errors import ResourceError
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.folder_checks import probe
from stepladder.training.setup.run_folder import RunFolder

NOBODY = 65534
SMALL, LARGE = torch.zeros(1000), torch.zeros(1_000_000)  # 4 kB, 4 MB


@contextmanager
def as_nobody() -> Iterator[None]:
    """Drop root's permission to write everywhere, if running as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can access, unlike pytest's own."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    yield path
    for folder in (path, *path.rglob("*")):
        folder.chmod(0o777)
    shutil.rmtree(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "stepladder-test", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def save(checkpoints: Checkpoints, number: int, weights: torch.Tensor) -> None:
    tensors = {"model": {"w": weights}}
    checkpoints.save(f"step-{number:09d}", tensors, {"number": number}, {"f": SMALL})


def fill(disk: Path) -> None:
    """Fill the file system completely."""
    with (disk / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def assert_only_the_first_is_there(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    assert checkpoints.names() == ["step-000000001"]
    assert checkpoints.verify() == []
    assert [path.name for path in folder.glob(".*")] == []


@pytest.mark.parametrize("part", ["tensors", "state", "frozen"])
def test_a_full_disk_is_loud_and_the_old_checkpoint_stays(small_disk: Path, part: str) -> None:
    folder = small_disk / "checkpoints"
    checkpoints = Checkpoints(folder, keep_last=1)
    save(checkpoints, 1, SMALL)
    with pytest.raises(ResourceError, match="No space left") as caught:
        checkpoints.save(
            "step-000000002",
            {"model": {"w": LARGE if part == "tensors" else SMALL}},
            {"text": "x" * 2_000_000 if part == "state" else ""},
            {"f": LARGE if part == "frozen" else SMALL},
        )
    assert caught.value.exit_code == 4
    assert "free some space" in str(caught.value)
    checkpoints.prune([])
    assert_only_the_first_is_there(folder)
    save(checkpoints, 3, SMALL)
    assert checkpoints.load("step-000000003").state == {"number": 3}


def test_a_disk_without_a_free_byte_refuses_the_smallest_checkpoint(small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    checkpoints = Checkpoints(folder)
    save(checkpoints, 1, SMALL)
    fill(small_disk)
    with pytest.raises(ResourceError):
        save(checkpoints, 2, SMALL)
    assert_only_the_first_is_there(folder)


def test_a_limit_on_file_sizes_is_loud_and_the_old_checkpoint_stays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1, SMALL)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(ResourceError, match="File too large"):
            save(checkpoints, 2, LARGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_only_the_first_is_there(tmp_path)


def test_a_folder_that_became_read_only_is_loud(open_folder: Path) -> None:
    folder = open_folder / "checkpoints"
    with as_nobody():
        checkpoints = Checkpoints(folder)
        save(checkpoints, 1, SMALL)
        folder.chmod(0o555)
        with pytest.raises(ResourceError, match="Permission denied"):
            save(checkpoints, 2, SMALL)
    assert_only_the_first_is_there(folder)


def test_a_checkpoint_that_may_not_be_read_is_not_damage(open_folder: Path) -> None:
    with as_nobody():
        checkpoints = Checkpoints(open_folder / "checkpoints")
        save(checkpoints, 1, SMALL)
        (open_folder / "checkpoints" / "step-000000001" / "state.json").chmod(0)
        with pytest.raises(ResourceError, match="no permission to read the file"):
            checkpoints.newest()


def test_a_read_only_run_folder_is_found_at_the_start(open_folder: Path) -> None:
    with as_nobody():
        (open_folder / "run").mkdir()
        (open_folder / "run").chmod(0o555)
        with pytest.raises(ResourceError, match=r"Permission denied[\s\S]*--run\.dir"):
            RunFolder(open_folder / "run")
        with pytest.raises(ResourceError, match="Permission denied"):
            RunFolder(open_folder / "run" / "inner")


def test_a_full_disk_is_found_at_the_start(small_disk: Path) -> None:
    (small_disk / "run").mkdir()
    fill(small_disk)
    with pytest.raises(ResourceError, match="No space left"):
        probe(small_disk / "run")

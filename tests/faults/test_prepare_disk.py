"""A full or read-only disk, and two prepares in one place: clear errors, no lost work."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import resource
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.prepare import prepare
from stepladder.data.prepare.work_folder import WorkFolder, disk_errors_named
from stepladder.data.prepare.writer import ShardWriter
from stepladder.data.store.verify import verify_store
from stepladder.errors import DataError, ResourceError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    random = np.random.default_rng(0)
    for idx in range(30):
        folder = root / f"class {idx % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 255, size=(4, 5, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((50, 40)).save(folder / f"{idx}.png")
    return root


def config_of(source: Path, **options: object) -> PrepareConfig:
    settings = {"size": 32, "workers": 2, **options}
    return PrepareConfig(source=source, out=source.parent / "store", **settings)


def run_alone(
    server: ForkServerContext, script: str, *words: object, said: Path
) -> tuple[int, str]:
    """Run a script, which can use `words`, in its own process; return its exit code and output."""
    words_to_file = f"""
import os
os.dup2(os.open({str(said)!r}, os.O_CREAT | os.O_WRONLY), 1)
os.dup2(1, 2)
"""
    process = server.Process(target=exec, args=(words_to_file + script, {"words": words}))
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode, said.read_text()


SMALL_FILES = """
import resource
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.prepare import prepare
from stepladder.errors import ResourceError
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
try:
    prepare(PrepareConfig(source=words[0], out=words[0].parent / "store", size=32, workers=2))
except ResourceError as error:
    print(error.exit_code, error)
"""


def test_a_file_that_may_not_grow_is_a_loud_error_and_work_is_kept(
    source: Path, server: ForkServerContext
) -> None:
    code, said = run_alone(server, SMALL_FILES, source, said=source.parent / "said")
    assert code == 0
    assert said.startswith("4 ")
    assert "the disk is full" in said
    assert "same command again" in said
    assert not (source.parent / "store").exists()
    assert (source.parent / "store.partial").is_dir()
    prepare(config_of(source))
    assert verify_store(source.parent / "store") == []


@pytest.mark.parametrize("row", [1, 9, 30])
def test_one_of_several_files_that_fails_ends_all_and_the_rest_is_kept(
    source: Path, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepladder.data.prepare.plan.MAX_MEAN_SHARD_BYTES", 12_000)  # many files
    add_page = ShardWriter.add_page
    rows = itertools.count(1)

    def fail(self: ShardWriter, **page: Any) -> None:
        if next(rows) == row:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        add_page(self, **page)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "add_page", fail)
        with pytest.raises(ResourceError, match="the disk is full"):
            prepare(config_of(source))
    store = source.parent / "store.partial" / "store"
    assert not list(store.glob(".*"))  # no partial files are left
    recorded = {path.stem for path in store.with_name("records").iterdir()}
    kept = {name: (store / name).stat().st_mtime_ns for name in recorded}
    assert kept or row < 30
    prepare(config_of(source))
    made = source.parent / "store"
    assert all((made / name).stat().st_mtime_ns == time for name, time in kept.items())
    assert verify_store(made) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_distinguished_from_other_errors(tmp_path: Path, code: int) -> None:
    work = WorkFolder(tmp_path / "store.partial")
    with pytest.raises(ResourceError, match="the disk is full"), disk_errors_named(work):
        raise OSError(code, os.strerror(code))
    with pytest.raises(OSError, match="odd"), disk_errors_named(work):
        raise OSError(errno.EIO, "odd")


def test_a_second_prepare_in_the_same_place_is_refused(source: Path) -> None:
    work = WorkFolder.beside(source.parent / "store")
    with work.held(), pytest.raises(ResourceError, match=f"pid {os.getpid()}") as caught:
        prepare(config_of(source))
    assert f"kill {os.getpid()}" in str(caught.value)
    prepare(config_of(source))  # available again


def test_a_lock_of_a_dead_process_holds_nothing(source: Path) -> None:
    work = WorkFolder.beside(source.parent / "store")
    work.make()
    (work.root / "lock").write_text("999999\n")
    prepare(config_of(source))
    assert verify_store(source.parent / "store") == []


AS_NOBODY = """
import os, sys
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.prepare import prepare
from stepladder.errors import StepladderError
source, out, max_bad = words
if os.getuid() == 0:
    # once as root, so that every module is imported: nobody may not read them everywhere
    prepare(PrepareConfig(source=source, out=source.parent / f"warm{os.getpid()}", size=16))
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    prepare(PrepareConfig(source=source, out=out, size=32, max_bad=max_bad))
except StepladderError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def as_nobody(source: Path, server: ForkServerContext) -> Callable[..., tuple[int, str]]:
    """Prepare as a user who owns nothing; return the exit code and output."""
    own = [up for up in source.parents if up.name.startswith(("pytest-", "popen-"))]
    for folder in (source.parent, *own):
        folder.chmod(0o755)  # pytest's own folders are private to the user

    def run(out: Path, *, max_bad: float) -> tuple[int, str]:
        said = source.parent / f"said {max_bad}"
        return run_alone(server, AS_NOBODY, source, out, max_bad, said=said)

    return run


def test_files_without_permission_are_listed_and_count_as_bad(
    source: Path, as_nobody: Callable[..., tuple[int, str]]
) -> None:
    (source / "class 0" / "4.png").chmod(0)
    place = source.parent / "open"
    place.mkdir()
    place.chmod(0o777)
    code, said = as_nobody(place / "store", max_bad=0.01)
    assert code == DataError.exit_code
    assert "'class 0/4.png': cannot be read: Permission denied" in said
    assert "Traceback" not in said
    assert as_nobody(place / "store", max_bad=0.1)[0] == 0
    assert "class 0/4.png,cannot be read" in (place / "store" / "quarantine.csv").read_text()


def test_a_place_that_may_not_be_written_is_named(
    source: Path, as_nobody: Callable[..., tuple[int, str]]
) -> None:
    place = source.parent / "closed"
    place.mkdir()
    place.chmod(0o555)
    code, said = as_nobody(place / "store", max_bad=0.01)
    assert code == ResourceError.exit_code
    assert "cannot write here" in said
    assert str(place / "store.partial") in said


@pytest.mark.parametrize("place", ["file/store", "file/deep/store", "/proc/store", "x" * 300])
def test_a_place_where_no_folder_can_be_is_named(place: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cannot create a folder here") as caught:
        prepare(dataclasses.replace(config_of(source), out=tmp_path / place))
    assert "choose another --out" in str(caught.value.fix)


def test_few_file_handles_are_enough(source: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 24, before[1]))
    try:
        prepare(config_of(source))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert verify_store(source.parent / "store") == []

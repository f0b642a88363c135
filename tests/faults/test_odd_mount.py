"""Data on a mount without rename, lock, sync, mmap or random writes stays intact."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import killed_training
import odd_mount

from stepladder.config.choices import Split
from stepladder.config.options import JobConfig, PrepareConfig, RunConfig
from stepladder.config.recipe import Recipe, ScheduleConfig
from stepladder.data.features.feature_files import FeatureFolder
from stepladder.data.prepare.prepare import prepare
from stepladder.data.remote.cache import FileCache
from stepladder.data.remote.cache_folder import cache_folder
from stepladder.data.remote.copies import FolderCopies, copy_folder
from stepladder.data.remote.upload import MARKER
from stepladder.data.store.manifest import MANIFEST_NAME
from stepladder.data.store.publish import publish_as_delta
from stepladder.data.store.repair import repair_store
from stepladder.data.store.store import Store
from stepladder.data.store.verify import verify_store
from stepladder.data.tables.cache_users import MANIFEST as WRITTEN
from stepladder.data.tables.cache_users import Hold, is_left
from stepladder.errors import ResourceError, UsageError
from stepladder.machine.filesystem import find_abilities
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.folder_checks import probe
from stepladder.training.output.display import Display
from stepladder.training.run import train


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real FUSE mount."""
    backing, point = tmp_path_factory.mktemp("backing"), tmp_path_factory.mktemp("mount")
    with odd_mount.serving(backing, point) as is_there:
        if not is_there:
            pytest.skip("cannot mount: needs root and /dev/fuse")
        yield point


@pytest.fixture
def mount(mounted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A test folder on the mount, and a work folder on a disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    folder = mounted / tmp_path.name
    folder.mkdir()
    return folder


def test_what_it_lacks_is_found(mount: Path) -> None:
    abilities = find_abilities(mount)
    assert abilities is not None
    assert abilities.kind == "fuse.odd"
    assert abilities.is_far
    assert abilities.missing() == [
        "folders cannot be renamed",
        "files cannot be locked",
        "files cannot be synced",
        "files do not support random writes",
        "files cannot be memory-mapped",
    ]
    assert list(mount.iterdir()) == []


def test_a_store_on_it_is_the_one_on_a_disk(mount: Path, photos: Path, tmp_path: Path) -> None:
    here = prepare(PrepareConfig(source=photos, out=tmp_path / "store", size=16))
    result = prepare(PrepareConfig(source=photos, out=mount / "store", size=16))
    assert result.manifest == here.manifest
    assert verify_store(mount / "store") == []
    assert not (mount / "store" / MARKER).exists()
    assert not list((tmp_path / "tmp").glob("*/*.partial"))
    assert prepare(PrepareConfig(source=photos, out=mount / "store", size=16)).is_up_to_date
    with pytest.raises(UsageError, match="made from other pictures or options: size"):
        prepare(PrepareConfig(source=photos, out=mount / "store", size=24))
    prepare(PrepareConfig(source=photos, out=mount / "store", size=24, overwrite=True))
    assert verify_store(mount / "store") == []


def test_a_damaged_store_on_it_is_repaired(mount: Path, photos: Path, tmp_path: Path) -> None:
    out = mount / "store"
    manifest = prepare(PrepareConfig(source=photos, out=out, size=16)).manifest
    shard = out / manifest.shards[0].name
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-99])
    assert repair_store(out) == [shard.name]
    assert shard.read_bytes() == whole
    assert verify_store(out) == []
    assert [path.name for path in mount.iterdir()] == ["store"]
    assert not list((tmp_path / "tmp").glob("*/*.partial"))


def test_a_store_on_it_is_read_as_one_on_a_disk(
    mount: Path, build_store: Any, tmp_path: Path
) -> None:
    pictures = build_store(tmp_path / "store", size=16)["train"]
    copy_folder(tmp_path / "store", FolderCopies(mount / "store"), last=MANIFEST_NAME)
    split = Store.open(mount / "store").split(Split.TRAIN)
    assert split is not None
    assert not split.is_near
    for _ in range(2):  # the second time, pages are verified and would be mapped
        read = np.empty_like(pictures)
        split.read_into(np.arange(len(pictures)), read)
        assert np.array_equal(read, pictures)


def test_features_on_it_are_written_elsewhere_and_copied(mount: Path, tmp_path: Path) -> None:
    folder = FeatureFolder(mount / "store.features", {"trunk": "t"})
    features, targets = torch.randn(5, 3), torch.arange(5)
    with folder.writing(5) as writer:
        assert writer is not None
        writer.append(features[:2], targets[:2], seconds=1)
        writer.append(features[2:], targets[2:], seconds=1)
        writer.publish()
    held = FeatureFolder(mount / "store.features", {"trunk": "t"}).load()
    assert held is not None
    assert torch.equal(held.features, features)
    assert [path.name for path in (mount / "store.features").iterdir()] == [folder.path.name]


def test_checkpoints_on_it_are_saved_replaced_and_pruned(mount: Path) -> None:
    run = mount / "run"
    run.mkdir()
    checkpoints = Checkpoints(run / "checkpoints", keep_last=2, file_system=probe(run))
    weights = {"model": {"weight": torch.ones(3)}}
    for step in (1, 2, 3, 3):
        checkpoints.save(f"step-{step:09d}", weights, {"step": step}, {"frozen": torch.zeros(4)})
        checkpoints.prune(())
    assert checkpoints.names() == ["step-000000002", "step-000000003"]
    assert checkpoints.verify() == []
    loaded = checkpoints.newest()
    assert loaded is not None
    assert loaded.state["step"] == 3


def test_the_cache_is_not_put_on_it(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="does not support file locks"):
        FileCache(mount / "cache", 1000)
    monkeypatch.chdir(mount)
    assert cache_folder(None).is_relative_to(tempfile.gettempdir())


def test_a_run_on_it_ends_and_its_checkpoints_are_whole(mount: Path) -> None:
    job = JobConfig(
        recipe=Recipe(schedule=ScheduleConfig(max_epochs=1)),
        run=RunConfig(dir=mount / "run", checkpoint_every_s=0, system_every_s=60),
    )
    display = Display(io.StringIO())
    summary = train(job, killed_training.Killed(), task_name="killed", display=display)
    assert summary["status"] == "finished"
    assert Checkpoints(mount / "run" / "checkpoints").verify() == []


HOLDER = """
import sys
from pathlib import Path
from stepladder.data.tables.cache_users import Hold
hold = Hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_what_another_process_reads_there_is_not_removed(mount: Path) -> None:
    folder = mount / "key"
    folder.mkdir()
    for name in (WRITTEN, "_SUCCESS", "part.parquet"):
        (folder / name).write_text("{}")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        hold = Hold(folder)
        hold.release(is_removed=True)
        assert (folder / WRITTEN).exists()
        assert not is_left(folder)
        other.kill()
    assert is_left(folder)  # a killed process holds no locks
    (folder / "_held.elsewhere.1.abcd").touch()
    assert not is_left(folder)  # unknown owner
    (folder / "_held.elsewhere.1.abcd").unlink()
    first, last = Hold(folder), Hold(folder)
    first.release(is_removed=True)
    assert folder.exists()
    last.release(is_removed=True)
    assert not folder.exists()


def test_what_a_killed_process_began_to_write_there_is_left(mount: Path) -> None:
    folder = mount / "key.0"
    (folder / "_temporary").mkdir(parents=True)
    assert not is_left(folder)
    with subprocess.Popen(["true"]) as gone:
        pass
    (folder / f"_held.{socket.gethostname()}.{gone.pid}.abcd").touch()
    assert is_left(folder)


def test_a_log_that_cannot_be_written_leaves_nothing(mount: Path, photos: Path) -> None:
    store = mount / "store"
    prepare(PrepareConfig(source=photos, out=store, size=16))
    before = sorted(store.iterdir())
    with pytest.raises(ResourceError, match="cannot write the Delta log here") as caught:
        publish_as_delta(store)
    assert "Copy the store" in str(caught.value.fix)
    assert sorted(store.iterdir()) == before

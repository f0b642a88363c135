"""Damaged and hostile checkpoints: every flipped byte is detected, and no pickle is opened."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stepladder.errors import DataError
from stepladder.training.checkpoint.checkpoint import Checkpoints

NUM_FLIPS_A_FILE = 34
OLD, NEW = "step-000000001", "step-000000002"
FILES = (
    "MANIFEST.json",
    "frozen.safetensors",
    "model.safetensors",
    "optimizer.safetensors",
    "random.safetensors",
    "state.json",
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints, each with its own frozen file, so that a flip affects only one."""
    folder = tmp_path_factory.mktemp("sound")
    torch.manual_seed(0)
    checkpoints = Checkpoints(folder)
    frozen = {"trunk": torch.randn(8, 3)}
    for value, name in enumerate((OLD, NEW)):
        tensors = {
            "model": {"w": torch.randn(5, 7), "b": torch.randn(5)},
            "optimizer": {"0.exp_avg": torch.randn(5, 7), "0.step": torch.tensor(2.0)},
            "random": {"torch": torch.arange(200, dtype=torch.uint8)},
        }
        checkpoints.save(name, tensors, {"value": value, "top": [], "text": "ä"}, frozen)
    shared = folder / NEW / "frozen.safetensors"
    data = shared.read_bytes()
    shared.unlink()
    shared.write_bytes(data)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def seal(folder: Path, change: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Write a manifest that matches the folder's files, as an attacker would."""
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    del manifest["sha256"]
    for name in manifest["files"]:
        if (folder / name).exists():
            data = (folder / name).read_bytes()
            sha256 = hashlib.sha256(data).hexdigest()
            manifest["files"][name] = {"bytes": len(data), "sha256": sha256}
    if change:
        change(manifest)
    plain = json.dumps(manifest, indent=2, sort_keys=True).encode()
    manifest["sha256"] = hashlib.sha256(plain).hexdigest()
    (folder / "MANIFEST.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")


def assert_falls_back(folder: Path, file: str) -> None:
    checkpoints = Checkpoints(folder)
    loaded = checkpoints.newest()
    assert loaded is not None
    assert loaded.name == OLD
    assert loaded.state["value"] == 0
    (warning,) = checkpoints.warnings
    assert warning.startswith(f"the checkpoint {NEW} is damaged")
    assert file in warning


@pytest.mark.parametrize("file", FILES)
def test_every_flipped_byte_is_found_and_the_older_checkpoint_used(folder: Path, file: str) -> None:
    path = folder / NEW / file
    sound = path.read_bytes()
    draw = random.Random(file)
    for _ in range(NUM_FLIPS_A_FILE):
        data = bytearray(sound)
        data[draw.randrange(len(data))] ^= draw.randrange(1, 256)
        path.write_bytes(data)
        assert_falls_back(folder, file)
    path.write_bytes(sound)
    assert Checkpoints(folder).verify() == []


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("fault", ["empty", "half", "one byte more", "missing", "another's"])
def test_a_cut_missing_or_swapped_file_is_found(folder: Path, file: str, fault: str) -> None:
    path = folder / NEW / file
    data = path.read_bytes()
    if fault == "missing":
        path.unlink()
    elif fault == "another's":
        path.write_bytes((folder / NEW / FILES[FILES.index(file) - 1]).read_bytes())
    else:
        path.write_bytes({"empty": b"", "half": data[: len(data) // 2]}.get(fault, data + b"\n"))
    assert_falls_back(folder, file)
    assert any(file in problem for problem in Checkpoints(folder).verify())


def test_damage_in_the_shared_frozen_file_is_said_for_every_checkpoint(folder: Path) -> None:
    for name in (OLD, NEW):
        (folder / name / "frozen.safetensors").unlink()
        os.link(next(folder.glob("frozen-*")), folder / name / "frozen.safetensors")
    with next(folder.glob("frozen-*")).open("r+b") as file:
        file.seek(100)
        file.write(b"\xaa")
    with pytest.raises(DataError, match="every checkpoint of this run is damaged"):
        Checkpoints(folder).newest()


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..", "model.pt", ".x"]
)
def test_a_manifest_that_names_a_file_elsewhere_is_refused(folder: Path, name: str) -> None:
    (folder / "outside.safetensors").write_bytes((folder / NEW / "model.safetensors").read_bytes())
    entry = {"bytes": 1, "sha256": "0" * 64}
    seal(folder / NEW, lambda manifest: manifest["files"].update({name: entry}))
    assert_falls_back(folder, "MANIFEST.json")


@pytest.mark.parametrize("file", FILES)
def test_a_member_that_is_a_link_is_refused(folder: Path, file: str) -> None:
    path = folder / NEW / file
    path.rename(folder / "outside")
    path.symlink_to(folder / "outside")
    assert_falls_back(folder, "symbolic link")


def test_a_checkpoint_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / NEW).rename(tmp_path / "outside")
    (folder / NEW).symlink_to(tmp_path / "outside")
    assert_falls_back(folder, "symbolic link")


@pytest.mark.parametrize("kind", ["fifo", "folder"])
@pytest.mark.parametrize("file", FILES)
def test_a_member_that_is_not_a_file_is_refused_and_not_waited_for(
    folder: Path, file: str, kind: str
) -> None:
    path = folder / NEW / file
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert_falls_back(folder, file)


class Harm:
    """Leaves a marker file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_a_pickle_with_a_true_manifest_is_never_opened(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    path = folder / NEW / "model.safetensors"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Harm(tmp_path / "mark")))
    else:
        torch.save({"w": Harm(tmp_path / "mark")}, path)
    seal(folder / NEW)
    assert_falls_back(folder, "Python pickle")
    assert not (tmp_path / "mark").exists()


def test_a_header_of_2_to_the_40_with_a_true_manifest_takes_no_memory(folder: Path) -> None:
    (folder / NEW / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}" * 100)
    seal(folder / NEW)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_falls_back(folder, "model.safetensors")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize(
    "text", [b"[]", b"nope", b'{"a": 1', b"\xff", b"[" * 100_000], ids=lambda text: str(text[:9])
)
def test_a_state_that_is_not_an_object_is_refused(folder: Path, text: bytes) -> None:
    (folder / NEW / "state.json").write_bytes(text)
    seal(folder / NEW)
    assert_falls_back(folder, "state.json")


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(format_version=2),
        lambda manifest: manifest.update(files=[]),
        lambda manifest: manifest.update(files={"state.json": 3}),
        lambda manifest: manifest["files"].pop("state.json"),
        lambda manifest: manifest["files"]["state.json"].update(bytes="many"),
        lambda manifest: manifest.pop("format_version"),
    ],
    ids=["format", "list", "number", "no state", "text", "no format"],
)
def test_a_strange_manifest_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    seal(folder / NEW, change)
    assert_falls_back(folder, "MANIFEST.json")


def test_the_manifest_is_sealed_as_docs_say(folder: Path) -> None:
    """Without this, the tests above could all pass because of a wrong seal."""
    seal(folder / NEW)
    loaded = Checkpoints(folder).newest()
    assert loaded is not None
    assert loaded.name == NEW

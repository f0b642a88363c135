"""Feature files are complete or absent, identified by their inputs, and verified."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stepladder.data.features.feature_files import FeatureFolder
from stepladder.errors import DataError, ResourceError
from stepladder.records import read_json

FACTS = {"trunk": "abc", "split": "train"}
FEATURES = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(10)


def write(
    root: Path,
    features: Tensor = FEATURES,
    targets: Tensor | None = TARGETS,
    *,
    stop: int | None = None,
) -> FeatureFolder:
    """Write in batches of four, and stop before row `stop`."""
    place = FeatureFolder(root, FACTS)
    with place.writing(len(features)) as writer:
        assert writer is not None
        for start in range(writer.num_done, len(features), 4):
            if stop is not None and start >= stop:
                raise KeyboardInterrupt
            rows = slice(start, start + 4)
            part = None if targets is None else targets[rows]
            writer.append(features[rows], part, seconds=0.5)
        writer.publish()
    return place


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64]
)
def test_what_is_written_comes_back_to_the_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    features = (100 * FEATURES).to(dtype)
    found = write(tmp_path, features).load()
    assert found is not None
    assert found.features.dtype is dtype
    assert torch.equal(found.features, features)
    assert found.targets is not None
    assert torch.equal(found.targets, TARGETS)
    assert found.seconds == 1.5


def test_bfloat16_takes_two_bytes_a_number_and_numpy_can_tell_what_it_is(tmp_path: Path) -> None:
    features = FEATURES.bfloat16()
    stored = np.load(write(tmp_path, features).path / "features.npy")
    assert stored.nbytes == features.nbytes == 2 * 30
    upper = stored.astype("<u4") << 16
    assert np.array_equal(upper.view("<f4"), features.float().numpy())


def test_targets_keep_their_number_format(tmp_path: Path) -> None:
    targets = FEATURES[:, 0].bfloat16()
    found = write(tmp_path, targets=targets).load()
    assert found is not None
    assert found.targets is not None
    assert found.targets.dtype is torch.bfloat16
    assert torch.equal(found.targets, targets)


def test_targets_may_be_missing_and_features_may_have_any_shape(tmp_path: Path) -> None:
    features = torch.randn(5, 2, 3, 4)
    found = write(tmp_path, features, None).load()
    assert found is not None
    assert found.targets is None
    assert torch.equal(found.features, features)


def test_anyone_can_open_the_files(tmp_path: Path) -> None:
    place = write(tmp_path)
    mapped = np.load(place.path / "features.npy", mmap_mode="r")
    assert np.array_equal(mapped, FEATURES.numpy())
    manifest = read_json(place.path / "manifest.json")
    assert manifest["trunk"] == "abc"
    assert manifest["num_rows"] == 10
    assert sorted(path.name for path in place.path.iterdir()) == [
        "features.npy",
        "manifest.json",
        "targets.npy",
    ]


def test_other_facts_are_another_place(tmp_path: Path) -> None:
    place = write(tmp_path)
    assert FeatureFolder(tmp_path, dict(reversed(FACTS.items()))).path == place.path
    assert FeatureFolder(tmp_path, {**FACTS, "split": "val"}).load() is None


@pytest.mark.parametrize("name", ["features.npy", "targets.npy"])
def test_a_flipped_bit_a_cut_file_and_a_missing_one_are_damage(name: str, tmp_path: Path) -> None:
    place = write(tmp_path)
    file = place.path / name
    whole = file.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-8], b""):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match="damaged"):
            place.load()
    file.unlink()
    with pytest.raises(DataError, match="damaged"):
        place.load()
    place.remove()
    assert place.load() is None
    assert list(tmp_path.iterdir()) == []


def test_a_partial_file_is_not_visible_and_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, stop=8)
    place = FeatureFolder(tmp_path, FACTS)
    assert place.load() is None
    with place.writing(10) as writer:
        assert writer is not None
        assert writer.num_done == 8
        writer.append(FEATURES[8:], TARGETS[8:], seconds=0.5)
        writer.publish()
    found = place.load()
    assert found is not None
    assert torch.equal(found.features, FEATURES)
    assert found.seconds == 1.5
    assert [path.name for path in tmp_path.iterdir()] == [place.path.name]


def test_rows_past_the_last_sync_are_written_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, stop=8)
    half = next(tmp_path.glob("*.partial")) / "features.npy"
    with half.open("ab") as file:
        file.write(b"half a row")
    found = write(tmp_path).load()
    assert found is not None
    assert torch.equal(found.features, FEATURES)


def test_a_partial_file_that_lost_rows_is_restarted(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, stop=8)
    half = next(tmp_path.glob("*.partial")) / "features.npy"
    os.truncate(half, half.stat().st_size - 1)
    found = write(tmp_path).load()
    assert found is not None
    assert torch.equal(found.features, FEATURES)


def _write_in_process(root: Path, results: Any) -> None:
    place = FeatureFolder(root, FACTS)
    with place.writing(len(FEATURES)) as writer:
        if writer is not None:
            for row in range(len(FEATURES)):
                writer.append(FEATURES[row : row + 1], TARGETS[row : row + 1], seconds=0.1)
            writer.publish()
    found = place.load()
    results.put((writer is not None, found is not None and torch.equal(found.features, FEATURES)))


def test_of_processes_at_once_one_writes_and_all_find_it_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_write_in_process, args=(tmp_path, results)) for _ in "123"]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(wrote for wrote, _ in found) == [False, False, True]
    assert all(is_whole for _, is_whole in found)
    assert [path.name for path in tmp_path.iterdir()] == [FeatureFolder(tmp_path, FACTS).path.name]


def test_one_who_waits_can_be_called_off(tmp_path: Path) -> None:
    class CalledOff(Exception):
        pass

    def call_off() -> None:
        raise CalledOff

    place = FeatureFolder(tmp_path, FACTS)
    with place.writing(10), pytest.raises(CalledOff), place.writing(10, on_wait=call_off):
        pass


def test_a_full_disk_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(ResourceError, match=r"features need .* are free") as caught:
        write(tmp_path)
    assert caught.value.fix is not None
    assert not list(tmp_path.rglob("*.npy"))


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cached features cannot be written"):
        write(tmp_path / "file")

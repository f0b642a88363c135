"""A store of JPEGs that was decoded once returns the same rows, pixels and batches."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.cli.commands.clean import leftovers
from stepladder.config.choices import Encoding, Fit, JpegSize, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.decode import decode_picture
from stepladder.data.prepare.prepare import prepare
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.reading.reader import Reader
from stepladder.data.store.manifest import load_manifest
from stepladder.data.store.pixel_copy import copies_folder, pixel_copy
from stepladder.data.store.store import Store, verify_store
from stepladder.errors import DataError, ResourceError

SIZE = 16


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of JPEGs more than twice as large as the target size; never changed."""
    folder = tmp_path_factory.mktemp("prepared")
    for idx in range(24):
        path = folder / "photos" / "abc"[idx % 3] / f"{idx}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = np.random.default_rng(idx).integers(0, 255, (5, 6, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((60, 45), Image.Resampling.BICUBIC)
        photo.save(path, quality=92)
    config = PrepareConfig(
        source=folder / "photos",
        out=folder / "store",
        size=SIZE,
        encoding=Encoding.JPEG,
        jpeg_size=JpegSize.ORIGINAL,
        val_frac=0.25,
    )
    return prepare(config).folder


@pytest.fixture
def store(prepared: Path, tmp_path: Path) -> Store:
    """A store of JPEGs for one test."""
    return Store.open(shutil.copytree(prepared, tmp_path / "store"))


def pictures(store: Store, split: Split = Split.TRAIN) -> np.ndarray:
    rows = store.split(split)
    assert rows is not None
    return np.stack([rows.picture(row) for row in range(len(rows))])


def test_rows_pixels_labels_and_names_are_those_of_the_original(store: Store) -> None:
    copy = pixel_copy(store)
    assert (store.manifest.encoding, copy.manifest.encoding) == ("jpeg", "pixels")
    for split in (Split.TRAIN, Split.VAL):
        ours, theirs = store.split(split), copy.split(split)
        assert ours is not None
        assert theirs is not None
        assert np.array_equal(pictures(store, split), pictures(copy, split))
        assert ours.labels.tolist() == theirs.labels.tolist()
        for row in range(len(ours)):
            assert ours.describe(row) == theirs.describe(row)
            assert ours.sha256(row) == theirs.sha256(row)


def test_shuffled_batches_are_the_same_to_the_last_bit(store: Store) -> None:
    def batches(of: Store) -> list[tuple[bytes, list[int], list[int]]]:
        source = of.split(Split.TRAIN)
        assert source is not None
        reader = Reader(source, seed=7, global_batch_size=5, threads=2)
        return [
            (batch.inputs.numpy().tobytes(), batch.targets.tolist(), batch.ids.tolist())
            for batch in reader.epoch(3)
        ]

    assert batches(store) == batches(pixel_copy(store))


def test_the_copy_is_a_sound_store_with_an_identity_of_its_own(store: Store) -> None:
    copy = pixel_copy(store)
    assert copy.path.parent == copies_folder(store.path)
    assert verify_store(copy.path) == []
    manifest = load_manifest(copy.path)
    assert copy.fingerprint == store.fingerprint != manifest.fingerprint
    train = pictures(store).astype(np.int64)
    assert manifest.channel_sum == tuple(train.sum(axis=(0, 1, 2)).tolist())
    assert manifest.channel_sq_sum == tuple((train**2).sum(axis=(0, 1, 2)).tolist())
    assert store.manifest.channel_sum == manifest.channel_sum


def test_it_is_made_once(store: Store, tmp_path: Path) -> None:
    first = pixel_copy(store, folder=tmp_path / "copies")
    made_at = (first.path / "manifest.json").stat().st_mtime_ns
    again = pixel_copy(Store.open(store.path), folder=tmp_path / "copies")
    assert again.path == first.path
    assert (again.path / "manifest.json").stat().st_mtime_ns == made_at
    assert [path.name for path in (tmp_path / "copies").iterdir()] == [first.path.name]


def test_a_full_decode_has_other_pixels_and_a_copy_of_its_own(store: Store) -> None:
    full = Store.open(store.path, is_scaled=False)
    assert full.fingerprint == store.fingerprint
    assert pixel_copy(full).path != pixel_copy(store).path
    assert np.array_equal(pictures(pixel_copy(full)), pictures(full))
    apart = np.abs(pictures(full).astype(int) - pictures(store)).mean()
    assert 0 < apart < 8


def test_a_full_decode_uses_every_pixel_of_the_file() -> None:
    rng = np.random.default_rng(0)
    buffer = io.BytesIO()
    photo = Image.fromarray(rng.integers(0, 256, (64, 64, 3)).astype(np.uint8))
    photo.save(buffer, "JPEG", quality=95)
    data = buffer.getvalue()
    scaled, full = (
        decode_picture(data, size=16, fit=Fit.PAD, is_scaled=flag) for flag in (True, False)
    )
    # for a picture no larger than needed, both decodes are the same
    same = [decode_picture(data, size=64, fit=Fit.PAD, is_scaled=flag) for flag in (True, False)]
    assert not np.array_equal(scaled, full)
    assert np.array_equal(*same)


def test_a_damaged_copy_is_made_again(store: Store) -> None:
    copy = pixel_copy(store)
    shard = copy.path / copy.manifest.shards[0].name
    shard.write_bytes(shard.read_bytes()[:-1])
    assert np.array_equal(pictures(pixel_copy(store)), pictures(store))
    assert verify_store(copy.path) == []
    (copy.path / "manifest.json").unlink()
    assert np.array_equal(pictures(pixel_copy(store)), pictures(store))
    assert verify_store(copy.path) == []


def test_a_changed_byte_of_the_copy_is_found_when_it_is_read(store: Store) -> None:
    copy = pixel_copy(store)
    shard = copy.path / copy.manifest.shards[0].name
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, match="checksum"):
        pictures(pixel_copy(store))


def test_only_one_process_makes_it(store: Store) -> None:
    place = pixel_copy(store).path
    (place / "manifest.json").unlink()
    with (
        WorkFolder.beside(place).held(),
        pytest.raises(ResourceError, match="another process") as caught,
    ):
        pixel_copy(store)
    assert "data.decode-once" in str(caught.value)


def test_a_disk_without_room_is_refused_before_anything_is_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepladder.data.prepare.plan.disk_free_bytes", lambda place: 1000)
    with pytest.raises(ResourceError, match=r"needs .* GB"):
        pixel_copy(store)
    folder = copies_folder(store.path)
    assert not folder.exists() or not list(folder.iterdir())


def test_a_store_of_pixels_is_its_own_copy(
    tmp_path: Path, build_store: Callable[..., object]
) -> None:
    build_store(tmp_path / "s")
    store = Store.open(tmp_path / "s")
    assert pixel_copy(store) is store


def test_clean_lists_copies_and_no_other_store(store: Store) -> None:
    copy = pixel_copy(store)
    assert list(leftovers(store.path.parent)) == [copy.path]
    value = json.loads((copy.path / "manifest.json").read_text())
    del value["options"]["decoded_from"]
    (copy.path / "manifest.json").write_text(json.dumps(value))
    assert list(leftovers(store.path.parent)) == []

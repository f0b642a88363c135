"""Headers are cached: pictures are then decoded to the same pixels, faster."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.config.choices import Encoding, Fit, Split, VerifyPages
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.decode import Form, decode_picture, find_form
from stepladder.data.prepare.prepare import prepare
from stepladder.data.store import shard as forms_module
from stepladder.data.store.shard import Forms
from stepladder.data.store.store import Store, StoreSplit

SIZE = 40


def jpeg(height: int, width: int, *, mode: str = "RGB", orientation: int = 1) -> bytes:
    values = np.random.default_rng(height).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    picture = Image.fromarray(values).resize((width, height)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", exif=exif)
    return buffer.getvalue()


def png(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(buffer, "PNG")
    return buffer.getvalue()


PICTURES = {
    "exact.jpg": jpeg(SIZE, SIZE),
    "other.jpg": jpeg(SIZE, SIZE + 1),
    "turned.jpg": jpeg(SIZE, SIZE, orientation=6),
    "grey.jpg": jpeg(SIZE, SIZE, mode="L"),
    "cmyk.jpg": jpeg(SIZE, SIZE, mode="CMYK"),
    "large.jpg": jpeg(9 * SIZE, 8 * SIZE),
    "small.png": png(SIZE, 7),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("prepared")
    for label in ("a", "b"):
        for number, (name, data) in enumerate(PICTURES.items()):
            path = tmp_path / "in" / label / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data + bytes([number]) * (label == "b"))
    config = PrepareConfig(
        source=tmp_path / "in",
        out=tmp_path / "store",
        size=SIZE,
        encoding=Encoding.JPEG,
        val_frac=0.2,
    )
    return prepare(config).folder


@pytest.fixture
def split(prepared: Path, tmp_path: Path) -> StoreSplit:
    split = Store.open(shutil.copytree(prepared, tmp_path / "store")).split(Split.TRAIN)
    assert split is not None
    return split


@pytest.mark.parametrize("name", PICTURES)
def test_a_known_form_changes_no_pixel(name: str) -> None:
    data = PICTURES[name]
    fresh, known, alone = (np.zeros((SIZE, SIZE, 3), np.uint8) for _ in range(3))
    decode_picture(data, size=SIZE, fit=Fit.PAD, out=fresh)
    found = decode_picture(data, size=SIZE, fit=Fit.PAD, out=known, form=find_form(data))
    assert found is known
    alone[:] = decode_picture(data, size=SIZE, fit=Fit.PAD, form=find_form(data))
    assert (fresh == known).all()
    assert (fresh == alone).all()


def test_every_epoch_gives_the_pixels_of_the_first(split: StoreSplit) -> None:
    rows = np.arange(len(split))
    epochs = np.zeros((3, len(rows), SIZE, SIZE, 3), np.uint8)
    for epoch in epochs:
        split.read_into(rows, epoch)
    assert (epochs[0] == epochs[1]).all()
    assert (epochs[0] == epochs[2]).all()
    shard = next(iter(split._shards.values()))
    assert {form.kind for row in rows.tolist() if (form := shard.forms.get(row))} == {"JPEG", "PNG"}


def test_forms_are_forgotten_with_a_file_that_changed(split: StoreSplit) -> None:
    split.picture(0)
    shard = next(iter(split._shards.values()))
    assert shard.forms.get(0) is not None
    os.utime(shard.path)
    shard.check()
    assert shard.forms.get(0) is None


def test_damage_that_is_not_verified_is_an_error_of_that_row(split: StoreSplit) -> None:
    """Pages are not verified here, so that the cached header belongs to other bytes."""
    unseen = Store.open(split._shards[0].path.parent, verify_pages=VerifyPages.NEVER)
    train = unseen.split(Split.TRAIN)
    assert train is not None
    shard = train._shards[0]
    row = next(row for row in range(len(train)) if len(shard.read(row)) > 2000)
    train.picture(row)
    with shard.path.open("r+b") as file:
        file.seek(int(shard.index.offsets[row]) + 4)
        file.write(PICTURES["small.png"])
    shard.forms.add(row, Form("JPEG", SIZE, SIZE, 1, is_direct=True))
    kept = shard.forms
    shard.check()
    shard.forms = kept
    with pytest.raises(Exception, match=f"row {row}.*cannot be decoded"):
        train.picture(row)


def test_more_forms_than_two_bytes_can_count_are_parsed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forms_module, "_MAX_FORMS", 3)
    forms = Forms(4)
    many = [Form("JPEG", height, 1, 1, is_direct=True) for height in range(1, 5)]
    assert [forms.add(row, form) for row, form in enumerate(many)] == many
    assert [forms.get(row) for row in range(4)] == [*many[:2], None, None]
    assert forms.add(3, many[0]) == forms.get(3) == many[0]

"""Pictures that are probably not what they should be are counted and named."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.config.choices import Encoding, Fit
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.decode import decode_picture
from stepladder.data.prepare.counted import first_names, pictures
from stepladder.data.prepare.prepare import PrepareResult, prepare
from stepladder.errors import DataError
from stepladder.records import read_json


def save_photo(path: Path, seed: int, *, width: int = 40, height: int = 30) -> None:
    coarse = np.random.default_rng(seed).integers(0, 255, size=(5, 6, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(path)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for row in range(20):
        save_photo(tmp_path / "shop" / ("shirt", "shoe")[row % 2] / f"{row}.jpg", row)
    return tmp_path / "shop"


def make(source: Path, **options: object) -> PrepareResult:
    return prepare(
        PrepareConfig(source=source, out=source.with_name("store"), size=32, workers=1, **options)
    )


@pytest.mark.parametrize("encoding", list(Encoding))
def test_tiny_long_and_empty_pictures_are_named(shop: Path, encoding: Encoding) -> None:
    Image.new("RGB", (1, 1)).save(shop / "shoe" / "pixel.gif")
    save_photo(shop / "shoe" / "line.png", 50, width=300, height=7)
    save_photo(shop / "shoe" / "banner.png", 51, width=400, height=12)
    save_photo(shop / "shoe" / "wide.png", 52, width=160, height=8)
    Image.new("RGB", (48, 48), (9, 90, 200)).save(shop / "shirt" / "blank.png")
    result = make(shop, encoding=encoding)
    said = "\n".join(result.warnings)
    assert "2 pictures have a side of fewer than 8 pixels: " in said
    assert "'shoe/pixel.gif' (1x1)" in said
    assert "'shoe/line.png' (300x7)" in said
    assert "1 picture is more than 20 times as long as wide: 'shoe/banner.png' (400x12)" in said
    assert "1 picture has a single colour: 'shirt/blank.png'" in said
    assert "read 1 GIF picture\n" in said
    assert "wide.png" not in said
    assert "1 pictures" not in said
    assert "eighth" not in said
    assert read_json(result.folder / "prepare_log.json")["traits"]["a single colour"] == 1


def test_names_of_many_are_the_first_five(shop: Path) -> None:
    for row in range(7):
        save_photo(shop / "shoe" / f"small_{row}.png", 60 + row, width=4, height=4)
    (said,) = [text for text in make(shop).warnings if "fewer than 8 pixels" in text]
    assert said.startswith("7 pictures have a side of fewer than 8 pixels: 'shoe/small_")
    assert said.count("(4x4)") == 5
    assert " and 2 more" in said


def test_usual_pictures_are_not_named(shop: Path) -> None:
    said = "\n".join(make(shop).warnings)
    assert not any(words in said for words in ("8 pixels", "20 times", "colour", "surplus"))


def test_a_jpeg_with_surplus_bytes_is_stored_and_named(shop: Path) -> None:
    path = shop / "shoe" / "1.jpg"
    data = path.read_bytes()
    path.write_bytes(data[:-2] + bytes(range(99)) + data[-2:])
    result = make(shop)
    (said,) = [text for text in result.warnings if "surplus" in text]
    assert said.startswith("1 picture has surplus bytes before the end mark of the JPEG")
    assert "'shoe/1.jpg'" in said
    assert result.num_bad == 0


def test_one_unusable_picture_is_one_picture(shop: Path) -> None:
    (shop / "shoe" / "bad.jpg").write_bytes(b"")
    said = "\n".join(make(shop, max_bad=0.1).warnings)
    assert "1 picture cannot be used and is left out of the store" in said


def save_transparent(path: Path, seed: int, kind: str) -> None:
    """Write a photo whose left half is transparent and hides magenta."""
    save_photo(path, seed)
    with Image.open(path) as photo:
        picture = photo.convert("RGBA")
    clear = Image.new("RGBA", (20, 30), (255, 0, 255, 0))
    picture.paste(clear, (0, 0))
    if kind == "grey":
        picture = picture.convert("LA")
    picture.save(path)


def test_transparent_pictures_are_put_on_white_and_counted(shop: Path) -> None:
    for seed, kind in enumerate(("colour", "grey", "colour")):
        save_transparent(shop / "shoe" / f"clear{seed}.png", 80 + seed, kind)
    save_transparent(shop / "shoe" / "clear9.webp", 89, "colour")
    result = make(shop, encoding=Encoding.PIXELS)
    assert "4 pictures have transparent parts, which are read as white" in result.warnings
    log = read_json(result.folder / "prepare_log.json")
    assert log["traits"]["transparent parts, put on white"] == 4
    for path in shop.rglob("clear*"):
        pixels = decode_picture(path.read_bytes(), size=40, fit=Fit.PAD)
        assert (pixels[10:30, 2:16] == 255).all()
        assert (pixels[10:30, 24:] < 255).any()


def test_opaque_pictures_with_an_alpha_channel_are_not_counted(shop: Path) -> None:
    Image.open(shop / "shoe" / "1.jpg").convert("RGBA").save(shop / "shoe" / "opaque.png")
    assert not any("transparent" in warning for warning in make(shop).warnings)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:41f7\nsize 89207\n"


def refused(source: Path, **options: object) -> DataError:
    with pytest.raises(DataError, match="cannot be used") as caught:
        make(source, **options)
    return caught.value


@pytest.mark.parametrize("is_cloned", [False, True])
def test_pointers_of_git_lfs_are_to_be_pulled(
    is_cloned: bool, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.parent)
    if is_cloned:
        (shop.parent / ".git").mkdir()
    for path in shop.rglob("*.jpg"):
        path.write_bytes(LFS)
    error = refused(shop)
    assert "is a Git LFS pointer" in str(error.why)
    if is_cloned:
        command = ": git lfs install && git -C shop lfs pull && stepladder prepare shop"
        assert str(error.fix).endswith(command)
    else:
        assert "Clone the repository that these files are from" in str(error.fix)
        assert str(error.fix).endswith(": git lfs install && git lfs pull")
    assert "emove" not in str(error.fix)


@pytest.mark.parametrize(
    ("data", "reason", "told"),
    [
        (b"<!DOCTYPE html><title>Log in", "is a web page (HTML)", "their download failed."),
        (b"\n<html><body>", "is a web page (HTML)", "their download failed."),
        (b"404: Not Found", "is an error message of a server", "their download failed."),
        (b"<?xml version='1.0'?><Error>", "is an error message", "their download failed."),
        (b'{"message": "Bad credentials"}', "is an error message", "their download failed."),
        (b"", "is empty", "Download or copy the empty files again, or remove them."),
        (b"/annex/objects/SHA256E-s9--1.jpg\n", "is a git-annex pointer", "git annex get ."),
        (b"\x80\x02}q\x00.", "is a Python pickle", "Replace or remove these pictures"),
        (b"\x00\x05\x16\x07\x00\x02", "is an AppleDouble file", "Replace or remove these"),
    ],
)
def test_what_was_saved_in_place_of_a_picture_is_named_with_what_to_do(
    data: bytes, reason: str, told: str, shop: Path
) -> None:
    for name in ("a.jpg", "b.jpg"):
        (shop / "shoe" / name).write_bytes(data)
    error = refused(shop)
    assert reason in str(error.why)
    assert told in str(error.fix)
    assert "--max-bad 0.101" in str(error.fix)


def test_pictures_of_too_many_pixels_are_read_with_the_option_that_is_printed(shop: Path) -> None:
    for name, width in (("wide", 700), ("wider", 900)):
        Image.new("RGB", (width, 100), (200, 30, 30)).save(shop / "shoe" / f"{name}.png")
    fix = str(refused(shop, max_pixels=60_000).fix)
    assert "Allow pictures of that size: --max-pixels 90000." in fix
    assert "Replace or remove" not in fix
    make(shop, max_pixels=90_000)


def test_each_reason_has_its_remedy(shop: Path) -> None:
    for name, data in (("a", b"<html>"), ("b", b""), ("c", LFS), ("d", b"what is this?")):
        (shop / "shoe" / f"{name}.jpg").write_bytes(data)
    fix = str(refused(shop).fix)
    assert "error pages" in fix
    assert "empty files" in fix
    assert "Replace or remove the other pictures in the source." in fix
    assert "--max-bad 0.184" in fix
    assert fix.endswith("git lfs pull")


def test_copies_within_a_class_are_one_line_if_they_are_many(shop: Path) -> None:
    for idx in range(3):
        shutil.copy(shop / "shoe" / "1.jpg", shop / "shoe" / f"copy_{idx}.jpg")
    (said,) = [text for text in make(shop).warnings if "copies" in text]
    assert said.startswith("3 pictures are copies of another one in their class and split")
    assert "shoe/copy_0.jpg = shoe/1.jpg" in said


def test_few_copies_are_only_in_the_log(tmp_path: Path) -> None:
    source = tmp_path / "photos"
    for row in range(120):
        save_photo(source / "ab"[row % 2] / f"{row}.jpg", row)
    shutil.copy(source / "a" / "0.jpg", source / "a" / "copy.jpg")
    result = make(source)
    assert not any("copies" in text for text in result.warnings)
    assert read_json(result.folder / "prepare_log.json")["copies_within_splits"] == 1


def test_counts_agree() -> None:
    assert pictures(1, "have a palette") == "1 picture has a palette"
    assert pictures(2, "are CMYK") == "2 pictures are CMYK"
    assert pictures(1, "use half", of=8, what="pictures of 8 bits") == (
        "1 of 8 pictures of 8 bits uses half"
    )
    assert first_names(["a", "b"], 2, "") == "a, b"

"""A range that would be lost is counted, measured and told, and the printed remedy keeps it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.config.choices import Encoding, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.prepare import PrepareResult, prepare
from stepladder.data.store.store import Store
from stepladder.records import read_json

Save = Callable[[np.ndarray, Path], None]


def save_16_bit(grey: np.ndarray, path: Path) -> None:
    Image.fromarray(grey.astype(np.uint16) * 16).save(path.with_suffix(".png"))


def save_float(grey: np.ndarray, path: Path) -> None:
    Image.fromarray(grey.astype(np.float32) * 4).save(path.with_suffix(".tif"))


def save_4_bits_in_8(grey: np.ndarray, path: Path) -> None:
    Image.fromarray(grey // 16).save(path.with_suffix(".png"))


def save_few_colours(grey: np.ndarray, path: Path) -> None:
    Image.fromarray(grey).quantize(8).save(path.with_suffix(".gif"))


def source_of(tmp_path: Path, save: Save) -> Path:
    rng = np.random.default_rng(0)
    for split, num in (("train", 6), ("val", 3)):
        for kind in ("a", "b"):
            folder = tmp_path / "photos" / split / kind
            folder.mkdir(parents=True)
            for row in range(num):
                coarse = rng.integers(0, 256, (5, 6), dtype=np.uint8)
                coarse[0, 0], coarse[4, 5] = 0, 255
                grey = coarse.repeat(6, axis=0).repeat(6, axis=1)
                save(grey, folder / str(row))
    return tmp_path / "photos"


def make(source: Path, out: Path, **options: object) -> PrepareResult:
    return prepare(PrepareConfig(source=source, out=out, size=32, workers=1, **options))


def brightest(result: PrepareResult) -> int:
    part = Store.open(result.folder).split(Split.TRAIN)
    assert part is not None
    content = [part.picture(row)[4:28] for row in range(len(part))]  # without the padding
    return int(max(picture.max() for picture in content))


@pytest.mark.parametrize(
    ("save", "words", "dark"),
    [
        (save_16_bit, r"18 pictures have 16 bits a channel \(values 0 to 4080; 65535 is", 15),
        (save_float, r"18 pictures have floating-point samples \(values 0 to 1020; 1 is", 255),
        (save_4_bits_in_8, r"18 of 18 pictures of 8 bits .* \(values 0 to 15 of 255\)", 15),
    ],
)
@pytest.mark.parametrize("encoding", list(Encoding))
def test_range_is_told_and_the_remedy_restores_it(
    tmp_path: Path, save: Save, words: str, dark: int, encoding: Encoding
) -> None:
    source = source_of(tmp_path, save)
    result = make(source, tmp_path / "store", encoding=encoding)
    (told,) = [warning for warning in result.warnings if re.search(words, warning)]
    assert brightest(result) == dark
    is_black = dark < 32
    assert ("they are nearly black in the store" in told) == is_black
    assert (told == result.warnings[0]) == is_black
    assert re.search(r"add --max-sample-value [\d.]+ --overwrite to the command", told)
    typed = re.search(r"--max-sample-value ([\d.]+)", told)
    assert typed is not None
    mended = make(source, tmp_path / "mended", encoding=encoding, max_sample_value=float(typed[1]))
    assert brightest(mended) >= 250
    assert not any("add --max-sample-value" in warning for warning in mended.warnings)
    assert mended.manifest.options["max_sample_value"] == float(typed[1])


def test_few_colours_and_formats_are_counted(tmp_path: Path) -> None:
    result = make(source_of(tmp_path, save_few_colours), tmp_path / "store")
    assert any(
        warning.startswith("18 pictures have a palette of at most 16 colours (stored values")
        for warning in result.warnings
    )
    assert "read 18 GIF pictures" in result.warnings
    log = read_json(result.folder / "prepare_log.json")
    assert log["traits"]["GIF"] == 18
    assert log["ranges"]["palette of at most 16 colours"]["num"] == 18


def test_the_option_is_no_part_of_a_store_that_does_not_use_it(tmp_path: Path) -> None:
    def save(grey: np.ndarray, path: Path) -> None:
        Image.fromarray(grey).convert("RGB").save(path.with_suffix(".jpg"))

    source = source_of(tmp_path, save)
    plain = make(source, tmp_path / "plain")
    assert "max_sample_value" not in plain.manifest.options
    assert not any("values" in warning for warning in plain.warnings)
    large = make(source, tmp_path / "large", max_sample_value=4095)
    assert [info.sha256 for info in plain.manifest.shards] == [
        info.sha256 for info in large.manifest.shards
    ]


def save_full(grey: np.ndarray, path: Path) -> None:
    Image.fromarray(grey.astype(np.uint16) * 257).save(path.with_suffix(".png"))


def mixed(tmp_path: Path, save: Save, name: str) -> Path:
    """Pictures that use the whole range beside as many that do not."""
    source = source_of(tmp_path, save_full)
    for path in sorted(source.rglob("*.png")):
        if int(path.stem) % 2:
            grey = (np.asarray(Image.open(path)) // 257).astype(np.uint8)
            path.unlink()
            save(grey, path.with_name(f"{name}{path.stem}"))
    return source


def save_16_bit_tiff(grey: np.ndarray, path: Path) -> None:
    Image.fromarray(grey.astype(np.uint16) * 16).save(path.with_suffix(".tif"))


@pytest.mark.parametrize(
    ("save", "words"),
    [
        (save_16_bit_tiff, r"8 grey TIFF pictures have 16 bits a channel \(values 0 to 4080; .*"),
        (save_16_bit, r"18 pictures have 16 bits .*: 8 of them use less than an eighth of .*"),
    ],
)
def test_the_range_of_others_hides_nothing_and_the_command_scales_a_copy(
    tmp_path: Path, save: Save, words: str
) -> None:
    """The option would clip the others: it is said so, and only the dark ones are scaled."""
    source = mixed(tmp_path, save, "dark")
    result = make(source, tmp_path / "store")
    (told,) = [warning for warning in result.warnings if re.match(words, warning)]
    assert "add --max-sample-value" not in told
    assert "if white is 4095 in these, multiply their values by 16" in told
    command, then = told[told.index("python -c") :].split("; then prepare ")
    python, flag, script, *given = shlex.split(command)
    assert (python, flag) == ("python", "-c")
    subprocess.run([sys.executable, flag, script, *given], check=True)
    copy, *words = shlex.split(then)
    assert words == ["with", "the", "same", "options", "and", "--overwrite"]
    mended = make(Path(copy), tmp_path / "store", overwrite=True)
    assert not any("eighth" in said or "nothing" in said for said in mended.warnings)
    for path in sorted(Path(copy).rglob("dark*")):
        assert int(np.asarray(Image.open(path)).max()) == 255 * 256
    for path in sorted(source.rglob("dark*")):
        assert int(np.asarray(Image.open(path)).max()) == 4080


def test_dark_pictures_of_8_bits_are_told_beside_others(tmp_path: Path) -> None:
    def save(grey: np.ndarray, path: Path) -> None:
        Image.fromarray(grey).convert("RGB").save(path.with_suffix(".jpg"))

    source = source_of(tmp_path, save)
    for path in sorted(source.rglob("*.jpg"))[::2]:
        save_4_bits_in_8(np.asarray(Image.open(path).convert("L")), path)
        path.unlink()
    said = "9 of 9 grey PNG pictures of 8 bits use less than an eighth of the range"
    (told,) = [text for text in make(source, tmp_path / "store").warnings if text.startswith(said)]
    assert "multiply their values by 16" in told
    assert "add --max-sample-value" not in told


@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_range_is_that_of_the_files_and_not_of_resized_pixels(
    tmp_path: Path, encoding: Encoding
) -> None:
    """Single pixels are lost in resizing, and between the pixels that are sampled."""

    def save(grey: np.ndarray, path: Path) -> None:
        page = Image.new("P", (61, 47), 0)
        page.putpalette([220, 220, 220, 255, 255, 255, 200, 200, 200])
        page.putpixel((30, 20), 1)
        page.putpixel((1, 2), 2)
        page.save(path.with_suffix(".gif"))

    result = make(source_of(tmp_path, save), tmp_path / "store", encoding=encoding)
    said = "18 pictures have a palette of at most 16 colours (stored values 200 to 255 of 255)"
    assert said in result.warnings


def test_a_dark_picture_with_a_bright_line_uses_its_range(tmp_path: Path) -> None:
    def save(grey: np.ndarray, path: Path) -> None:
        dark = grey // 16
        dark[7] = 255
        Image.fromarray(dark).save(path.with_suffix(".png"))

    source = source_of(tmp_path, save)
    for path in source.rglob("*.png"):
        picture = np.asarray(Image.open(path)).repeat(12, axis=0)  # the line is still of one pixel
        picture[84:96] = picture[83]
        picture[90] = 255
        Image.fromarray(picture).save(path)
    assert not any("of the range" in said for said in make(source, tmp_path / "store").warnings)


def test_all_digits_of_a_white_are_said_and_typed(tmp_path: Path) -> None:
    def save(grey: np.ndarray, path: Path) -> None:
        deep = grey.astype(np.int32) * 4112  # 20 of 31 bits
        Image.fromarray(deep).save(path.with_suffix(".tif"))

    (told,) = [
        said
        for said in make(source_of(tmp_path, save), tmp_path / "store").warnings
        if "16 bits a channel" in said
    ]
    assert "(values 0 to 1048560; 2147483647 is stored as 255)" in told
    assert "add --max-sample-value 1048575 --overwrite to the command" in told

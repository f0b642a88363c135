"""Floating-point pictures with different whites: each kind is named, and all become usable."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.cli.main import main
from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.prepare import PrepareResult, prepare
from stepladder.data.store.store import Store

NUM = 6  # of each class


def save_tiles(folder: Path, *scales: float | None, low: int = 50, high: int = 200) -> None:
    """Save tiles of grey values low to high as floats of which 255 is `scale`; None: 8 bits."""
    rng = np.random.default_rng(0)
    for kind in ("forest", "water"):
        (folder / kind).mkdir(parents=True)
        for row in range(NUM):
            grey = rng.integers(low, high, (32, 32), dtype=np.uint8)
            grey[0, 0], grey[0, 1] = low, high
            scale = scales[row % len(scales)]
            tile = grey if scale is None else (grey / 255 * scale).astype(np.float32)
            Image.fromarray(tile).save(folder / kind / f"{row}.tif")


def make(source: Path, out: Path, *, white: float | None = None) -> PrepareResult:
    config = PrepareConfig(source=source, out=out, size=32, workers=1, max_sample_value=white)
    return prepare(config)


def pixels_by_path(store: Path) -> dict[str, np.ndarray]:
    opened = Store.open(store)
    found: dict[str, np.ndarray] = {}
    for part in filter(None, map(opened.split, Split)):
        found |= {part.describe(row): part.picture(row) for row in range(len(part))}
    return found


def of_floats(result: PrepareResult) -> str:
    (said,) = [text for text in result.warnings if "floating-point samples" in text]
    return said


@pytest.mark.parametrize("typed", [[], ["--max-sample-value", "4095"], ["--max-sample-value=255"]])
def test_the_command_makes_tiles_of_both_units_usable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "my tiles"
    save_tiles(source, 1, 4095, None)
    words = ["prepare", "--source", "my tiles", "--out", "store", "--size", "32", *typed]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "8 pictures have floating-point samples: the largest value of 4 is at most 0.78" in said
    assert "that of 4 is 3211.76" in said
    assert "no single white fits both; if white is 1 in the former and 4095 in the latter" in said
    assert "single colour" not in said
    assert "remove" not in said
    printed = re.search(r"(python -c .+); then type: stepladder (prepare .+)", said)
    assert printed is not None
    subprocess.run(printed[1], shell=True, check=True)
    assert main(shlex.split(printed[2])) == 0
    said = capsys.readouterr().out
    assert "no single white" not in said
    assert "all white" not in said
    stored = pixels_by_path(tmp_path / "store")
    assert len(stored) == 2 * NUM
    assert {(int(one.min()), int(one.max())) for one in stored.values()} == {(50, 200)}
    for path, one in stored.items():
        original = np.asarray(Image.open(source / path), dtype=np.float64)
        scale = (255, 255 / 4095, 1)[int(Path(path).stem) % 3]
        assert np.abs(one[..., 0] - original * scale).max() < 0.51


def test_tiles_that_white_saturates_are_named_and_are_not_to_be_removed(tmp_path: Path) -> None:
    save_tiles(tmp_path / "tiles", 1, 4095)
    result = make(tmp_path / "tiles", tmp_path / "store")
    assert of_floats(result) == result.warnings[0]
    said = "\n".join(result.warnings)
    assert "6 pictures are all black or all white in the store, though their values differ" in said
    assert "'forest/1.tif'" in said
    assert "remove" not in said


def test_floats_within_0_and_1_have_white_at_1(tmp_path: Path) -> None:
    save_tiles(tmp_path / "tiles", 1)
    result = make(tmp_path / "tiles", tmp_path / "store")
    assert re.fullmatch(
        r"12 pictures have floating-point samples \(values 0\.196\d+ to 0\.784\d+; 1 is stored as "
        r"255\)",
        of_floats(result),
    )
    stored = pixels_by_path(result.folder)
    assert {(int(one.min()), int(one.max())) for one in stored.values()} == {(50, 200)}


def test_floats_up_to_255_have_one_white(tmp_path: Path) -> None:
    save_tiles(tmp_path / "tiles", 255)
    dark = tmp_path / "tiles" / "water" / "0.tif"
    Image.fromarray(np.zeros((32, 32), dtype=np.float32)).save(dark)
    said = of_floats(make(tmp_path / "tiles", tmp_path / "store"))
    assert "no single white" not in said
    assert "if white is 255, add --max-sample-value 255 --overwrite to the command" in said
    mended = make(tmp_path / "tiles", tmp_path / "mended", white=255)
    assert "clipped" not in of_floats(mended)
    assert any("1 picture has a single colour: 'water/0.tif'" in text for text in mended.warnings)
    stored = pixels_by_path(mended.folder)
    assert stored.pop("water/0.tif").max() == 0
    assert {(int(one.min()), int(one.max())) for one in stored.values()} == {(50, 200)}


def test_values_a_little_above_1_are_no_other_unit(tmp_path: Path) -> None:
    """Resampling exceeds white at edges."""
    save_tiles(tmp_path / "tiles", 1, 1.4)
    assert "no single white" not in of_floats(make(tmp_path / "tiles", tmp_path / "store"))


def test_near_units_may_be_one_and_both_remedies_are_printed(tmp_path: Path) -> None:
    """Distances may be up to 0.8 m in some pictures and up to 8 m in others."""
    save_tiles(tmp_path / "tiles", 1, 10)
    said = of_floats(make(tmp_path / "tiles", tmp_path / "store"))
    assert "no single white" not in said
    assert "if white is 15 in all, add --max-sample-value 15 --overwrite to the command" in said
    assert "if it is 1 in the former and 15 in the latter, divide the values of the latter" in said
    chosen = of_floats(make(tmp_path / "tiles", tmp_path / "chosen", white=15))
    assert "divide" not in chosen

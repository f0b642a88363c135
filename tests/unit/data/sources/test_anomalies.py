"""Data sets of anomaly detection are refused, and the printed commands read their classes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import StepladderError
from tests.unit.data.sources.printed import commands_in, typed_listing


def fill(root: Path, held_out: str = "test", defects: tuple[str, ...] = ("bent", "cut")) -> Path:
    """Write the folders of one object of MVTec AD."""
    names = [f"train/good/{idx}" for idx in range(4)]
    names += [f"{held_out}/{one}/{idx}" for one in ("good", *defects) for idx in range(2)]
    names += [f"ground_truth/{one}/{idx}_mask" for one in defects for idx in range(2)]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / f"{name}.png").write_bytes(b"x")
    return root


def refused(source: Path) -> StepladderError:
    with pytest.raises(StepladderError) as caught:
        list_pictures(PrepareConfig(source=source))
    return caught.value


@pytest.mark.parametrize("held_out", ["test", "validation"])
@pytest.mark.parametrize("defects", [("bent",), ("bent", "cut")])
def test_one_class_in_train_is_named_and_the_command_reads_all_but_masks(
    tmp_path: Path, held_out: str, defects: tuple[str, ...]
) -> None:
    root = fill(tmp_path / "my screw", held_out, defects)
    error = refused(root)
    assert "train has only the class 'good'" in error.what
    assert error.what.endswith(", ".join(defects))
    listing = typed_listing(commands_in(error.fix)[0])
    expected = {"good": 6} | dict.fromkeys(defects, 2)
    assert Counter(picture.label for picture in listing.pictures) == expected
    assert {picture.split for picture in listing.pictures} == {Split.TRAIN}
    assert "ground_truth" in listing.warnings[0]


@pytest.mark.parametrize("inner", ["", "set/"])
def test_several_objects_are_asked_for_and_masks_are_in_no_reading(
    tmp_path: Path, inner: str
) -> None:
    for name in ("bottle", "screw (1)"):
        fill(tmp_path / f"all.1/{inner}{name}")
    error = refused(tmp_path / "all.1")
    of_one, of_objects = map(typed_listing, commands_in(error.fix))
    assert Counter(one.label for one in of_one.pictures) == {"good": 6, "bent": 2, "cut": 2}
    assert Counter(one.label for one in of_objects.pictures) == {"bottle": 10, "screw (1)": 10}
    assert not any("mask" in one.path for one in (*of_one.pictures, *of_objects.pictures))


def test_masks_beside_splits_of_the_same_classes_are_no_question(tmp_path: Path) -> None:
    for name in ("train/a", "train/b", "test/a", "test/b", "masks/a", "masks/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / f"{name}/1.png").write_bytes(b"x")
    listing = list_pictures(PrepareConfig(source=tmp_path))
    assert len(listing.pictures) == 4
    assert any("masks" in warning for warning in listing.warnings)

"""Annotations beside pictures are named, and the command writes a table with one class for each."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import StepladderError
from tests.unit.data.sources.printed import typed_listing

Write = Callable[[Path, dict[str, list[str]]], None]
ONE_EACH = {f"leaf_{idx:04}": [("healthy", "leaf rust")[idx % 2]] for idx in range(6)}
SEVERAL = {stem: ["healthy", "leaf rust"] for stem in ONE_EACH}
BOX = "0.5 0.5 0.25 0.25"


def cvat(root: Path, classes: dict[str, list[str]]) -> None:
    tags = {
        stem: "".join(f'<tag label="{one}" source="manual"></tag>' for one in some)
        for stem, some in classes.items()
    }
    write_cvat(root, tags)


def cvat_attributes(root: Path, classes: dict[str, list[str]]) -> None:
    tags = {
        stem: "".join(
            f'<tag label="leaf"><attribute name="state">{one}</attribute></tag>' for one in some
        )
        for stem, some in classes.items()
    }
    write_cvat(root, tags)


def write_cvat(root: Path, tags: dict[str, str]) -> None:
    images = "".join(
        f'<image id="{idx}" name="a/{stem}.jpg">{tag}</image>'
        for idx, (stem, tag) in enumerate(tags.items())
    )
    (root / "annotations.xml").write_text(f"<annotations>{images}</annotations>")


def voc(root: Path, classes: dict[str, list[str]]) -> None:
    (root / "Annotations").mkdir()
    for stem, some in classes.items():
        objects = "".join(f"<object><name>{one}</name></object>" for one in some)
        text = f"<annotation><filename>{stem}.jpg</filename>{objects}</annotation>"
        (root / f"Annotations/{stem}.xml").write_text(text)


def yolo(root: Path, classes: dict[str, list[str]]) -> None:
    (root / "labels").mkdir()
    (root / "data.yaml").write_text("nc: 2\nnames: ['healthy', 'leaf rust']\n")
    for stem, some in classes.items():
        lines = [f"{['healthy', 'leaf rust'].index(one)} {BOX}\n" for one in some]
        (root / f"labels/{stem}.txt").write_text("".join(lines))


def yolo_beside(root: Path, classes: dict[str, list[str]]) -> None:
    (root / "images/classes.txt").write_text("healthy\nleaf rust\n")
    for stem, some in classes.items():
        lines = [f"{['healthy', 'leaf rust'].index(one)} {BOX}\n" for one in some]
        (root / f"images/{stem}.txt").write_text("".join(lines))


def labelme(root: Path, flags: dict[str, list[str]], shapes: dict[str, list[str]]) -> None:
    for stem in flags:
        record = {
            "version": "5.4.1",
            "flags": {one: one in flags[stem] for one in ("healthy", "leaf rust")},
            "shapes": [{"label": one, "points": [[0, 0], [1, 1]]} for one in shapes[stem]],
            "imagePath": f"{stem}.jpg",
            "imageData": None,
        }
        (root / f"images/{stem}.json").write_text(json.dumps(record))


def labelme_flags(root: Path, classes: dict[str, list[str]]) -> None:
    labelme(root, classes, {stem: [] for stem in classes})


def labelme_flags_and_shapes(root: Path, classes: dict[str, list[str]]) -> None:
    labelme(root, classes, {stem: ["leaf", "stem"] for stem in classes})


def labelme_shapes(root: Path, classes: dict[str, list[str]]) -> None:
    none: dict[str, list[str]] = {stem: [] for stem in classes}
    labelme(root, none, {stem: 2 * some for stem, some in classes.items()})


def coco(root: Path, classes: dict[str, list[str]]) -> None:
    names = ["healthy", "leaf rust"]
    record = {
        "images": [{"id": idx, "file_name": f"{stem}.jpg"} for idx, stem in enumerate(classes)],
        "annotations": [
            {"image_id": idx, "category_id": names.index(one), "bbox": [0, 0, 1, 1]}
            for idx, some in enumerate(classes.values())
            for one in some
        ],
        "categories": [{"id": idx, "name": name} for idx, name in enumerate(names)],
    }
    (root / "annotations").mkdir()
    (root / "annotations/instances_default.json").write_text(json.dumps(record))


def refused(
    root: Path, source: str, write: Write, classes: dict[str, list[str]]
) -> StepladderError:
    (root / "images").mkdir(parents=True)
    for stem in classes:
        (root / f"images/{stem}.jpg").write_bytes(b"x")
    write(root, classes)
    with pytest.raises(StepladderError) as caught:
        list_pictures(PrepareConfig(source=root / source))
    return caught.value


@pytest.mark.parametrize("source", ["", "images"])
@pytest.mark.parametrize(
    ("write", "name"),
    [
        (cvat, "annotations.xml has annotations of CVAT"),
        (cvat_attributes, "annotations.xml has annotations of CVAT (attribute state)"),
        (voc, "Annotations has annotations of Pascal VOC"),
        (yolo, "labels has annotations of YOLO"),
        (yolo_beside, "images has annotations of YOLO"),
        (labelme_flags, "images has annotations of LabelMe (flags)"),
        (labelme_shapes, "images has annotations of LabelMe (labels of shapes)"),
        (
            labelme_flags_and_shapes,
            "images has annotations of LabelMe (flags; their shapes have labels, too)",
        ),
    ],
)
def test_the_command_writes_one_class_for_each_picture(
    tmp_path: Path, source: str, write: Write, name: str
) -> None:
    error = refused(tmp_path / "my task", source, write, ONE_EACH)
    assert name in str(error.why)
    command, _, table = str(error.fix).partition(": ")[2].rpartition(" && stepladder prepare ")
    python, *words = shlex.split(command)
    assert python == "python"
    subprocess.run([sys.executable, *words], check=True)
    listing = list_pictures(PrepareConfig(source=Path(shlex.split(table)[0])))
    assert Counter(one.label for one in listing.pictures) == {"healthy": 3, "leaf rust": 3}


@pytest.mark.parametrize("write", [cvat, voc, yolo, yolo_beside, labelme_shapes, coco])
def test_several_classes_in_a_picture_are_no_labels(tmp_path: Path, write: Write) -> None:
    error = refused(tmp_path / "my task", "", write, SEVERAL)
    assert "several classes in 6 of 6. A classifier needs one class for each" in str(error.why)
    assert "Crop the boxes" in str(error.fix)


def test_pictures_without_a_flag_or_a_file_are_counted_and_left_out(tmp_path: Path) -> None:
    for split, idx in ((split, idx) for split in ("train", "val") for idx in range(4)):
        folder = tmp_path / split
        folder.mkdir(exist_ok=True)
        (folder / f"{idx}.jpg").write_bytes(b"x")
        flags = {"crack": idx == 1, "intact": idx == 0}
        record = {"flags": flags, "shapes": [], "imagePath": f"{idx}.jpg"}
        if idx < 3:
            (folder / f"{idx}.json").write_text(json.dumps(record))
    with pytest.raises(StepladderError) as caught:
        list_pictures(PrepareConfig(source=tmp_path))
    assert "with one class in 2 of 4; the others are left out" in str(caught.value.why)
    listing = typed_listing(str(caught.value.fix).partition(": ")[2])
    assert {(one.path, one.label, one.split) for one in listing.pictures} == {
        (f"{split}/{idx}.jpg", ["intact", "crack"][idx], split)
        for split in ("train", "val")
        for idx in range(2)
    }


def test_equal_names_in_train_and_val_keep_their_own_annotations(tmp_path: Path) -> None:
    """As YOLO numbers the pictures of each split from 0."""
    names = {"train": ["healthy", "leaf rust"] * 3, "val": ["leaf rust", "healthy"]}
    (tmp_path / "data.yaml").write_text("names: ['healthy', 'leaf rust']\n")
    for split, classes in names.items():
        for kind in ("images", "labels"):
            (tmp_path / kind / split).mkdir(parents=True)
        for idx, one in enumerate(classes):
            (tmp_path / "images" / split / f"{idx:06}.jpg").write_bytes(b"x")
            number = ["healthy", "leaf rust"].index(one)
            (tmp_path / "labels" / split / f"{idx:06}.txt").write_text(f"{number} {BOX}\n")
    with pytest.raises(StepladderError) as caught:
        list_pictures(PrepareConfig(source=tmp_path))
    command, _, table = (
        str(caught.value.fix).partition(": ")[2].rpartition(" && stepladder prepare ")
    )
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)
    listing = list_pictures(PrepareConfig(source=Path(shlex.split(table)[0])))
    assert {(one.split, Path(one.path).stem, one.label) for one in listing.pictures} == {
        (split, f"{idx:06}", one) for split, some in names.items() for idx, one in enumerate(some)
    }

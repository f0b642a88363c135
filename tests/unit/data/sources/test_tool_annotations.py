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
    assert "with one class in 4 of 8; left out: 2 without a class (" in str(caught.value.why)
    assert "), 2 without annotations (" in str(caught.value.why)
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


def write_yolo(root: Path, name: str, *classes: int) -> None:
    for path in (root / f"{name}.jpg", root / f"{name.replace('images', 'labels')}.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{one} {BOX}\n" for one in classes))


def write_voc(picture: Path, xml: Path, *classes: str) -> None:
    for path in (picture, xml):
        path.parent.mkdir(parents=True, exist_ok=True)
    picture.write_bytes(b"x")
    objects = "".join(f"<object><name>{one}</name></object>" for one in classes)
    xml.write_text(f"<annotation>{objects}</annotation>")


def written(root: Path) -> tuple[StepladderError, Counter[tuple[str, str]]]:
    """Type the command of the error; return the error, and the pictures by label and split."""
    with pytest.raises(StepladderError) as caught:
        list_pictures(PrepareConfig(source=root))
    command, _, table = (
        str(caught.value.fix).partition(": ")[2].rpartition(" && stepladder prepare ")
    )
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)
    listing = list_pictures(PrepareConfig(source=Path(shlex.split(table)[0])))
    return caught.value, Counter((one.label, str(one.split)) for one in listing.pictures)


@pytest.mark.parametrize("shape", ["{split}/images/", "images/{split}/"])
@pytest.mark.parametrize("has_readme", [True, False])
def test_all_splits_of_yolo_are_counted_and_written(
    tmp_path: Path, shape: str, has_readme: bool
) -> None:
    names = "train: C:/Users/lab/train\nnames: ['normal', 'viral pneumonia']\n"
    (tmp_path / "data.yaml").write_text(names)
    if has_readme:
        (tmp_path / "README.roboflow.txt").write_text("Exported by a tool\n")
    for split, num in (("train", 12), ("valid", 6), ("test", 4)):
        for idx in range(num):
            write_yolo(tmp_path, f"{shape.format(split=split)}{idx}", idx % 2)
    write_yolo(tmp_path, f"{shape.format(split='train')}two", 0, 1)
    write_yolo(tmp_path, f"{shape.format(split='valid')}empty")
    error, found = written(tmp_path)
    assert "with one class in 22 of 24; left out: 1 with several classes" in str(error.why)
    assert "two.jpg), 1 without a class (" in str(error.why)
    sizes = {"train": 6, "val": 3, "test": 2}
    both = ("normal", "viral pneumonia")
    assert found == {(one, split): num for split, num in sizes.items() for one in both}


def test_lists_of_pictures_are_the_splits_of_yolo(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text("names: ['normal', 'viral pneumonia']\n")
    for idx in range(12):
        write_yolo(tmp_path, f"images/a{idx}x", idx % 2)
    for split, idxs in (("train", range(8)), ("val", range(8, 12))):
        lines = [f"./images/a{idx}x.jpg\n" for idx in idxs]
        (tmp_path / f"{split}.txt").write_text("".join(lines))
    error, found = written(tmp_path)
    assert "has the lists train.txt, val.txt, whose splits are used" in str(error.why)
    assert Counter(split for _, split in found.elements()) == {"train": 8, "val": 4}


@pytest.mark.parametrize("kind", ["splits", "trainval", "classes"])
@pytest.mark.parametrize("around", ["", "VOC2007/"])
def test_image_sets_are_the_splits_of_voc(tmp_path: Path, kind: str, around: str) -> None:
    root = tmp_path / around
    names = [f"{('crazing', 'patches')[idx % 2]}_{idx}" for idx in range(18)]
    for name in names:
        xml = root / f"Annotations/{name}.xml"
        write_voc(root / f"JPEGImages/{name}.jpg", xml, *[name.partition("_")[0]] * 2)
    lists = {"train": names[:10], "val": names[10:16]}
    if kind == "trainval":
        lists = {"trainval": names[:16], "val": names[10:16]}
    (root / "ImageSets/Main").mkdir(parents=True)
    for split, some in lists.items():
        for one in ("crazing", "patches") if kind == "classes" else ("",):
            rows = [f"{name} {1 if name.startswith(one) else -1:2}" for name in some]
            rows = rows if one else some
            place = root / f"ImageSets/Main/{one and f'{one}_'}{split}.txt"
            place.write_text("\n".join(rows) + "\n")
    error, found = written(tmp_path)
    assert "Annotations has annotations of Pascal VOC" in str(error.why)
    assert "whose splits are used; pictures in no list are left out: 2" in str(error.why)
    classes = ("crazing", "patches")
    assert found == {(one, s): n for s, n in (("train", 5), ("val", 3)) for one in classes}


def test_annotations_beside_the_pictures_of_each_split_are_all_written(tmp_path: Path) -> None:
    for split, num in (("train", 12), ("valid", 6)):
        for idx in range(num):  # the same names in both
            picture = tmp_path / split / f"{idx}_x.jpg"
            one = ("cat", "dog")[(idx + (split == "valid")) % 2]
            write_voc(picture, picture.with_suffix(".xml"), one)
    error, found = written(tmp_path)
    assert "with one class in 18 of 18" in str(error.why)
    assert found == {(one, s): n for s, n in (("train", 6), ("val", 3)) for one in ("cat", "dog")}


def test_other_classes_in_annotations_than_in_names_are_both_printed(tmp_path: Path) -> None:
    for idx in range(12):
        name = f"{('Abyssinian', 'beagle', 'Bombay')[idx % 3]}_{idx}"
        xml = tmp_path / f"annotations/xmls/{name}.xml"
        write_voc(tmp_path / f"images/{name}.jpg", xml, "dog" if idx % 3 == 1 else "cat")
    with pytest.raises(StepladderError) as caught:
        list_pictures(PrepareConfig(source=tmp_path))
    assert "--label-pattern" in str(caught.value.fix)
    assert (
        "Pascal VOC for these pictures, with one class in 12 of 12. To use these classes: py"
        in (str(caught.value.why))
    )


def test_image_sets_that_a_label_pattern_does_not_read_are_named(tmp_path: Path) -> None:
    for idx in range(12):
        name = f"{('crazing', 'patches')[idx % 2]}_{idx}"
        write_voc(tmp_path / f"JPEGImages/{name}.jpg", tmp_path / f"Annotations/{name}.xml", "x")
        split = "train" if idx < 8 else "val"
        (tmp_path / "ImageSets/Main").mkdir(parents=True, exist_ok=True)
        with (tmp_path / f"ImageSets/Main/{split}.txt").open("a") as file:
            file.write(f"{name}\n")
    listing = list_pictures(PrepareConfig(source=tmp_path, label_pattern="([a-z]+)_[0-9]+"))
    assert any("have a split of the pictures, which is not used" in one for one in listing.warnings)
    command = next(one for one in listing.warnings if "To use it: " in one).partition(": awk")[2]
    edit, _, table = f"awk{command}".rpartition(" && stepladder prepare ")
    subprocess.run(["bash", "-c", edit], check=True)
    listing = list_pictures(PrepareConfig(source=Path(shlex.split(table)[0])))
    found = Counter((one.label, str(one.split)) for one in listing.pictures)
    assert found == {
        (c, s): n for c in ("crazing", "patches") for s, n in (("train", 4), ("val", 2))
    }

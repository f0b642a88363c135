"""COCO annotations are labels if each picture has one category, and are refused otherwise."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError, StepladderError

CATEGORIES = [{"id": 571, "name": "dog"}, {"id": 3, "name": "cat"}, {"id": 0, "name": "empty"}]


def coco(*categories: Sequence[int], is_text: bool = False, **more: Any) -> dict[str, Any]:
    """Return annotations of pictures 0.jpg, 1.jpg, … with these categories."""
    ids = [f"id-{at}" if is_text else 100 + at for at in range(len(categories))]
    images = [
        {"id": one, "file_name": f"{at}.jpg", "width": 8, "seq_id": f"s{at // 2}"}
        for at, one in enumerate(ids)
    ]
    annotations = [
        {"image_id": one, "category_id": category}
        for one, some in zip(ids, categories, strict=True)
        for category in some
    ]
    whole = {"info": {}, "images": images, "categories": CATEGORIES, "annotations": annotations}
    return {**whole, **more}


def write(path: Path, value: dict[str, Any], *, num: int, folder: str = "") -> Path:
    (path.parent / folder).mkdir(parents=True, exist_ok=True)
    for at in range(num):
        (path.parent / folder / f"{at}.jpg").write_bytes(b"x")
    path.write_text(json.dumps(value))
    return path


def pairs(listing: Listing) -> list[tuple[str, str]]:
    return [(picture.path, picture.label) for picture in listing.pictures]


def typed_listing(fix: str) -> Listing:
    edit, _, last = fix.partition(": ")[2].rpartition("stepladder prepare ")
    subprocess.run(["bash", "-c", edit.removesuffix(" && ") or ":"], check=True)
    source, *flags = shlex.split(last)
    options = {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(flags[::2], flags[1::2], strict=True)
    }
    return list_pictures(PrepareConfig(source=Path(source), **options))


@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize("folder", ["", "train/"])
def test_each_picture_has_the_category_of_its_annotations(
    tmp_path: Path, folder: str, is_text: bool
) -> None:
    value = coco([3], [571, 571], [], [0], is_text=is_text)
    table = write(tmp_path / "annotations.json", value, num=4, folder=folder)
    listing = list_pictures(PrepareConfig(source=table, group_by="seq_id"))
    assert pairs(listing) == [
        (f"{folder}{name}", label)
        for name, label in zip(("0.jpg", "1.jpg", "3.jpg"), ("cat", "dog", "empty"), strict=True)
    ]
    assert "left out 1 of 4 images, which have no annotation" in listing.warnings[0]
    assert [picture.group for picture in listing.pictures] == ["s0", "s0", "s1"]


def test_a_category_may_be_that_of_the_image(tmp_path: Path) -> None:
    value = coco([], [])
    for image, category in zip(value["images"], (0, 3), strict=True):
        image["category_id"] = category
    del value["annotations"]
    table = write(tmp_path / "annotations.json", value, num=2)
    assert pairs(list_pictures(PrepareConfig(source=table))) == [
        ("0.jpg", "empty"),
        ("1.jpg", "cat"),
    ]


def test_several_categories_are_refused_and_the_pictures_with_one_can_be_read(
    tmp_path: Path,
) -> None:
    value = coco([3, 571], [571], [3, 3], [], [0, 3, 3])
    table = write(tmp_path / "my set" / "instances.json", value, num=5, folder="images")
    told = "2 of 5 images have several categories, such as '0.jpg': 'cat' and 'dog'"
    with pytest.raises(DataError, match=told) as caught:
        list_pictures(PrepareConfig(source=table))
    assert "A picture has one label here" in str(caught.value)
    found = typed_listing(str(caught.value.fix))
    assert pairs(found) == [("images/1.jpg", "dog"), ("images/2.jpg", "cat")]


@pytest.mark.parametrize(
    ("value", "told", "fix"),
    [
        (coco([3, 571], [571, 3]), "2 of 2 images have several", "one category for each image"),
        (coco([], []), "without a category for any of 2 images", "have a category_id"),
        (
            coco([], [], annotations=[{"image_id": 100, "caption": "a cat"}]),
            "without a category for any of 2 images",
            "captions and files of a test set have none",
        ),
    ],
)
def test_annotations_without_one_category_are_refused(
    tmp_path: Path, value: dict[str, Any], told: str, fix: str
) -> None:
    table = write(tmp_path / "annotations.json", value, num=2)
    with pytest.raises(DataError, match=told) as caught:
        list_pictures(PrepareConfig(source=table))
    assert fix in str(caught.value.fix)


FOLDERS = {"test": Split.TEST, "train": Split.TRAIN, "valid": Split.VAL}


def test_a_folder_of_splits_is_read_by_the_annotations_in_each(tmp_path: Path) -> None:
    for name in FOLDERS:
        write(tmp_path / name / "_annotations.coco.json", coco([3], [571]), num=2)
    listing = list_pictures(PrepareConfig(source=tmp_path))
    assert [(p.path, p.label, p.split) for p in listing.pictures] == [
        (f"{name}/{at}.jpg", ("cat", "dog")[at], split)
        for name, split in FOLDERS.items()
        for at in range(2)
    ]


def test_the_remedy_for_several_categories_reads_all_splits(tmp_path: Path) -> None:
    for name in FOLDERS:
        value = coco([3], [571], [3, 571])
        write(tmp_path / "an export" / name / "_annotations.coco.json", value, num=3)
    with pytest.raises(DataError, match="1 of 3 images have several categories") as caught:
        list_pictures(PrepareConfig(source=tmp_path / "an export"))
    found = typed_listing(str(caught.value.fix))
    assert [(p.path, p.label, p.split) for p in found.pictures] == [
        (f"{name}/{at}.jpg", ("cat", "dog")[at], split)
        for name, split in FOLDERS.items()
        for at in range(2)
    ]


def test_annotations_beside_a_folder_are_pointed_to(tmp_path: Path) -> None:
    value = coco(*[[3], [571]] * 6)
    write(tmp_path / "annotations.json", value, num=12, folder="train")
    with pytest.raises(DataError, match=r"annotations.json names these pictures") as caught:
        list_pictures(PrepareConfig(source=tmp_path / "train"))
    assert [label for _, label in pairs(typed_listing(str(caught.value.fix)))] == ["cat", "dog"] * 6


@pytest.mark.parametrize("folder", ["train", "images", "."])
def test_annotations_in_a_folder_of_pictures_are_its_labels(tmp_path: Path, folder: str) -> None:
    """As those of camera traps, in which category 0 means an empty picture."""
    value = coco(*[[3], [0], [571]] * 4)
    write(tmp_path / "iwildcam_train.json", value, num=12, folder=folder)
    write(tmp_path / "test.json", coco([], []) | {"annotations": []}, num=0)
    listing = list_pictures(PrepareConfig(source=tmp_path))
    assert [label for _, label in pairs(listing)] == ["cat", "empty", "dog"] * 4
    assert "read the labels in iwildcam_train.json" in listing.warnings[0]


def test_pictures_that_annotations_in_the_folder_leave_out_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "annotations.json", coco(*[[3], [571]] * 4), num=10, folder="train")
    listing = list_pictures(PrepareConfig(source=tmp_path))
    assert len(listing.pictures) == 8
    assert "left out 2 of 10 pictures, which have no category" in listing.warnings[-1]


@pytest.mark.parametrize("case", ["two files", "two folders", "few of the pictures"])
def test_annotations_that_may_not_be_the_labels_are_asked_for(tmp_path: Path, case: str) -> None:
    num = 30 if case == "few of the pictures" else 12
    write(tmp_path / "annotations.json", coco(*[[3], [571]] * 6), num=num, folder="train")
    if case == "two files":
        write(tmp_path / "corrected.json", coco(*[[571], [3]] * 6), num=0)
    if case == "two folders":
        write(tmp_path / "other.json", coco([], []), num=2, folder="test")
    with pytest.raises(StepladderError, match=r"as a? ?splits?, but") as caught:
        list_pictures(PrepareConfig(source=tmp_path))
    assert "annotations.json names these pictures, with a category for each" in str(
        caught.value.why
    )
    assert len(typed_listing(str(caught.value.fix)).pictures) == 12


def test_class_folders_beside_annotations_stay_classes(tmp_path: Path) -> None:
    value = coco(*[[3], [571]] * 6)
    write(tmp_path / "set/annotations.json", value, num=12, folder="barn")
    write(tmp_path / "set/other.json", value, num=12, folder="field")
    assert {label for _, label in pairs(list_pictures(PrepareConfig(source=tmp_path)))} == {
        "barn",
        "field",
    }

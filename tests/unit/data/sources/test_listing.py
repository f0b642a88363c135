"""Folders are listed completely, in one order, and nothing in them can mislead or block."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from stepladder.config.choices import ClassesFrom, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.split import assign_splits
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError, UsageError


def fill(root: Path, *names: str) -> Path:
    """Create files with any content, as listing opens none of them."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root


def listed(root: Path, **options: object) -> Listing:
    return list_pictures(PrepareConfig(source=root, **options))


def paths(listing: Listing) -> list[str]:
    return [picture.path for picture in listing.pictures]


def test_folders_are_classes(tmp_path: Path) -> None:
    listing = listed(fill(tmp_path, "b/2.png", "b/1.jpg", "a/deep/er/3.JPEG"))
    found = [(picture.path, picture.label, picture.split) for picture in listing.pictures]
    assert found == [
        ("a/deep/er/3.JPEG", "a", None),
        ("b/1.jpg", "b", None),
        ("b/2.png", "b", None),
    ]
    assert Path(listing.file(listing.pictures[0])).read_bytes() == b"x"


@pytest.mark.parametrize("val", ["val", "valid", "Validation"])
def test_split_folders_hold_class_folders(tmp_path: Path, val: str) -> None:
    root = fill(tmp_path, "train/a/1.jpg", "train/b/1.jpg", f"{val}/a/2.jpg", "test/b/3.jpg")
    splits = {picture.path: picture.split for picture in listed(root).pictures}
    assert splits == {
        "train/a/1.jpg": Split.TRAIN,
        "train/b/1.jpg": Split.TRAIN,
        f"{val}/a/2.jpg": Split.VAL,
        "test/b/3.jpg": Split.TEST,
    }


def test_other_folders_next_to_splits_are_left_out_loudly(tmp_path: Path) -> None:
    root = fill(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/a/2.jpg", "docs/figures/3.jpg")
    listing = listed(root)
    assert len(listing.pictures) == 3
    assert "docs" in listing.warnings[0]


def test_a_class_may_be_named_train(tmp_path: Path) -> None:
    listing = listed(fill(tmp_path, "train/1.jpg", "car/1.jpg", "plane/1.jpg"))
    assert {picture.label for picture in listing.pictures} == {"train", "car", "plane"}


def splits(listing: Listing) -> dict[str, tuple[str, Split | None]]:
    return {picture.path: (picture.label, picture.split) for picture in listing.pictures}


def each(*folders: str, classes: str = "ab") -> list[str]:
    """Return one picture of each class in each of some folders."""
    return [f"{folder}/{label}/{label}.jpg" for folder in folders for label in classes]


@pytest.mark.parametrize(
    "names",
    [
        {"Training": "train", "Testing": "test"},
        {"trainingSet": "train", "testSet": "test"},
        {"trainset": "train", "valset": "val", "testset": "test"},
        {"seg_train": "train", "seg_test": "test"},
        {"train": "train", "dev": "val"},
        {"train": "train", "dev": "val", "test": "test"},
        {"TRAIN": "train", "EVAL": "val"},
        {"train": "train", "val": "val", "eval": "test"},
        {"train": "train", "test": "test", "evaluation": "val"},
        {"train": "train", "hold-out": "test"},
        {"train": "train", "held_out": "test", "validation": "val"},
        {"train2017": "train", "val2017": "val"},
        {"train_images": "train", "test_images": "test"},
        {"birds-train": "train", "birds-valid": "val"},
    ],
)
def test_folders_are_splits_by_their_names(tmp_path: Path, names: dict[str, str]) -> None:
    listing = listed(fill(tmp_path, *each(*names)))
    assert splits(listing) == {
        f"{name}/{label}/{label}.jpg": (label, Split(split))
        for name, split in names.items()
        for label in "ab"
    }
    unusual = [name for name in names if name.lower() not in ("train", "val", "test")]
    told = listing.warnings[0] if listing.warnings else ""
    for name in unusual:
        if name.lower() != "validation":
            assert f"{name} as {names[name]}" in told


@pytest.mark.parametrize(
    "classes",
    [
        ("dev", "test", "staging"),
        ("test_tube", "train_station"),
        ("trainer", "tester"),
    ],
)
def test_classes_that_share_no_folder_may_have_names_of_splits(
    tmp_path: Path, classes: tuple[str, ...]
) -> None:
    listing = listed(fill(tmp_path, *(f"{name}/1.jpg" for name in classes)))
    assert {picture.label for picture in listing.pictures} == set(classes)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("train", "tset"), "--split-folders train=train,tset=test"),
        (("trian", "val"), "--split-folders trian=train,val=val"),
        (("train", "x"), "--split-folders train=train,x=test"),
        (("fold1", "fold2", "fold3"), "fold1=train,fold2=train,fold3=test"),
        (("session 1", "session 2"), "--split-folders 'session 1=train,session 2=test'"),
        (("train", "val", "augmented"), "augmented=train,train=train,val=val"),
    ],
)
def test_folders_that_share_classes_and_are_unknown_are_asked_for(
    tmp_path: Path, names: tuple[str, ...], told: str
) -> None:
    root = fill(tmp_path, *each(*names))
    with pytest.raises(UsageError, match="it is unknown which of both are the classes") as caught:
        listed(root)
    assert told in str(caught.value.fix)
    typed = shlex.split(str(caught.value.fix).split(": ")[1])[1].removesuffix(".")
    found = splits(listed(root, split_folders=typed))
    assert len(found) == 2 * len(names)
    assert {split for _, split in found.values()} > {Split.TRAIN} or len(names) == 1
    found = splits(listed(root, classes_from=ClassesFrom.TOP))
    assert {label for label, _ in found.values()} == set(names)


def test_a_folder_that_is_not_named_in_the_splits_is_left_out_loudly(tmp_path: Path) -> None:
    root = fill(tmp_path, *each("2018", "2019", "2020"))
    listing = listed(root, split_folders="2018=train,2020=test")
    assert {split for _, split in splits(listing).values()} == {Split.TRAIN, Split.TEST}
    assert "2019" in listing.warnings[0]


def test_several_folders_may_be_one_split(tmp_path: Path) -> None:
    root = fill(tmp_path, *each("fold1", "fold2", "fold3"))
    found = splits(listed(root, split_folders="fold1=train,fold2=train,fold3=val"))
    assert [split for _, split in found.values()].count(Split.TRAIN) == 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a", "is not of the form FOLDER=train"),
        ("2018=trian", "is not of the form FOLDER=train"),
        ("2018=train,2018=test", "a second time"),
        ("2018=train,2021=test", "names folders that do not exist in the source: 2021"),
        ("2018=val,2019=test", "names no folder for train"),
    ],
)
def test_what_is_wrong_with_split_folders_is_told(tmp_path: Path, text: str, told: str) -> None:
    root = fill(tmp_path, *each("2018", "2019"))
    with pytest.raises(UsageError, match=told):
        listed(root, split_folders=text)


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (("train", "test"), {"train": Split.TRAIN, "test": Split.TEST}),
        (("Training", "dev"), {"Training": Split.TRAIN, "dev": Split.VAL}),
    ],
)
def test_splits_may_be_inside_the_classes(
    tmp_path: Path, inner: tuple[str, str], expected: dict[str, Split]
) -> None:
    names = [f"{label}/{name}/1.jpg" for label in ("cat", "dog") for name in inner]
    found = splits(listed(fill(tmp_path, *names, "cow/" + inner[0] + "/1.jpg")))
    assert found["cow/" + inner[0] + "/1.jpg"] == ("cow", Split.TRAIN)
    for name in names:
        label, part, _ = name.split("/")
        assert found[name] == (label, expected[part])


@pytest.mark.parametrize(
    "names",
    [
        ("cat/train/1.jpg", "cat/test/1.jpg", "dog/train/1.jpg", "dog/test/1.jpg", "dog/2.jpg"),
        ("cat/easy/1.jpg", "cat/hard/1.jpg", "dog/easy/1.jpg", "dog/hard/1.jpg"),
    ],
)
def test_folders_inside_the_classes_that_may_be_splits_are_asked_for(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    root = fill(tmp_path, *names)
    with pytest.raises(UsageError, match="it is unknown which of both are the classes"):
        listed(root)
    assert {label for label, _ in splits(listed(root, classes_from=ClassesFrom.TOP)).values()} == {
        "cat",
        "dog",
    }
    inner = sorted({name.split("/")[1] for name in names if name.count("/") == 2})
    told = splits(listed(root, split_folders=f"{inner[0]}=train,{inner[1]}=test"))
    assert told[f"cat/{inner[0]}/1.jpg"] == ("cat", Split.TRAIN)
    assert told[f"dog/{inner[1]}/1.jpg"] == ("dog", Split.TEST)


TINY = [f"train/n0{1 + at % 2}/images/n0{1 + at % 2}_{at}.JPEG" for at in range(6)]


@pytest.mark.parametrize("folder", ["val/images", "val"])
@pytest.mark.parametrize("table", ["val/val_annotations.txt", "val_labels.csv"])
def test_labels_of_val_are_read_in_its_table(tmp_path: Path, folder: str, table: str) -> None:
    """As in Tiny ImageNet."""
    fill(tmp_path, *TINY, "train/n01/n01_boxes.txt", "test/images/t0.JPEG", "test/images/t1.JPEG")
    fill(tmp_path, *(f"{folder}/val_{at}.JPEG" for at in range(5)))
    rows = [f"val_{at}.JPEG\tn0{1 + at % 2}\t0\t{at}\t44\t62" for at in range(4)]
    if table.endswith(".csv"):
        rows = ["path,label", *(f"val_{at}.JPEG,n0{1 + at % 2}" for at in range(4))]
    (tmp_path / table).write_text("\n".join(rows))
    listing = listed(tmp_path)
    found = splits(listing)
    trained = [label for label, split in found.values() if split is Split.TRAIN]
    assert trained == ["n01"] * 3 + ["n02"] * 3
    held_out = {path: label for path, (label, split) in found.items() if split is Split.VAL}
    assert held_out == {f"{folder}/val_{at}.JPEG": f"n0{1 + at % 2}" for at in range(4)}
    assert len(found) == 6 + 4
    assert any(f"read the labels of val in {table}" in told for told in listing.warnings)
    assert f"1 picture(s) without a label in {table}" in listing.warnings[-1]
    assert "2 picture(s) without labels in test ('test/images/t0.JPEG', …)" in listing.warnings[-1]


@pytest.mark.parametrize("folder", ["val/images/", "val/unknown/", "val/val/", "val/"])
@pytest.mark.parametrize("label", [None, "n09"])
def test_val_without_labels_of_the_classes_is_skipped_with_a_note(
    tmp_path: Path, folder: str, label: str | None
) -> None:
    fill(tmp_path, *TINY, f"{folder}1.jpg", f"{folder}2.jpg")
    if label:
        (tmp_path / "val" / "labels.csv").write_text("path,label\n1.jpg,n09\n2.jpg,n01\n")
    listing = listed(tmp_path)
    assert {split for _, split in splits(listing).values()} == {Split.TRAIN}
    assert "2 picture(s) without labels in val" in listing.warnings[-1]


def test_a_class_of_val_that_train_lacks_is_not_skipped(tmp_path: Path) -> None:
    found = splits(listed(fill(tmp_path, *TINY, "val/n01/1.jpg", "val/other/1.jpg")))
    assert found["val/other/1.jpg"] == ("other", Split.VAL)


def versions(*folders: str, picture: str = "{}leaf_{}_RS") -> list[str]:
    """Return pictures of the same names in the classes of each folder."""
    return [
        f"{folder}/{label}/{picture.format(label, at)}{end}.jpg"
        for folder, end in zip(folders, ("", "", "_masked"), strict=False)
        for label in "ab"
        for at in range(4)
    ]


@pytest.mark.parametrize(
    ("folders", "picture"),
    [
        (("color", "grayscale", "segmented"), "{}leaf_{}_RS"),
        (("color", "grayscale"), "IMG_{1}"),
        (("color", "grayscale"), "{1}"),
        (("100x100", "200x200"), "{}r0_{}_100"),
        (("my v1", "my v2"), "{}leaf_{}_RS"),
    ],
)
def test_versions_of_a_data_set_are_never_proposed_as_splits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folders: tuple[str, ...],
    picture: str,
) -> None:
    monkeypatch.chdir(
        fill(tmp_path, *versions(*(f"raw/{one}" for one in folders), picture=picture))
    )
    with pytest.raises(UsageError, match="folders of the same names") as caught:
        listed(Path("raw"))
    assert "--split-folders" not in str(caught.value)
    command = str(caught.value.fix).partition("stepladder prepare ")[2].partition(". If ")[0]
    found = splits(listed(Path(*shlex.split(command))))
    assert len(found) == 8
    assert {label for label, _ in found.values()} == {"a", "b"}


def test_versions_with_splits_in_them_are_asked_for(tmp_path: Path) -> None:
    names = versions("raw/color/train", "raw/color/test") + versions("raw/gray/train")
    fill(tmp_path, *names, "raw/gray/test/a/9.jpg")
    with pytest.raises(UsageError, match="versions of one data set") as caught:
        listed(tmp_path / "raw")
    assert f"stepladder prepare {tmp_path}/raw/color" in str(caught.value.fix)


def test_sessions_with_the_names_of_a_camera_may_be_splits(tmp_path: Path) -> None:
    names = versions("session 1", "session 2", picture="IMG_{1}")
    with pytest.raises(UsageError, match="it is unknown which") as caught:
        listed(fill(tmp_path, *names))
    assert "--split-folders 'session 1=train,session 2=test'" in str(caught.value.fix)


PLACES = (
    "a/airfield/1.jpg",
    "a/apartment_building/outdoor/1.jpg",
    "b/barn/1.jpg",
    "b/2_bars/1.jpg",
)


@pytest.mark.parametrize("letters", ["", "A-", "split"])
def test_folders_of_letters_are_no_classes(tmp_path: Path, letters: str) -> None:
    names = PLACES
    if letters == "A-":  # A-A/airfield
        names = tuple(f"{name[0].upper()}-{name}" for name in PLACES)
    if letters == "split":
        names = tuple(f"{split}/{name}" for split in ("train", "val") for name in PLACES)
    listing = listed(fill(tmp_path, *names))
    assert {picture.label for picture in listing.pictures} == {
        *("airfield", "apartment_building/outdoor", "barn", "2_bars"),
    }
    assert len(listing.pictures) == len(names)
    assert "If the letters are the classes: --classes-from top" in listing.warnings[0]
    if letters != "split":
        top = listed(tmp_path, classes_from=ClassesFrom.TOP)
        assert {picture.label.lower()[0] for picture in top.pictures} == {"a", "b"}


def test_letters_that_are_classes_stay_so(tmp_path: Path) -> None:
    signs = fill(tmp_path / "signs", "a/1.jpg", "b/1.jpg")
    assert {picture.label for picture in listed(signs).pictures} == {"a", "b"}
    assert listed(signs).warnings == ()
    people = fill(tmp_path / "people", "a/anna/1.jpg", "a/tom/1.jpg", "b/mia/1.jpg")
    listing = listed(people)
    assert {picture.label for picture in listing.pictures} == {"a", "b"}
    flag = shlex.split(listing.warnings[0].partition("--label-pattern ")[2])[0]
    deeper = listed(people, label_pattern=flag)
    assert {picture.label for picture in deeper.pictures} == {"anna", "tom", "mia"}


def test_one_shared_folder_in_every_class_is_no_question(tmp_path: Path) -> None:
    found = listed(fill(tmp_path, "cat/images/1.jpg", "dog/images/1.jpg", "dog/boxes/1.jpg"))
    assert {picture.label for picture in found.pictures} == {"cat", "dog"}
    (said,) = found.warnings
    assert "beside the pictures ('dog/boxes/1.jpg')" in said


def flag_in(text: str, name: str) -> str:
    """Return the value of an option as a shell reads it."""
    return shlex.split(text.partition(f"--{name} ")[2])[0]


PLANTS = ["Apple/healthy", "Apple/scab", "Tomato/Leaf mold", "Tomato/healthy"]


@pytest.mark.parametrize("above", ["", "plants (v1)/", "splits"])
def test_class_folders_inside_class_folders_are_reported_with_the_option_that_reads_them(
    tmp_path: Path, above: str
) -> None:
    starts = ["train/", "val/"] if above == "splits" else [above]
    fill(tmp_path, *(f"{start}{name}/1.jpg" for start in starts for name in PLANTS))
    listing = listed(tmp_path)
    assert {picture.label for picture in listing.pictures} == {"Apple", "Tomato"}
    said = listing.warnings[-1]
    assert f"Apple, Tomato are classes with pictures in 4 folders: {', '.join(PLANTS)}. If" in said
    assert ("--group-by folder" in said) is (above != "splits")
    deeper = listed(tmp_path, label_pattern=flag_in(said, "label-pattern"))
    assert {picture.label for picture in deeper.pictures} == set(PLANTS)
    assert [one.split for one in deeper.pictures] == [one.split for one in listing.pictures]
    assert len(deeper.pictures) == len(listing.pictures)


def test_one_class_folder_with_others_in_it_is_reported(tmp_path: Path) -> None:
    listing = listed(fill(tmp_path, "cat/1.jpg", "cat/kittens/1.jpg", "dog/1.jpg"))
    (said,) = listing.warnings
    assert "cat is a class with pictures in 2 folders: cat, cat/kittens" in said
    assert "--group-by folder" not in said, "which refuses pictures directly in a class folder"
    deeper = listed(tmp_path, label_pattern=flag_in(said, "label-pattern"))
    assert {one.label for one in deeper.pictures} == {"cat", "cat/kittens", "dog"}


@pytest.mark.parametrize(
    "options",
    [{"classes_from": ClassesFrom.TOP}, {"group_by": "folder"}, {"label_pattern": "^(.)"}],
)
def test_folders_inside_class_folders_that_the_user_knows_of_are_not_reported(
    tmp_path: Path, options: dict[str, object]
) -> None:
    fill(tmp_path, *(f"{name}/1.jpg" for name in PLANTS))
    assert listed(tmp_path, **options).warnings == ()


def test_parts_of_a_download_are_no_folders_inside_a_class(tmp_path: Path) -> None:
    parts = ("photos-20240101T000000Z-001", "photos-20240101T000000Z-002")
    listing = listed(fill(tmp_path, *each(*(f"{part}/photos" for part in parts))))
    assert len(listing.pictures) == 4
    assert not any("with pictures in" in warning for warning in listing.warnings)


def masked(*folders: str, masks: tuple[str, ...] = ("masks",)) -> list[str]:
    return [
        f"{one}/{kind}/{at}.png" for one in folders for kind in ("images", *masks) for at in "12"
    ]


@pytest.mark.parametrize(
    "masks", [("masks",), ("infection masks", "lung masks"), ("ground_truth",)]
)
@pytest.mark.parametrize("option", [ClassesFrom.AUTO, ClassesFrom.TOP])
@pytest.mark.parametrize("above", ["", "x/"])
def test_masks_inside_class_folders_are_left_out_and_reported(
    tmp_path: Path, masks: tuple[str, ...], option: ClassesFrom, above: str
) -> None:
    """As in the COVID-19 radiography data set."""
    names = masked(f"{above}COVID", f"{above}Normal", masks=masks)
    listing = listed(fill(tmp_path, *names), classes_from=option)
    assert paths(listing) == [name for name in names if "/images/" in name]
    assert {picture.label for picture in listing.pictures} == {"COVID", "Normal"}
    (said,) = listing.warnings[bool(above) :]
    assert f"skipped {4 * len(masks)} picture(s) in folders of masks" in said
    assert f"COVID/{sorted(masks)[0]}/1.png" in said


@pytest.mark.parametrize(
    "names",
    [
        masked("train/a", "train/b", "val/a", "val/b"),
        masked("a/train", "b/train", "a/val", "b/val"),
        [
            f"{split}/{kind}/{label}/1.png"
            for split in ("train", "val")
            for kind in ("images", "masks")
            for label in "ab"
        ],
        [f"a/{at}.png" for at in range(4)] + ["a/masks/1.png", "b/1.png", "b/mask/1.png"],
    ],
)
def test_masks_inside_splits_and_beside_pictures_are_left_out(
    tmp_path: Path, names: list[str]
) -> None:
    listing = listed(fill(tmp_path, *names))
    assert sorted(paths(listing)) == sorted(name for name in names if "/mask" not in name)
    assert {picture.label for picture in listing.pictures} == {"a", "b"}
    num_masks = sum("/mask" in name for name in names)
    assert f"skipped {num_masks} picture(s) in folders of masks" in " ".join(listing.warnings)


@pytest.mark.parametrize(
    "names",
    [
        ("train/live", "train/mask", "train/photo", "val/live", "val/mask", "val/photo"),
        ("with_mask", "without_mask"),
        ("images", "masks"),
        ("train/masks", "train/hats", "train/gloves"),
    ],
)
def test_classes_that_are_called_masks_stay_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    listing = listed(fill(tmp_path, *(f"{name}/1.png" for name in names)))
    assert {one.label for one in listing.pictures} == {name.rpartition("/")[2] for name in names}


def test_masks_beside_their_pictures_are_left_out_and_reported(tmp_path: Path) -> None:
    """As in the breast ultrasound images: one picture may have several masks."""
    own = [f"{label}/{label} ({at}).png" for label in ("benign", "normal") for at in (1, 2)]
    masks = [name.replace(".png", end) for name in own for end in ("_mask.png", "_mask_1.png")]
    listing = listed(fill(tmp_path, *own, *masks))
    assert sorted(paths(listing)) == sorted(own)
    (said,) = listing.warnings
    assert f"skipped {len(masks)} mask(s) of a picture in the same folder" in said
    assert "benign (1)_mask.png" in said


def test_a_name_of_a_mask_without_its_picture_is_a_picture(tmp_path: Path) -> None:
    names = ["on/1_mask.png", "on/face-with-mask.jpg", "off/1_mask.png", "off/2.png"]
    listing = listed(fill(tmp_path, *names))
    assert sorted(paths(listing)) == sorted(names)
    assert listing.warnings == ()


def test_patients_above_classes_are_asked_for_with_options_that_work(tmp_path: Path) -> None:
    """As in the breast histopathology images."""
    patients = [f"1{number}" for number in range(253, 259)]
    fill(
        tmp_path,
        *(f"IDC (50)/{one}/{label}/{one}_{label}.png" for one in patients for label in "01"),
    )
    with pytest.raises(UsageError, match="it is unknown which of both are the classes") as caught:
        listed(tmp_path)
    fix = str(caught.value.fix)
    assert fix.startswith(f"If 0, 1 are the classes, and {', '.join(patients)} are for example")
    assert "0=train" not in fix
    pattern, group_by = flag_in(fix, "label-pattern"), flag_in(fix, "group-by")
    found = listed(tmp_path, label_pattern=pattern, group_by=group_by)
    assert len(found.pictures) == 12
    assert all(one.label == one.path.rpartition("_")[2][0] for one in found.pictures)
    hashes = [one.path.encode() * 8 for one in found.pictures]
    drawn = assign_splits(found, hashes, val_frac=0.5, group_by=group_by)
    assert (
        len(
            {
                (one.path.split("/")[1], split)
                for one, split in zip(found.pictures, drawn, strict=True)
            }
        )
        == 6
    )


@pytest.mark.parametrize("inner", [("easy", "hard"), ("session 1", "session 2")])
def test_classes_above_folders_of_the_same_names_are_offered_first(
    tmp_path: Path, inner: tuple[str, str]
) -> None:
    fill(tmp_path, *(f"{label}/{one}/{label}.jpg" for label in ("COVID", "rain") for one in inner))
    with pytest.raises(UsageError) as caught:
        listed(tmp_path)
    fix = str(caught.value.fix)
    assert fix.index("--classes-from top") < fix.index("--label-pattern")
    assert "COVID=" not in fix
    assert "rain=" not in fix
    found = listed(tmp_path, label_pattern=flag_in(fix, "label-pattern"))
    assert {picture.label for picture in found.pictures} == set(inner)


@pytest.mark.parametrize(
    ("train", "val"),
    [("train", "val"), ("Training", "Testing"), ("", ""), ("images/train", "images/val")],
)
def test_classes_in_two_unicode_forms_are_joined_with_a_warning(
    tmp_path: Path, train: str, val: str
) -> None:
    composed, apart = "\u00c4pfel", "A\u0308pfel"
    assert composed != apart
    names = [f"{train}/{composed}/1.jpg", f"{train}/{NFD_ONLY}/1.jpg"]
    names += [f"{val}/{apart}/2.jpg", f"{val}/{NFD_ONLY}/2.jpg"]
    listing = listed(fill(tmp_path, *(name.lstrip("/") for name in names)))
    assert {picture.label for picture in listing.pictures} == {composed, NFD_ONLY}
    assert len(listing.pictures) == 4
    assert all(Path(listing.file(picture)).exists() for picture in listing.pictures)
    (said,) = [one for one in listing.warnings if "Unicode" in one]
    assert said.endswith(f": {composed}")


NFD_ONLY = "Cafe\u0301"


@pytest.mark.parametrize(
    ("inside", "names"),
    [
        ("dataset", ["dataset/a/1.jpg", "dataset/b/1.jpg"]),
        ("x/y", ["x/y/a/1.jpg", "x/y/b/1.jpg"]),
        ("data", ["data/train/a/1.jpg", "data/train/b/1.jpg", "data/test/a/1.jpg"]),
    ],
)
def test_a_single_folder_around_the_classes_is_named(
    tmp_path: Path, inside: str, names: list[str]
) -> None:
    (tmp_path / "__MACOSX" / "dataset").mkdir(parents=True)
    listing = listed(fill(tmp_path, *names))
    assert {picture.label for picture in listing.pictures} == {"a", "b"}
    assert sorted(paths(listing)) == sorted(names)
    assert f"read the pictures in {inside}, the only folder in it" in listing.warnings[0]


def test_a_single_folder_in_each_split_is_skipped(tmp_path: Path) -> None:
    """As some archives on Kaggle unpack."""
    root = fill(
        tmp_path,
        *each("seg_train/seg_train", "seg_test/seg_test"),
        "seg_pred/seg_pred/1.jpg",
    )
    found = splits(listed(root))
    assert found["seg_train/seg_train/a/a.jpg"] == ("a", Split.TRAIN)
    assert found["seg_test/seg_test/b/b.jpg"] == ("b", Split.TEST)
    assert len(found) == 4


def test_an_empty_folder_beside_the_data_is_told_with_the_folder_to_read(tmp_path: Path) -> None:
    root = fill(tmp_path, "pets/a/1.jpg", "pets/b/1.jpg", "extra/1.xml")
    with pytest.raises(DataError, match=f"use --source {root / 'pets'}"):
        listed(root)
    assert len(listed(root / "pets").pictures) == 2


def test_one_split_in_two_folders_is_an_error(tmp_path: Path) -> None:
    root = fill(tmp_path, "train/a/1.jpg", "val/a/1.jpg", "valid/a/1.jpg")
    with pytest.raises(UsageError, match="two of these folders are for the same split"):
        listed(root)


def test_splits_without_train_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none for train"):
        listed(fill(tmp_path, "val/a/1.jpg", "test/a/1.jpg"))


def test_junk_of_file_managers_is_never_a_class(tmp_path: Path) -> None:
    root = fill(
        tmp_path,
        *("a/1.jpg", "b/1.jpg", ".ipynb_checkpoints/1.jpg", "__MACOSX/a/._1.jpg", ".DS_Store"),
        *("a/.DS_Store", "a/Thumbs.db", "b/.hidden.jpg", "b/.ipynb_checkpoints/1.jpg"),
    )
    listing = listed(root)
    assert paths(listing) == ["a/1.jpg", "b/1.jpg"]
    assert listing.warnings == ()


@pytest.mark.parametrize(
    "name",
    [
        *(".DS_Store", "_DS_Store", "DS_Store", "._1.jpg", "Icon\r", "__MACOSX", ".Trashes"),
        *("Thumbs.db", "Thumbs.db:encryptable", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini"),
        *("$RECYCLE.BIN", "System Volume Information", "found.000", "~$labels.docx", "picasa.ini"),
        *("1.jpg:Zone.Identifier", "@eaDir", "#recycle", "#snapshot", "@Recycle", "lost+found"),
        *(".directory", ".fseventsd", ".Trash-1000", ".ipynb_checkpoints", "__pycache__"),
        *("README.md", "README.dataset.txt", "LICENSE.txt", "Licence.pdf", "CITATION.cff"),
    ],
)
def test_junk_is_skipped_wherever_it_is(name: str, tmp_path: Path) -> None:
    inside = f"{name}/1.jpg"
    for number, found in enumerate((name, inside)):
        root = fill(tmp_path / str(number), *each("train", "test"))
        fill(root, found, f"train/{found}", f"train/a/{found}", f"test/{found}", f"test/b/{found}")
        listing = listed(root)
        assert paths(listing) == each("train", "test")
        assert listing.warnings == ()


def test_classes_with_names_similar_to_junk_are_kept(tmp_path: Path) -> None:
    names = ["icon", "recycle", "thumbs", "desktop", "lost", "snapshot", "found.1", "#tag", "a:b"]
    root = fill(tmp_path, *(f"{name}/1.jpg" for name in names))
    assert sorted(picture.label for picture in listed(root).pictures) == sorted(names)


def test_a_doubled_folder_of_a_split_with_junk_in_it_is_read(tmp_path: Path) -> None:
    files = [
        f"{split}/{split}/{name}"
        for split in ("training_set", "test_set")
        for name in ("cats/1.jpg", "cats/_DS_Store", "dogs/1.jpg", "dogs/_DS_Store")
    ]
    listing = listed(fill(tmp_path, *files))
    assert splits(listing) == {
        f"{folder}/{folder}/{label}/1.jpg": (label, split)
        for folder, split in (("training_set", Split.TRAIN), ("test_set", Split.TEST))
        for label in ("cats", "dogs")
    }


def test_files_that_are_no_pictures_are_counted(tmp_path: Path) -> None:
    listing = listed(fill(tmp_path, "a/1.jpg", "a/notes.txt", "b/1.jpg", "b/2.gif", "stray.jpg"))
    assert "b/2.gif" in paths(listing)
    assert "'a/notes.txt'" in listing.warnings[0]
    assert "'stray.jpg'" in listing.warnings[0]


NAMES = [
    "two words.jpg",
    "new\nline.jpg",
    "-rf.jpg",
    "\u00e9.jpg",
    "e\u0301.jpg",
    "\U0001f34e.jpg",
    "'quote\".jpg",
    "Case.jpg",
    "case.jpg",
    "x" * 251 + ".jpg",
]


def test_any_name_can_be_listed_and_opened(tmp_path: Path) -> None:
    root = fill(tmp_path, *(f"a/{name}" for name in NAMES), "b/1.jpg")
    listing = listed(root)
    assert {path.removeprefix("a/") for path in paths(listing)} == {*NAMES, "b/1.jpg"}
    assert all(Path(listing.file(picture)).exists() for picture in listing.pictures)


def test_names_that_are_no_utf8_can_be_listed_and_opened(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.jpg", "b/1.jpg")
    raw = os.fsencode(tmp_path) + b"/a/\xff\xfe.jpg"
    with open(raw, "wb") as file:  # noqa: PTH123 (a name as bytes)
        file.write(b"raw")
    listing = listed(tmp_path)
    odd = next(picture for picture in listing.pictures if "1" not in picture.path)
    assert printable(odd.path) == r"a/\xff\xfe.jpg"
    assert Path(listing.file(odd)).read_bytes() == b"raw"


def test_order_does_not_hang_on_how_files_were_made(tmp_path: Path) -> None:
    names = [f"{label}/{i}.jpg" for label in "ab" for i in range(20)]
    one = fill(tmp_path / "one", *names)
    other = fill(tmp_path / "other", *reversed(names))
    assert paths(listed(one)) == paths(listed(other))


def test_links_are_followed_inside_only(tmp_path: Path) -> None:
    outside = fill(tmp_path / "outside", "secret.jpg")
    root = fill(tmp_path / "in", "a/1.jpg", "b/1.jpg")
    (root / "b" / "inner.jpg").symlink_to(root / "a" / "1.jpg")
    (root / "b" / "outer.jpg").symlink_to(outside / "secret.jpg")
    (root / "b" / "folder").symlink_to(outside)
    (root / "b" / "dangling.jpg").symlink_to(root / "nothing.jpg")
    listing = listed(root)
    assert paths(listing) == ["a/1.jpg", "b/1.jpg", "b/inner.jpg"]
    assert "broken link" in listing.warnings[0]
    assert "--follow-symlinks" in listing.warnings[0]
    followed = paths(listed(root, follow_symlinks=True))
    assert followed == ["a/1.jpg", "b/1.jpg", "b/folder/secret.jpg", "b/inner.jpg", "b/outer.jpg"]


def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder whose class b is a link, and whose class a has links, two of them broken."""
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, "pool/others/1.jpg", "pool/others/2.jpg", "ok/1.jpg", "ok/2.jpg", "my set/a/up")
    root = tmp_path / "my set"
    (root / "a" / "up").unlink()
    for name in ("1.jpg", "2.jpg", "7.jpg", "8.jpg"):
        (root / "a" / f"link_{name}").symlink_to(f"../../pool/others/{name}")
    (root / "b").symlink_to("../ok")
    return root


def test_links_out_of_the_source_are_refused_with_the_command_that_follows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = links(tmp_path, monkeypatch)
    with pytest.raises(
        DataError, match="in these class folders are links out of the source: a"
    ) as caught:
        listed(root)
    assert "2 broken link(s) ('a/link_7.jpg', 'a/link_8.jpg')" in str(caught.value.why)
    assert "3 link(s) that point outside the source" in str(caught.value.why)
    assert str(caught.value.fix).endswith(": stepladder prepare 'my set' --follow-symlinks")
    followed = listed(root, follow_symlinks=True)
    assert [(one.path, one.label) for one in followed.pictures] == [
        *(("a/link_1.jpg", "a"), ("a/link_2.jpg", "a"), ("b/1.jpg", "b"), ("b/2.jpg", "b"))
    ]
    (warning,) = followed.warnings
    assert "skipped 2 broken link(s) ('a/link_7.jpg', 'a/link_8.jpg')" in warning


def test_links_of_all_splits_are_counted(tmp_path: Path) -> None:
    pool = fill(tmp_path / "pool", *(f"{idx}.jpg" for idx in range(12)))
    for idx in range(12):
        folder = tmp_path / f"set/{('train', 'test')[idx % 2]}/{'abc'[idx % 3]}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{idx}.jpg").symlink_to(pool / f"{idx}.jpg")
    with pytest.raises(DataError, match="are links out of the source: train/a, train/b") as caught:
        listed(tmp_path / "set")
    assert "12 link(s) that point outside the source" in str(caught.value.why)


def test_a_class_that_is_a_link_out_of_the_source_is_never_left_out_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fill(links(tmp_path, monkeypatch), "a/1.jpg")
    with pytest.raises(DataError, match="only one class folder") as caught:
        listed(root)
    assert str(caught.value.fix).endswith(": stepladder prepare 'my set' --follow-symlinks")
    (warning,) = listed(fill(root, "c/1.jpg")).warnings
    assert "3 link(s) that point outside the source" in warning
    assert warning.endswith("add --follow-symlinks --overwrite to the command")
    only_links = tmp_path / "linked"
    only_links.mkdir()
    for name in "ab":
        (only_links / name).symlink_to(root / name)
    with pytest.raises(DataError, match="no class folders with pictures") as caught:
        listed(only_links)
    assert str(caught.value.fix).endswith(": stepladder prepare linked --follow-symlinks")


def test_content_that_git_annex_or_dvc_has_not_fetched_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, "dvc/a/1.jpg.dvc", "dvc/b/1.jpg.dvc", "annex/a/x", "annex/b/x", "top/a.dvc")
    for label in "ab":
        (tmp_path / "annex" / label / "x").unlink()
        for name in ("1.jpg", "2.jpg"):
            link = f"../../.git/annex/objects/aa/bb/SHA256E-s9--{label}{name}/SHA256E-s9--{name}"
            (tmp_path / "annex" / label / name).symlink_to(link)
    for place, command, told in (
        ("annex", "git annex get .", "4 link(s) of git-annex whose content is not on this machine"),
        ("dvc", "dvc pull", "2 pointer(s) of DVC whose files are not on this machine"),
        ("top", "dvc pull", "1 pointer(s) of DVC whose files are not on this machine ('a.dvc')"),
    ):
        with pytest.raises(DataError) as caught:
            listed(tmp_path / place)
        assert told in str(caught.value)
        fix = f": (cd {place} && {command}) && stepladder prepare {place}"
        assert str(caught.value.fix).endswith(fix)
    (warning,) = listed(fill(tmp_path / "dvc", "a/2.jpg", "b/2.jpg")).warnings
    assert warning.endswith("(cd dvc && dvc pull)")
    fill(tmp_path / "dvc", "a/1.jpg", "b/1.jpg")
    (warning,) = listed(tmp_path / "dvc").warnings
    assert "2 file(s) without a picture extension (.dvc)" in warning, "its picture is there"


@pytest.mark.parametrize("follow", [False, True])
def test_loops_of_links_end(tmp_path: Path, follow: bool) -> None:
    root = fill(tmp_path, "a/1.jpg", "b/1.jpg")
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "self").symlink_to(root / "a" / "self")
    (root / "a" / "other").symlink_to(root / "b")
    (root / "b" / "other").symlink_to(root / "a")
    listing = listed(root, follow_symlinks=follow)
    assert set(paths(listing)) >= {"a/1.jpg", "b/1.jpg", "a/other/1.jpg", "b/other/1.jpg"}
    assert len(listing.pictures) == 4
    assert "to a parent folder" in listing.warnings[0]


def test_a_fifo_is_never_opened(tmp_path: Path) -> None:
    root = fill(tmp_path, "a/1.jpg", "b/1.jpg")
    os.mkfifo(root / "a" / "pipe.jpg")
    listing = listed(root)
    assert len(listing.pictures) == 2
    assert "neither a file nor a folder" in listing.warnings[0]


def test_a_missing_folder_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist") as caught:
        listed(tmp_path / "nothing")
    assert "--source" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "no class folders with pictures"),
        (("1.jpg",), "no class folders with pictures"),
        (("a/1.jpg", "b/notes.txt"), "no pictures that can be read: b"),
        (("a/1.jpg", "a/2.jpg"), "the same label, 'a'"),
        (("train/a/1.jpg", "val/a/1.jpg"), "the same label, 'a'"),
    ],
)
def test_what_can_make_no_data_set_is_refused(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        listed(fill(tmp_path, *names))
    assert caught.value.exit_code == 3


def test_an_empty_class_folder_in_val_is_not_an_error(tmp_path: Path) -> None:
    root = fill(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg")
    (root / "val" / "b").mkdir()
    assert len(listed(root).pictures) == 3


def test_a_place_that_is_mistyped_names_the_one_that_is_there(tmp_path: Path) -> None:
    fill(tmp_path / "photos", "a/1.jpg", "b/1.jpg")
    with pytest.raises(UsageError) as caught:
        listed(tmp_path / "fotos")
    assert str(caught.value.fix).startswith(f"Did you mean {tmp_path / 'photos'}? ")


def test_numbered_folders_are_asked_for_and_not_classes_that_resemble_a_split(
    tmp_path: Path,
) -> None:
    """The classes of C-NMC: `all` is similar to `val`, but fold_0 to fold_2 are the splits."""
    pictures = [f"fold_{fold}/{label}/1.jpg" for fold in range(3) for label in ("all", "hem")]
    root = fill(tmp_path, *pictures)
    with pytest.raises(UsageError) as caught:
        listed(root)
    typed = "fold_0=train,fold_1=train,fold_2=test"
    assert f"--split-folders {typed}" in str(caught.value.fix)
    found = splits(listed(root, split_folders=typed))
    assert {label for label, _ in found.values()} == {"all", "hem"}


def test_text_without_an_extension_is_no_picture(tmp_path: Path) -> None:
    """Annotations of the Stanford dogs have the names of their pictures, without `.jpg`."""
    root = fill(tmp_path, "a/1.jpg", "b/1.jpg", "b/2")
    (root / "a" / "1").write_text("<annotation>\n\t<folder>a</folder>\n</annotation>\n")
    (root / "b" / "2").write_bytes(b"\xff\xd8\xff\xe0\x00\x10JFIF")
    listing = listed(root)
    assert [picture.path for picture in listing.pictures] == ["a/1.jpg", "b/1.jpg", "b/2"]
    assert "1 file(s) of text ('a/1')" in listing.skipped.describe()


@pytest.mark.parametrize(
    "others",
    [
        ["attributes/x.txt", "parts/y.txt", "classes.txt"],
        ["segmentations/a/1.png", "segmentations/b/2.png", "images.txt", "README"],
        ["Annotation/a/1", "lists/train_list.mat"],
        ["readme.md"],
    ],
)
@pytest.mark.parametrize("wrapper", ["", "Images/"])
def test_pictures_beside_annotations_are_the_source(
    tmp_path: Path, others: list[str], wrapper: str
) -> None:
    names = [f"images/{wrapper}{label}/{at}.jpg" for label in "ab" for at in range(2)]
    fill(tmp_path, *names)
    for name in others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1 2 3\n")
    listing = listed(tmp_path)
    assert [(one.path, one.label) for one in listing.pictures] == [
        (name, name.rsplit("/", 2)[1]) for name in names
    ]
    assert f"read the pictures in images{'/Images' * bool(wrapper)}" in listing.warnings[0]


def test_pictures_beside_annotations_keep_their_splits(tmp_path: Path) -> None:
    fill(tmp_path, *[f"images/{name}" for name in each("train", "val")], "masks/train/a/0.png")
    assert {one.split for one in listed(tmp_path).pictures} == {Split.TRAIN, Split.VAL}


@pytest.mark.parametrize(("beside", "label"), [("cat/1.jpg", "cat"), ("photos/a/1.jpg", "photos")])
def test_other_classes_beside_images_are_not_left_out(
    tmp_path: Path, beside: str, label: str
) -> None:
    fill(tmp_path, "images/a/1.jpg", "images/b/2.jpg", beside)
    assert {one.label for one in listed(tmp_path).pictures} == {"images", label}


def test_a_picture_beside_images_is_counted_as_skipped(tmp_path: Path) -> None:
    fill(tmp_path, "images/a/1.jpg", "images/b/2.jpg", "masks/a/1.png", "1.jpg")
    listing = listed(tmp_path)
    assert paths(listing) == ["images/a/1.jpg", "images/b/2.jpg"]
    assert listing.skipped.counts == {"picture(s) outside any class folder": 1}


@pytest.mark.parametrize(
    ("ending", "name", "package"),
    [
        (".dcm", "DICOM", "pydicom"),
        (".nii.gz", "NIfTI", "nibabel"),
        (".NEF", "camera raw", "rawpy"),
    ],
)
def test_medical_and_raw_pictures_are_named_with_the_command_that_converts_them(
    ending: str, name: str, package: str, tmp_path: Path
) -> None:
    root = fill(tmp_path / "my scans", f"a/1{ending}", f"b/2{ending}")
    with pytest.raises(DataError) as caught:
        listed(root)
    assert f"2 {name} file(s), which cannot be read" in str(caught.value)
    told, _, command = str(caught.value.fix).partition(": pip install ")
    assert told.startswith("Convert them")
    is_raw = name == "camera raw"  # decoded to 8 bits
    assert ("one range of values is used for all pictures" in told) != is_raw
    assert ("scaled each by its own" in told) != is_raw, "units differ where it is no CT"
    install, _, convert = f"pip install {command}".partition(" && ")
    assert shlex.split(install)[:2] == ["pip", "install"]
    assert package in install
    python, option, script, folder = shlex.split(convert)
    assert (python, option, Path(folder)) == ("python", "-c", root)
    compile(script, "the command", "exec")
    assert f'"{ending.lower()}"' in script
    fill(root, "a/1.jpg", "b/1.jpg")
    (said,) = listed(root).warnings
    assert f"2 {name} file(s)" in said, "some pictures can be read"
    assert convert in said

"""Folders are listed completely, in one order, and nothing in them can mislead or block."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing, list_pictures
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


@pytest.mark.parametrize(
    ("folders", "meant"), [(("train", "tset"), "test"), (("trian", "val"), "train")]
)
def test_a_split_with_a_typing_error_is_not_a_class(
    tmp_path: Path, folders: tuple[str, str], meant: str
) -> None:
    root = fill(tmp_path, *(f"{folder}/{label}/1.jpg" for folder in folders for label in "ab"))
    with pytest.raises(DataError, match=f"Rename it to {root / meant},"):
        listed(root)


def test_a_lone_folder_next_to_train_with_the_same_classes_is_not_a_class(tmp_path: Path) -> None:
    root = fill(
        tmp_path, *(f"{folder}/{label}/1.jpg" for folder in ("train", "x") for label in "ab")
    )
    with pytest.raises(DataError, match="'train' is a split name and 'x' is not"):
        listed(root)


def test_classes_of_which_one_is_named_train_may_be_grouped_alike(tmp_path: Path) -> None:
    folders = ("boat", "car", "plane", "train")
    root = fill(tmp_path, *(f"{folder}/{year}/1.jpg" for folder in folders for year in (1, 2)))
    assert {picture.label for picture in listed(root).pictures} == set(folders)


def test_one_split_in_two_folders_is_an_error(tmp_path: Path) -> None:
    root = fill(tmp_path, "train/a/1.jpg", "val/a/1.jpg", "valid/a/1.jpg")
    with pytest.raises(UsageError, match="two folders for the same split"):
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
        ((), "no pictures"),
        (("1.jpg",), "no pictures"),
        (("a/1.jpg", "b/notes.txt"), "without pictures: b"),
        (("a/1.jpg", "a/2.jpg"), "only one class, 'a'"),
        (("train/a/1.jpg", "val/a/1.jpg"), "only one class, 'a'"),
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

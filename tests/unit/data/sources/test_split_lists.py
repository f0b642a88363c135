"""Lists of train and test beside pictures are named, and the printed command uses them."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures

CLASSES = ("001.Laysan Albatross", "b_2")
NAMES = tuple(f"{label}/{name}" for label in CLASSES for name in ("x_1", "y 2", "z3", "w"))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def listed(source: str, **options: object) -> Listing:
    return list_pictures(PrepareConfig(source=Path(source), **options))


def fill(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"x")


def write(path: str, *lines: str, end: str = "\n") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(end.join((*lines, "")), newline="")


def used(listing: Listing, source: str) -> dict[str, tuple[str, Split | None]]:
    """Run the printed command, and return the labels and splits of the pictures."""
    (said,) = [one for one in listing.warnings if "which is not used" in one]
    edit, _, command = said.partition(". To use it: ")[2].partition(" && stepladder prepare ")
    subprocess.run(["bash", "-c", edit], check=True)
    table, overwrite = shlex.split(command)
    assert overwrite == "--overwrite"
    found = listed(table)
    root = Path(source).absolute()
    return {
        str(Path(found.file(one)).resolve().relative_to(root)): (one.label, one.split)
        for one in found.pictures
    }


def expected(folder: str) -> dict[str, tuple[str, Split]]:
    """Every other picture is of test."""
    return {
        f"{folder}{name}.jpg": (name.partition("/")[0], (Split.TRAIN, Split.TEST)[at % 2])
        for at, name in enumerate(NAMES)
    }


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_flags_by_number_are_used_by_the_printed_command(end: str) -> None:
    fill(*(f"my birds/images/{name}.jpg" for name in NAMES), "my birds/parts/1.txt")
    names = [f"{at} {name}.jpg" for at, name in enumerate(NAMES, 1)]
    flags = [f"{at} {at % 2}" for at in range(1, len(NAMES) + 1)]
    write("my birds/images.txt", *names, end=end)
    write("my birds/train_test_split.txt", *flags, end=end)
    listing = listed("my birds")
    assert "train_test_split.txt has a split of the pictures" in listing.warnings[-1]
    assert used(listing, "my birds") == expected("images/")


@pytest.mark.parametrize(
    ("train", "test", "place", "folder"),
    [
        ("train.txt", "test.txt", "", ""),
        ("train.txt", "test.txt", "", "images/"),
        ("trainval.txt", "test.txt", "splits/", "images/"),
        ("train_list.txt", "test_list.txt", "meta/", "images/"),
        ("train1.txt", "test1.txt", "labels/", "images/"),
    ],
)
@pytest.mark.parametrize("ending", [".jpg", ""])
def test_lists_of_splits_are_used_by_the_printed_command(
    train: str, test: str, place: str, folder: str, ending: str
) -> None:
    fill(*(f"food/{folder}{name}.jpg" for name in NAMES))
    for name, start in ((train, 0), (test, 1)):
        write(f"food/{place}{name}", *(f"{one}{ending}" for one in NAMES[start::2]))
    listing = listed("food")
    assert f"{train}, {test} have a split of the pictures" in listing.warnings[-1]
    assert used(listing, "food") == expected(folder)


def test_lists_beside_a_flat_folder_are_used_by_the_printed_command() -> None:
    pets = [f"{breed}_{number}" for breed in ("Egyptian_Mau", "boxer") for number in (1, 14, 9)]
    fill(*(f"pets/images/{name}.jpg" for name in pets), *(f"pets/masks/{one}.png" for one in pets))
    write("pets/annotations/trainval.txt", *(f"{name} 1 2 3" for name in pets[::2]))
    write("pets/annotations/test.txt", *(f"{name} 1 2 3" for name in pets[1::2]))
    listing = listed("pets/images", label_pattern=r"([^/]+)_[0-9]+\.")
    assert used(listing, "pets") == {
        f"images/{name}.jpg": (name.rpartition("_")[0], (Split.TRAIN, Split.TEST)[at % 2])
        for at, name in enumerate(pets)
    }


def test_lists_without_classes_are_named_without_a_command() -> None:
    fill("a/images/b/x.jpg", "a/images/b/y.jpg", "a/images/c/v.jpg", "a/images/c/w.jpg")
    write("a/train.txt", "x.jpg", "v.jpg")
    write("a/test.txt", "y.jpg", "w.jpg")
    assert (
        listed("a")
        .warnings[-1]
        .endswith("train.txt, test.txt have a split of the pictures, which is not used")
    )


def test_other_lists_and_sources_with_splits_have_no_warning() -> None:
    fill(*(f"a/{split}/{name}.jpg" for split in ("train", "test") for name in NAMES))
    for name, start in (("train", 0), ("test", 1)):
        write(f"a/{name}.txt", *(f"train/{one}.jpg" for one in NAMES[start::2]))
    assert not any("not used" in warning for warning in listed("a").warnings)
    fill("b/c/1.jpg", "b/d/2.jpg", "b/e/3.jpg")
    write("b/train.txt", "loss 1", "loss 2")
    write("b/test.txt", "loss 3")
    write("b/train_test_split.txt", "1 0")
    assert not any("not used" in warning for warning in listed("b").warnings)

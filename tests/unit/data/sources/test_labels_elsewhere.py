"""Folders that are not classes are refused, and the command that finds the labels works."""

from __future__ import annotations

import shlex
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from stepladder.config.choices import ClassesFrom, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.containers.opening import open_pictures
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError, StepladderError, UsageError


def fill(root: Path, *names: str) -> Path:
    """Create files with any content, as listing opens none of them."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root


def listed(root: Path, **options: object) -> Listing:
    return list_pictures(PrepareConfig(source=root, **options))


def splits(listing: Listing) -> dict[str, tuple[str, Split | None]]:
    return {picture.path: (picture.label, picture.split) for picture in listing.pictures}


def each(*folders: str, classes: str = "ab") -> list[str]:
    """Return one picture of each class in each of some folders."""
    return [f"{folder}/{label}/{label}.jpg" for folder in folders for label in classes]


def fill_table(path: Path, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n")


def typed_listing(error: StepladderError, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Listing:
    """Type the command in an error's remedy, and list what it reads."""
    monkeypatch.chdir(cwd)
    before, _, command = str(error.fix).partition("stepladder prepare ")
    if " && " in before:
        edit = before.removeprefix("Type: ").removesuffix(" && ")
        subprocess.run(["bash", "-c", edit], check=True)
    source, *flags = shlex.split(command)
    options = {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(flags[::2], flags[1::2], strict=True)
    }
    return listed(Path(source), **options)


def num_of_classes(listing: Listing) -> dict[str, int]:
    return dict(Counter(picture.label for picture in listing.pictures))


CATS_AND_DOGS = [f"train/{label}.{idx}.jpg" for label in ("cat", "dog") for idx in range(12)]


@pytest.mark.parametrize(
    ("source", "names", "classes"),
    [
        ("", [*CATS_AND_DOGS, "test1/1.jpg", "test1/2.jpg"], {"cat": 12, "dog": 12}),
        ("", [*CATS_AND_DOGS, "test1/10.jpg", "test1/21.jpg"], {"cat": 12, "dog": 12}),
        ("", [*CATS_AND_DOGS, "test/test_1.jpg", "test/test_20.jpg"], {"cat": 12, "dog": 12}),
        ("", [*CATS_AND_DOGS, "test/1.jpg", "sample/1.jpg"], {"cat": 12, "dog": 12}),
        ("train", CATS_AND_DOGS, {"cat": 12, "dog": 12}),
        ("", CATS_AND_DOGS, {"cat": 12, "dog": 12}),
        (
            "",
            [f"images/{name}_{idx}.jpg" for name in ("great_dane", "Bombay") for idx in (1, 20)],
            {"great_dane": 2, "Bombay": 2},
        ),
        (
            "",
            ["images_train/a1 (1).jpg", "images_train/a1 (2).jpg", "images_train/x.jpg"],
            None,
        ),
        ("", ["train/1.jpg", "train/2.jpg", "test/3.jpg"], None),
        ("", ["train/IMG_1.jpg", "train/IMG_2.jpg", "val/IMG_3.jpg"], None),
    ],
)
def test_classes_in_the_names_of_pictures_are_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    names: list[str],
    classes: dict[str, int] | None,
) -> None:
    fill(tmp_path / "pets", *names)
    with pytest.raises(StepladderError) as caught:
        listed(tmp_path / "pets" / source)
    if classes is None:
        assert "--label-pattern" not in str(caught.value)
        return
    found = typed_listing(caught.value, tmp_path, monkeypatch)
    assert num_of_classes(found) == classes


def test_a_label_pattern_keeps_the_splits_of_folders(tmp_path: Path) -> None:
    names = ["train/cat.1.jpg", "train/dog.2.jpg", "test1/cat.3.jpg", "test1/4.jpg", "x/cat.5.jpg"]
    listing = listed(fill(tmp_path, *names), label_pattern=r"([a-z]+)\.\d+\.jpg$")
    assert splits(listing) == {
        "train/cat.1.jpg": ("cat", Split.TRAIN),
        "train/dog.2.jpg": ("dog", Split.TRAIN),
        "test1/cat.3.jpg": ("cat", Split.TEST),
    }
    said = " ".join(listing.warnings)
    assert "took folders for splits: test1 as test" in said
    assert "skipped everything that is not in a folder of train, val or test: x" in said
    assert "1 picture(s) that --label-pattern does not match ('test1/4.jpg')" in said
    (tmp_path / "x" / "dog.6.jpg").touch()
    found = splits(listed(tmp_path, label_pattern=r"([a-z]+)\.\d+", split_folders="x=train"))
    assert found == {"x/cat.5.jpg": ("cat", Split.TRAIN), "x/dog.6.jpg": ("dog", Split.TRAIN)}


def test_classes_of_a_split_that_train_lacks_are_kept_so_that_they_are_told(tmp_path: Path) -> None:
    names = ["train/cat.1.jpg", "train/dog.2.jpg", "test/Cat.3.jpg", "test/Dog.4.jpg"]
    listing = listed(fill(tmp_path, *names), label_pattern=r"([A-Za-z]+)\.\d+\.jpg$")
    assert splits(listing)["test/Cat.3.jpg"] == ("Cat", Split.TEST)


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("(", "not a valid regular"),
        ("cat", "0 groups"),
        ("(c)(a)", "2 groups"),
        ("(z)", "does not match the path of any picture"),
    ],
)
def test_what_is_wrong_with_a_label_pattern_is_told(
    tmp_path: Path, pattern: str, told: str
) -> None:
    root = fill(tmp_path, "cat_1.jpg", "dog_2.jpg")
    with pytest.raises(UsageError, match=told):
        listed(root, label_pattern=pattern)


@pytest.mark.parametrize(
    "folders",
    [
        ("train", "test1"),
        ("train_images", "test_images"),
        ("images_train", "images_val", "images_test"),
        ("seg_train", "seg_test"),
        ("stage_1_train_images", "stage_1_test_images"),
        ("training", "evaluation"),
        ("train-jpg", "test-jpg-v2"),
        ("train_images", "test_images", "thumbs"),
    ],
)
def test_pictures_in_folders_of_splits_are_never_read_as_classes(
    tmp_path: Path, folders: tuple[str, ...]
) -> None:
    root = fill(tmp_path, *(f"{name}/{idx}.jpg" for name in folders for idx in range(4)))
    with pytest.raises(UsageError, match="pictures instead of one folder for each class") as caught:
        listed(root)
    assert folders[0] in caught.value.what
    assert "CSV" in str(caught.value.fix)
    found = listed(root, classes_from=ClassesFrom.TOP)
    assert num_of_classes(found) == dict.fromkeys(folders, 4)


def test_splits_that_share_no_class_are_asked_for(tmp_path: Path) -> None:
    root = fill(tmp_path, "train_images/a/1.jpg", "train_images/b/1.jpg", "test_images/c/1.jpg")
    with pytest.raises(UsageError, match="all folders are named as splits") as caught:
        listed(root)
    assert "--split-folders test_images=test,train_images=train" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("asl_train/asl_train", "asl_test/asl_test"),
        ("asl/data/asl_train/asl_train/asl_train", "asl/data/asl_test/asl_test"),
        ("asl_train/asl", "asl_test/asl"),
        ("train", "test1"),
        ("train", "test1/test1"),
        ("train/train", "test/test"),
        ("train/train", "test"),
        ("train/asl", "test/asl"),
        ("Train", "testset/images"),
        ("training/Train", "testset/testset/testset"),
    ],
)
@pytest.mark.parametrize("has_strays", [False, True])
def test_pictures_of_test_without_class_folders_are_named_and_left_out(
    train: str, test: str, has_strays: bool, tmp_path: Path
) -> None:
    pictures = [f"{train}/{label}/{idx}.jpg" for label in "ab" for idx in range(2)]
    flat = [f"{test}/{label}_test.jpg" for label in "abc"]
    outer = train.partition("/")[0]
    strays = [f"{outer}/preview.png", f"{outer}/readme.md", "LICENSE.txt", "sample.png"]
    root = fill(tmp_path, *pictures, *flat, *(strays if has_strays else []))
    listing = listed(root)
    assert splits(listing) == {path: (path.split("/")[-2], Split.TRAIN) for path in pictures}
    said = "\n".join(listing.warnings)
    assert "3 picture(s) without labels in " in said
    assert f"({flat[0]!r}, …)" in said
    if has_strays:
        num_outside = len({f"{outer}/preview.png", "sample.png"})
        assert listing.skipped.counts["picture(s) outside any class folder"] == num_outside


def test_a_table_labels_pictures_of_test_without_class_folders(tmp_path: Path) -> None:
    root = fill(tmp_path, *each("my_train/my_train"), "my_test/my_test/1.jpg")
    fill_table(root / "my_test.csv", "path,label", "my_test/my_test/1.jpg,b")
    assert splits(listed(root))["my_test/my_test/1.jpg"] == ("b", Split.TEST)


@pytest.mark.parametrize(
    ("train", "test"),
    [("train", "test/test"), ("train/train", "test"), ("my_train", "my_test/my_test")],
)
def test_splits_in_a_folder_of_their_own_keep_their_classes(
    train: str, test: str, tmp_path: Path
) -> None:
    found = splits(listed(fill(tmp_path, *each(train, test))))
    assert found[f"{train}/a/a.jpg"] == ("a", Split.TRAIN)
    assert found[f"{test}/b/b.jpg"] == ("b", Split.TEST)


def test_folders_inside_the_only_class_of_val_are_no_classes(tmp_path: Path) -> None:
    root = fill(tmp_path, *each("train", classes="ab"), "val/a/left/1.jpg", "val/a/right/1.jpg")
    assert splits(listed(root))["val/a/left/1.jpg"] == ("a", Split.VAL)


def test_pictures_in_folders_of_splits_in_folders_are_never_read_as_classes(tmp_path: Path) -> None:
    root = fill(tmp_path, *(f"{one}/{one}/{idx}.jpg" for one in ("train", "test") for idx in "12"))
    with pytest.raises(UsageError, match="pictures instead of one folder for each class"):
        listed(root)


def test_a_split_that_is_not_train_is_read_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fill(tmp_path / "my set", *each("my_val/my_val"), "my_test/1.jpg")
    with pytest.raises(UsageError, match="all folders are named as splits") as caught:
        listed(root)
    assert "--split-folders" not in str(caught.value.fix), "they have no pictures of train"
    typed = str(caught.value.fix).splitlines()[0].partition(": ")[2]
    found = typed_listing(UsageError("", fix=f"Type: {typed}"), tmp_path, monkeypatch)
    assert num_of_classes(found) == {"a": 1, "b": 1}


def test_a_label_pattern_for_a_table_is_refused(tmp_path: Path) -> None:
    fill_table(tmp_path / "table.csv", "path,label", "1.jpg,a")
    with pytest.raises(UsageError, match="if the source is a folder of picture files"):
        open_pictures(PrepareConfig(source=tmp_path / "table.csv", label_pattern="(a)"))


BREEDS = ["Abyssinian", "Egyptian_Mau", "american_bulldog", "saint_bernard"]
PETS = [f"{breed}_{number}" for breed in BREEDS for number in (1, 14, 27)]


def pets(root: Path, *, masks: str = "annotations/trimaps", images: str = "images") -> Path:
    """Write pictures with the breed in their names beside masks of them."""
    fill(
        root, *(f"{images}/{name}.jpg" for name in PETS), *(f"{masks}/{name}.png" for name in PETS)
    )
    return fill(root, f"{images}/{PETS[0]}.mat", f"{masks}/._{PETS[0]}.png")


@pytest.mark.parametrize("images", ["images", "JPEGImages", "photos/all"])
@pytest.mark.parametrize("masks", ["annotations/trimaps", "masks", "SegmentationClass"])
@pytest.mark.parametrize("has_list", [False, True])
def test_masks_are_never_the_pictures_if_the_classes_are_in_the_names(
    images: str, masks: str, has_list: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = pets(tmp_path / "pets", masks=masks, images=images)
    if has_list:
        lines = [
            f"{name} {at // 3 + 1} {at // 6 + 1} {at % 6 // 3 + 1}" for at, name in enumerate(PETS)
        ]
        head = ["#Image CLASS-ID SPECIES BREED ID", "#ID: 1:37 Class ids"]
        (root / "annotations").mkdir(exist_ok=True)
        (root / "annotations" / "list.txt").write_text("\n".join((*head, *lines)))
    with pytest.raises(UsageError) as caught:
        listed(root)
    found = typed_listing(caught.value, tmp_path, monkeypatch)
    assert num_of_classes(found) == dict.fromkeys(BREEDS, 3)
    assert {Path(found.file(one)).parent for one in found.pictures} == {root / images}
    if has_list:
        by_numbers = str(caught.value.why).partition("With the numbers in list.txt")[2]
        assert f"--path-format '../{images}/{{}}.jpg'" in by_numbers
        found = typed_listing(UsageError("", fix=by_numbers), tmp_path, monkeypatch)
        assert num_of_classes(found) == dict.fromkeys("1234", 3)


def test_a_label_pattern_leaves_out_masks_with_the_names_of_pictures(tmp_path: Path) -> None:
    root = pets(tmp_path)
    found = listed(root, label_pattern=r"([^/]+)_[0-9]+\.")
    assert num_of_classes(found) == dict.fromkeys(BREEDS, 3)
    assert "12 picture(s) in folders of masks or annotations" in found.warnings[0]
    fill(root, "with_mask/1.jpg", "mask/1.jpg", "no/1.jpg")
    found = listed(root, label_pattern="^([a-z_]+)/[0-9]")
    assert num_of_classes(found) == {"mask": 1, "no": 1, "with_mask": 1}


IDS = [str(1000 + 7 * idx) for idx in range(12)]


@pytest.mark.parametrize(
    ("source", "table", "header", "cell", "place", "beside"),
    [
        ("", "train.csv", "image_id,label", "{}.jpg", "train_images/{}.jpg", ["test_images/1.jpg"]),
        ("", "labels.csv", "id,breed", "{}", "train/{}.jpg", ["test/1.jpg"]),
        ("train", "labels.csv", "id,breed", "{}", "train/{}.jpg", ["test/1.jpg"]),
        ("", "labels.csv", "file_name,label", "{}.jpg", "{}.jpg", []),
        ("", "train/labels.csv", "file_name,label", "{}.jpg", "train/{}.jpg", ["test/1.jpg"]),
        ("", "labels.csv", "path,class", "imgs/{}.jpg", "imgs/{}.jpg", ["masks/1.jpg"]),
        ("", "labels.csv", "x,kind", "{}", "images/{}.png", []),
        ("", "data.csv", "image,age,dx", "{}", "jpeg/train/{}.jpg", ["jpeg/test/1.jpg"]),
    ],
)
def test_a_table_that_names_the_pictures_is_pointed_to(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    table: str,
    header: str,
    cell: str,
    place: str,
    beside: list[str],
) -> None:
    root = tmp_path / "my data"
    fill(root, *(place.format(one) for one in IDS), *beside)
    filler = "," + "3" if header.count(",") == 2 else ""
    labels = ["cat", "dog", "cow"]
    rows = [f"{cell.format(one)}{filler},{labels[at % 3]}" for at, one in enumerate(IDS)]
    fill_table(root / table, header, *rows)
    fill_table(root / "sample_submission.csv", header, f"1{filler},cat")
    with pytest.raises(StepladderError, match=Path(table).name) as caught:
        listed(root / source)
    found = typed_listing(caught.value, tmp_path, monkeypatch)
    assert num_of_classes(found) == {"cat": 4, "dog": 4, "cow": 4}
    assert all(Path(found.file(picture)).exists() for picture in found.pictures)


@pytest.mark.parametrize(
    ("source", "table"),
    [("", "Training_GroundTruth/truth.csv"), ("", "truth.csv"), ("Training_Input", "truth.csv")],
)
def test_a_column_for_each_class_is_pointed_to_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, source: str
) -> None:
    root = tmp_path / "ISIC 2018"
    fill(root, *(f"Training_Input/{one}.jpg" for one in IDS))
    bits = ["1.0,0.0,0.0", "0.0,1.0,0.0", "0.0,0.0,1.0"]
    rows = [f"{one},{bits[at % 3]}" for at, one in enumerate(IDS)]
    fill_table(root / table, "image,MEL,NV,BCC", *rows)
    with pytest.raises(StepladderError, match="a column for each class: MEL, NV, BCC") as caught:
        listed(root / source)
    assert "--label-column" not in str(caught.value.fix)
    found = typed_listing(caught.value, tmp_path, monkeypatch)
    assert num_of_classes(found) == {"MEL": 4, "NV": 4, "BCC": 4}


def test_columns_with_several_classes_in_a_row_are_not_pointed_to_as_one_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fill(tmp_path / "films", *(f"train/{one}.jpg" for one in IDS))
    bits = ["1,0,1", "0,1,0", "0,0,1"]
    rows = [f"{one},{bits[at % 3]}" for at, one in enumerate(IDS)]
    fill_table(root / "genres.csv", "Id,Drama,Comedy,War", *rows)
    with pytest.raises(StepladderError, match="4 of its 12 rows have several classes") as caught:
        listed(root)
    assert "A picture has one label here" in str(caught.value)
    assert "learn one of the columns alone, such as the first: " in str(caught.value.fix)
    found = typed_listing(caught.value, tmp_path, monkeypatch)
    assert num_of_classes(found) == {"1": 4, "0": 8}


TAGS = ["clear primary", "agriculture clear primary", "primary road", "cloudy"]
TAGS += ["agriculture primary road water", "clear primary water", "clear road", "primary water"]


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_table_of_tags_is_pointed_to_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeats: int
) -> None:
    ids = [str(at) for at in range(100, 100 + repeats * len(TAGS))]
    root = fill(tmp_path / "planet", *(f"train-jpg/train_{one}.jpg" for one in ids))
    rows = [f"train_{one},{TAGS[at % len(TAGS)]}" for at, one in enumerate(ids)]
    fill_table(root / "train_v2.csv", "image_name,tags", *rows)
    with pytest.raises(StepladderError, match="'tags' seems to hold several labels") as caught:
        listed(root)
    assert "To learn each combination as a class of its own: " in str(caught.value.fix)
    assert "A picture has one label here" in str(caught.value)
    found = typed_listing(caught.value, tmp_path, monkeypatch)
    assert num_of_classes(found) == dict.fromkeys(TAGS, repeats)


def test_tables_of_each_split_are_pointed_to_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "valid"):
        fill(tmp_path / split, *(f"{at}.jpg" for at in range(len(TAGS))))
        rows = [f"{at}.jpg,{tags}" for at, tags in enumerate(TAGS)]
        fill_table(tmp_path / split / "metadata.csv", "file_name,tags", *rows)
    with pytest.raises(StepladderError, match="'tags' seems to hold several labels") as caught:
        listed(tmp_path)
    found = typed_listing(caught.value, tmp_path, monkeypatch)
    assert Counter(one.split for one in found.pictures) == {Split.TRAIN: 8, Split.VAL: 8}


def test_a_table_in_parts_of_a_folder_is_pointed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"HAM_images_part_{1 + at % 2}/{one}.jpg" for at, one in enumerate(IDS)]
    fill(tmp_path, *names)
    rows = [f"{one},{'nv' if at % 3 else 'mel'}" for at, one in enumerate(IDS)]
    fill_table(tmp_path / "HAM.csv", "image_id,dx", *rows)
    with pytest.raises(UsageError, match="they are in 2 folders") as caught:
        listed(tmp_path)
    listing = typed_listing(caught.value, tmp_path, monkeypatch)
    assert Counter(one.label for one in listing.pictures) == {"mel": 4, "nv": 8}


def test_a_table_of_names_that_are_in_two_folders_asks_for_one_folder(tmp_path: Path) -> None:
    fill(tmp_path, *(f"images_{part}/{one}.jpg" for part in (1, 2) for one in IDS[:6]))
    fill(tmp_path, *(f"images_3/{one}.jpg" for one in IDS[6:]))
    rows = [f"{one},{'nv' if at % 3 else 'mel'}" for at, one in enumerate(IDS)]
    fill_table(tmp_path / "HAM.csv", "image_id,dx", *rows)
    with pytest.raises(UsageError, match="they are in 3 folders") as caught:
        listed(tmp_path)
    assert "Move them to one folder beside the table" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("end", "header", "row"),
    [
        ("_list.txt", "", "{} {}"),
        (".txt", "", "{}\t{}"),
        (".csv", "image,label", "{},{}"),
        (".csv", "", "{};{}"),
    ],
)
@pytest.mark.parametrize("folder", ["jpg", "my pictures"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lists_of_splits_are_joined_by_the_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
    header: str,
    row: str,
    folder: str,
    newline: str,
) -> None:
    root = tmp_path / "flowers"
    fill(root, *(f"{folder}/{one}.jpg" for one in IDS), "README.txt")
    for name, at in (("train", range(4)), ("val", range(4, 8)), ("test", range(8, 12))):
        rows = [row.format(f"{folder}/{IDS[one]}.jpg", one % 2) for one in at]
        (root / f"{name}{end}").write_text(newline.join([header, *rows] if header else rows))
    with pytest.raises(StepladderError, match="train") as caught:
        listed(root)
    found = typed_listing(caught.value, tmp_path, monkeypatch)
    assert num_of_classes(found) == {"0": 6, "1": 6}
    by_split = Counter(str(picture.split) for picture in found.pictures)
    assert by_split == {"train": 4, "val": 4, "test": 4}


def test_a_list_that_numbers_class_folders_changes_nothing(tmp_path: Path) -> None:
    names = [f"n0{1 + at % 3}/{one}.JPEG" for at, one in enumerate(IDS)]
    fill(tmp_path, *names)
    fill_table(tmp_path / "train.txt", *(f"{name} {int(name[2]) - 1}" for name in names))
    assert num_of_classes(listed(tmp_path)) == {"n01": 4, "n02": 4, "n03": 4}


def test_a_table_beside_class_folders_changes_nothing(tmp_path: Path) -> None:
    names = [f"class{1 + at % 2}/{one}.jpg" for at, one in enumerate(IDS)]
    fill(tmp_path, *names)
    rows = [f"{name},class{name[5]},{int(name[5])}" for name in names]
    fill_table(tmp_path / "all.csv", "path,label,fold", *rows)
    assert num_of_classes(listed(tmp_path)) == {"class1": 6, "class2": 6}


PARTS = ("photos-20240311T101112Z-001", "photos-20240311T101112Z-002")


@pytest.mark.parametrize("parts", [PARTS, ("p-20240311T101112Z-1-001", "p-20240311T101112Z-1-002")])
def test_parts_of_a_download_are_merged(tmp_path: Path, parts: tuple[str, str]) -> None:
    root = fill(
        tmp_path,
        *each(f"{parts[0]}/photos", classes="abc"),
        f"{parts[1]}/photos/a/2.jpg",
        f"{parts[1]}/photos/b/b.jpg",
    )
    listing = listed(root)
    assert num_of_classes(listing) == {"a": 2, "b": 2, "c": 1}
    assert f"{parts[0]}, {parts[1]} as parts of one folder" in listing.warnings[0]
    assert all(Path(listing.file(picture)).exists() for picture in listing.pictures)


def test_splits_in_parts_of_a_download_are_merged(tmp_path: Path) -> None:
    names = [f"{PARTS[0]}/pets/train/a/1.jpg", f"{PARTS[1]}/pets/train/b/2.jpg"]
    names += [f"{PARTS[1]}/pets/test/a/3.jpg"]
    found = splits(listed(fill(tmp_path, *names)))
    assert set(found.values()) == {("a", Split.TRAIN), ("b", Split.TRAIN), ("a", Split.TEST)}


def test_numbered_parts_with_the_same_folders_are_merged(tmp_path: Path) -> None:
    listing = listed(fill(tmp_path, *each("pets_part1", "pets_part2")))
    assert num_of_classes(listing) == {"a": 2, "b": 2}
    flat = fill(tmp_path / "cars", "part_1/1.jpg", "part_2/1.jpg")
    assert num_of_classes(listed(flat)) == {"part_1": 1, "part_2": 1}


def test_downloads_beside_others_are_asked_for(tmp_path: Path) -> None:
    root = fill(tmp_path, *each(f"{PARTS[0]}/photos", f"{PARTS[1]}/photos"), "misc/1.jpg")
    with pytest.raises(UsageError, match=r"parts of one download .* there are other folders"):
        listed(root)


def test_folders_with_the_same_folder_around_their_classes_are_asked_for(tmp_path: Path) -> None:
    root = fill(tmp_path, *each("2019/photos", "2020/photos"))
    with pytest.raises(UsageError, match="it is unknown which of both are the classes") as caught:
        listed(root)
    assert "2019=train,2020=test" in str(caught.value.fix)
    found = splits(listed(root, split_folders="2019=train,2020=test"))
    assert {label for label, _ in found.values()} == {"a", "b"}


def test_the_folder_of_one_class_names_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "Pet Images/Cat/0.jpg", "Pet Images/Dog/0.jpg")
    with pytest.raises(DataError, match="no class folders with pictures") as caught:
        listed(tmp_path / "Pet Images" / "Dog")
    found = typed_listing(caught.value, tmp_path, monkeypatch)
    assert num_of_classes(found) == {"Cat": 1, "Dog": 1}


@pytest.mark.parametrize(
    ("form", "classes"),
    [
        ("{}-!-{}.webp", None),
        ("{}__#__{}.jpg", None),
        ("{}~{}.jpg", None),
        ("{}+{}.jpg", None),
        ("{},{}.jpg", None),
        ("{}={}.jpg", None),
        ("{} ({}).jpg", None),
        ("{} #{}.jpg", None),
        ("[{}] {}.jpg", ["[Apfel]", "[Leerer Tisch]"]),  # not half a pair of brackets
    ],
)
def test_signs_around_the_number_are_no_part_of_a_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, classes: list[str] | None
) -> None:
    kinds = ["Apfel", "Leerer Tisch"]
    root = fill(tmp_path / "obst", *(form.format(one, idx) for one in kinds for idx in range(3)))
    with pytest.raises(DataError) as caught:
        listed(root)
    found = typed_listing(caught.value, tmp_path, monkeypatch)
    assert num_of_classes(found) == dict.fromkeys(classes or kinds, 3)


def test_signs_that_tell_classes_apart_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fill(tmp_path / "a", *(f"{one}_{idx}.jpg" for one in ("C", "C++", "C#") for idx in "12"))
    with pytest.raises(DataError) as caught:
        listed(root)
    found = typed_listing(caught.value, tmp_path, monkeypatch)
    assert num_of_classes(found) == {"C": 2, "C++": 2, "C#": 2}

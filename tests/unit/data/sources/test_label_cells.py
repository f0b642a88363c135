"""Cells that are not one class each are refused, with a command that makes classes of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.label_tables.label_cells import find_several, measured_values
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError
from tests.unit.data.sources.printed import commands_in, typed_listing

PLANET = ["clear primary", "agriculture clear primary", "primary road", "cloudy"]
PLANET += ["agriculture primary road water", "clear primary water", "clear road", "primary water"]
AGES = [18, 55, 21, 89, 34, 62, 47, 71, 29, 80, 66, 40]


def table_of(folder: Path, header: str, cells: Sequence[str], delimiter: str = ",") -> Path:
    (folder / "images").mkdir()
    for at in range(len(cells)):
        (folder / "images" / f"{at}.jpg").write_bytes(b"x")
    rows = [delimiter.join((str(at), f'"{cell}"')) for at, cell in enumerate(cells)]
    table = folder / "my labels.csv"
    table.write_text("\n".join([header.replace(",", delimiter), *rows]) + "\n")
    return table


@pytest.mark.parametrize(
    ("labels", "tag"),
    [
        (PLANET * 2, "clear"),
        ([one.replace(" ", ", ") for one in PLANET * 2], "clear"),
        (["Mass|Edema", "No Finding", "Mass", "Edema", "Mass", "Mass|Edema|Hernia"], "Edema"),
        (["['cat', 'dog']", "['cat']", "['dog', 'it's']", "['cat']", "['dog']", "['x']"], "cat"),
    ],
)
@pytest.mark.parametrize("header", ["image_name,tags", "image,Finding Labels"])
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_cells_with_several_labels_are_refused_unless_an_option_names_them(
    tmp_path: Path, labels: list[str], tag: str, header: str, delimiter: str
) -> None:
    table = table_of(tmp_path, header, labels, delimiter)
    with pytest.raises(DataError, match="seems to hold several labels in") as caught:
        list_pictures(PrepareConfig(source=table))
    assert "A picture has one label here" in str(caught.value)
    assert f"such as {tag!r} or not: " in str(caught.value.fix)
    one, each = commands_in(caught.value.fix)
    found = typed_listing(one)
    is_in = [tag in label for label in labels]
    assert [p.label for p in found.pictures] == [tag if one else f"not {tag}" for one in is_in]
    found = typed_listing(each)
    assert [p.label for p in found.pictures] == labels
    assert "several in one cell" in " ".join(found.warnings)


@pytest.mark.parametrize(
    "labels",
    [
        ["golden retriever", "labrador retriever", "great dane", "cat"],
        [f"{state} {fruit}" for state in ("ripe", "unripe") for fruit in ("kiwi", "fig", "plum")],
        [f"{one} {two} {three}" for one in "abc" for two in "def" for three in "ghi"],
        ["tomato healthy", "tomato early blight", "potato early blight", "potato late blight"],
    ],
)
def test_names_of_several_words_are_classes(labels: list[str]) -> None:
    assert find_several(labels * 3) is None


WEATHER = [
    "agriculture clear habitation primary road",
    "agriculture clear primary water",
    "clear primary",
    "cloudy",
    "haze primary",
    "haze primary water",
    "partly_cloudy primary",
]


@pytest.mark.parametrize("column", ["tags", "Keywords", "Finding Labels"])
@pytest.mark.parametrize("separator", [" ", ", "])
def test_combinations_in_a_column_of_tags_are_several_labels(column: str, separator: str) -> None:
    several = find_several([label.replace(" ", separator) for label in WEATHER * 3], column)
    assert several is not None
    assert several.is_sure
    assert several.tags["primary"] == 18


def test_combinations_in_a_column_of_tags_that_is_named_are_warned_of(tmp_path: Path) -> None:
    table = table_of(tmp_path, "image_name,tags", WEATHER * 3, ",")
    with pytest.raises(DataError, match="seems to hold several labels in 18 of 21 cells"):
        list_pictures(PrepareConfig(source=table))
    found = list_pictures(PrepareConfig(source=table, label_column="tags"))
    assert "18 of 21 labels seem to be several in one cell" in " ".join(found.warnings)


def test_names_of_several_words_in_a_column_of_tags_are_classes() -> None:
    labels = ["golden retriever", "great dane", "siamese cat", "persian cat", "parrot"]
    assert find_several(labels * 3, "tags") is None


@pytest.mark.parametrize("written", ["{}", "{}.0", "{}.25"])
@pytest.mark.parametrize("column", ["age", "label", "target"])
def test_many_different_numbers_are_refused_and_ranges_work(
    tmp_path: Path, written: str, column: str
) -> None:
    cells = [written.format(age) for age in AGES]
    table = table_of(tmp_path, f"image,{column}", cells)
    for options in ({}, {"label_column": column}):
        with pytest.raises(DataError, match="12 different numbers in 12 rows") as caught:
            list_pictures(PrepareConfig(source=table, **options))
        found = typed_listing(str(caught.value.fix).partition("you may change: ")[2])
        assert sorted(Counter(p.label for p in found.pictures).values()) == [3, 3, 3, 3]
        assert {p.label.partition(" ")[0] for p in found.pictures[:1]} == {"below"}


def test_numbers_without_a_header_or_in_json_are_refused_as_well(tmp_path: Path) -> None:
    table = table_of(tmp_path, "0,18.5", [f"{age}.5" for age in AGES])
    table.write_text("".join(f"{at},{age}.5\n" for at, age in enumerate(AGES)))
    with pytest.raises(DataError, match="different numbers") as caught:
        list_pictures(PrepareConfig(source=table, columns="path,label"))
    found = typed_listing(str(caught.value.fix).partition("you may change: ")[2])
    assert len(found.pictures) == len(AGES)
    rows = [{"file_name": f"{at}.jpg", "age": age} for at, age in enumerate(AGES)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    with pytest.raises(DataError, match="different numbers in 12 items"):
        list_pictures(PrepareConfig(source=tmp_path / "rows.json", label_column="age"))


@pytest.mark.parametrize(
    "labels",
    [
        [str(at) for at in range(102)],  # names of classes, in a sample
        [str(7 * at) for at in range(50)] * 2,
        ["0001", "0017", "0342", "0555", "0601", "0702", "0803", "0907", "1001", "1102"],
        [str(7_000_000 + 7 * at) for at in range(40)],
        ["0.5", "1.0", "1.5", "2.0", "2.5"] * 5,
        ["18", "21", "x", *map(str, range(40, 60, 2))],
    ],
)
def test_numbers_that_may_be_names_of_classes_are_read(labels: list[str]) -> None:
    assert measured_values(labels) == []


def test_fractions_are_measured_even_if_they_repeat() -> None:
    assert len(measured_values([f"{at / 8}" for at in range(40)] * 20)) == 800


def test_scores_beside_class_folders_change_nothing(tmp_path: Path) -> None:
    names = [f"{'cat' if at % 2 else 'dog'}/{at}.jpg" for at in range(12)]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    rows = [f"{name},{at}.25" for at, name in enumerate(names)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,score", *rows]) + "\n")
    found = list_pictures(PrepareConfig(source=tmp_path))
    assert {p.label for p in found.pictures} == {"cat", "dog"}


@pytest.mark.parametrize("column", ["age", "Age (years)", "num_count"])
def test_whole_numbers_of_a_quantity_are_classes_with_a_warning_whose_command_works(
    tmp_path: Path, column: str
) -> None:
    """As in UTKFace: each age has many pictures."""
    ages = [str(age) for age in range(20, 32)] * 4
    found = list_pictures(
        PrepareConfig(source=table_of(tmp_path, f"image,{column}", ages), label_column=column)
    )
    assert len({picture.label for picture in found.pictures}) == 12
    (said,) = (line for line in found.warnings if "different numbers" in line)
    command, overwrite, _ = said.partition("you may change: ")[2].rpartition(" --overwrite")
    assert overwrite
    ranges = typed_listing(command)
    assert len({picture.label for picture in ranges.pictures}) == 4


def test_numbers_of_classes_have_no_warning(tmp_path: Path) -> None:
    numbers = [str(number) for number in range(12)] * 4
    found = list_pictures(PrepareConfig(source=table_of(tmp_path, "image,label", numbers)))
    assert "different numbers" not in " ".join(found.warnings)


@pytest.mark.parametrize("is_in_train", [False, True])
def test_combinations_are_proposed_as_classes_only_if_train_has_those_of_val(
    tmp_path: Path, is_in_train: bool
) -> None:
    """As in fastai's pascal_2007, where a column says which pictures are val."""
    train = [*PLANET, "clear road water"] if is_in_train else PLANET
    labels = [*train, *train, "clear road water", "cloudy", "clear primary"]
    table = table_of(tmp_path, "fname,labels", labels)
    header, *rows = table.read_text().splitlines()
    flags = ["False"] * 2 * len(train) + ["True"] * 3
    lines = [f"{row},{flag}" for row, flag in zip(rows, flags, strict=True)]
    table.write_text("\n".join([f"{header},is_valid", *lines]) + "\n")
    with pytest.raises(DataError, match="seems to hold several labels") as caught:
        list_pictures(PrepareConfig(source=table))
    one, *each = commands_in(caught.value.fix)
    assert len(each) == is_in_train
    for command in (one, *each):
        found = typed_listing(command).pictures
        splits = {split: {p.label for p in found if p.split is split} for split in Split}
        assert splits[Split.VAL] <= splits[Split.TRAIN]


def test_combinations_that_all_occur_once_are_not_proposed_as_classes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="seems to hold several labels") as caught:
        list_pictures(PrepareConfig(source=table_of(tmp_path, "fname,labels", PLANET)))
    assert "each combination" not in str(caught.value.fix)


def test_the_warning_of_several_labels_has_the_command_that_learns_one(tmp_path: Path) -> None:
    """As in the chest X-rays of the NIH, whose findings are named with --label-column."""
    labels = ["Mass|Edema", "No Finding", "Mass", "Edema", "Mass", "Mass|Edema"]
    table = table_of(tmp_path, "image,Finding Labels", labels)
    found = list_pictures(PrepareConfig(source=table, label_column="Finding Labels"))
    (warning,) = (said for said in found.warnings if "several in one cell" in said)
    command, overwrite, _ = warning.partition("or not: ")[2].rpartition(" --overwrite")
    assert overwrite
    assert {p.label for p in typed_listing(command).pictures} in (
        {"Edema", "not Edema"},
        {"Mass", "not Mass"},
    )


@pytest.mark.parametrize("name", ["Patient ID", "subject", "lesion_id", "VideoName"])
def test_a_column_of_patients_is_named_unless_pictures_are_grouped(
    tmp_path: Path, name: str
) -> None:
    table = table_of(tmp_path, "image,label", ["cat", "dog"] * 4)
    header, *rows = table.read_text().splitlines()
    lines = [f"{row},{k // 2},{k // 2}" for k, row in enumerate(rows)]
    lines.insert(0, f"{header},{name},Patient Age")
    table.write_text("\n".join(lines) + "\n")
    warnings = list_pictures(PrepareConfig(source=table)).warnings
    (warning,) = (said for said in warnings if "different cells" in said)
    assert f"column {name!r} has 4 different cells in 8 rows" in warning
    added = warning.partition("add --group-by ")[2].partition(" --overwrite")[0]
    assert added.strip("'") == name
    listing = list_pictures(PrepareConfig(source=table, group_by=name))
    assert listing.has_group_column
    assert not any("different cells" in said for said in listing.warnings)


@pytest.mark.parametrize("cells", [range(8), [1] * 8])
def test_a_column_of_patients_with_one_picture_each_is_not_named(
    tmp_path: Path, cells: Sequence[int]
) -> None:
    table = table_of(tmp_path, "image,label", ["cat", "dog"] * 4)
    header, *rows = table.read_text().splitlines()
    lines = [f"{header},patient", *(f"{row},{cells[k]}" for k, row in enumerate(rows))]
    table.write_text("\n".join(lines) + "\n")
    warnings = list_pictures(PrepareConfig(source=table)).warnings
    assert not any("different cells" in said for said in warnings)

"""JSON lines and arrays are read as tables, also from the folder that contains them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stepladder.config.choices import ClassesFrom, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.containers.opening import find_format
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError, UsageError
from tests.unit.data.sources.printed import typed_listing

ROWS = [{"file_name": "images/0.jpg", "label": "cat"}, {"file_name": "images/1.jpg", "label": 7}]
EXPECTED = [("images/0.jpg", "cat"), ("images/1.jpg", "7")]


def fill(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def lines(rows: Sequence[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def pairs(listing: Listing) -> list[tuple[str, str]]:
    return [(picture.path, picture.label) for picture in listing.pictures]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    "text",
    [
        lines(ROWS),
        lines(ROWS).replace("\n", "\n\n"),
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        lines([{**row, "label": [row["label"]], "text": "a\nb"} for row in ROWS]),
        lines([{**row, "objects": {"bbox": [1, 2]}} for row in ROWS]),
    ],
)
def test_objects_are_rows(tmp_path: Path, text: str, encoding: str) -> None:
    fill(tmp_path, "images/0.jpg", "images/1.jpg")
    table = tmp_path / "metadata.jsonl"
    table.write_text(text, encoding=encoding)
    listing = list_pictures(PrepareConfig(source=table))
    assert pairs(listing) == EXPECTED
    assert "--path-column file_name" in " ".join(listing.warnings)


MAP = {"0.jpg": "cat", "1.jpg": 7}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (MAP, "a JSON object of paths and labels"),
        ({"0": "cat", "1": 7}, "a JSON object of paths and labels"),
        ({"images/0.jpg": ["cat"], "images/1.jpg": [7]}, "a JSON object of paths and labels"),
        ({"0.jpg": {"class": "cat"}, "1.jpg": {"class": 7}}, "of paths and objects"),
        ({"9": ROWS[0], "8": ROWS[1]}, "a JSON object of objects"),
        ({"cat": ["0.jpg"], "7": ["1.jpg"]}, "of labels and their paths"),
        ({"path": ["0.jpg", "1.jpg"], "label": ["cat", 7]}, "a JSON object of columns"),
        (
            {"path": {"0": "0.jpg", "1": "1.jpg"}, "label": {"0": "cat", "1": 7}},
            "a JSON object of columns",
        ),
    ],
)
def test_an_object_of_pictures_is_a_table(
    tmp_path: Path, value: Any, told: str, indent: int | None
) -> None:
    fill(tmp_path, "images/0.jpg", "images/1.jpg")
    table = tmp_path / "train.json"
    table.write_text(json.dumps(value, indent=indent))
    listing = list_pictures(PrepareConfig(source=table))
    assert pairs(listing) == EXPECTED
    assert told in listing.warnings[0]


@pytest.mark.parametrize("value", [{"train": MAP, "val": {"2.jpg": "cat"}}])
def test_an_object_of_splits_has_their_pictures(tmp_path: Path, value: Any) -> None:
    fill(tmp_path, "images/0.jpg", "images/1.jpg", "images/2.jpg")
    table = tmp_path / "splits.json"
    records = {
        split: [{"path": path, "label": label} for path, label in one.items()]
        for split, one in value.items()
    }
    for content in (value, records):
        table.write_text(json.dumps(content))
        listing = list_pictures(PrepareConfig(source=table))
        assert [(one.path, one.split) for one in listing.pictures] == [
            ("images/0.jpg", Split.TRAIN),
            ("images/1.jpg", Split.TRAIN),
            ("images/2.jpg", Split.VAL),
        ]


@pytest.mark.parametrize(
    "shape",
    [
        lambda name, label: [name, {"cat": 0, "7": 1}[label], label],
        lambda name, label: [label, name],
        lambda name, label: [name, label, 3.5],
    ],
)
@pytest.mark.parametrize("has_splits", [False, True])
def test_arrays_of_path_number_and_label_are_read(
    tmp_path: Path, shape: Callable[[str, str], list[Any]], has_splits: bool
) -> None:
    fill(tmp_path, *(f"images/{at}.jpg" for at in range(6)))
    rows = [shape(f"{at}.jpg", ("cat", "7")[at % 2]) for at in range(6)]
    table = tmp_path / "split_zhou_Pets.json"
    splits = {"train": rows[:2], "val": rows[2:4], "test": rows[4:]}
    table.write_text(json.dumps(splits if has_splits else rows, indent=4))
    listing = list_pictures(PrepareConfig(source=table))
    assert [one.path for one in listing.pictures] == [f"images/{at}.jpg" for at in range(6)]
    assert [one.label for one in listing.pictures] == ["cat", "7"] * 3
    wanted = [split for split in Split for _ in range(2)] if has_splits else [None] * 6
    assert [one.split for one in listing.pictures] == wanted


def test_half_a_character_in_json_is_replaced(tmp_path: Path) -> None:
    fill(tmp_path, "0.jpg", "1.jpg")
    table = tmp_path / "labels.jsonl"
    table.write_text(
        '{"path": "0.jpg", "label": "a\\ud83d"}\n{"path": "1.jpg", "label": "b"}\n'
        '{"path": "\\ud83d.jpg", "label": "b"}\n'
    )
    listing = list_pictures(PrepareConfig(source=table))
    assert [one.label for one in listing.pictures] == ["a?", "b", "b"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"0.jpg": "cat", "1.jpg": "dog", "0.jpg": "dog"}', "'0.jpg' is there twice"),
        ('{"0.jpg": ["cat", "dog"], "1.jpg": ["dog"]}', "item 1: 'label' holds lists"),
        (json.dumps(ROWS[0], indent=1), "one object with the keys 'file_name', 'label'"),
        (json.dumps({"images": [{"id": 1}], "annotations": [{"id": 1}]}), "the keys 'images'"),
        (json.dumps({"train": ["0.jpg"], "val": ["1.jpg"]}), "the keys 'train', 'val'"),
        (json.dumps({"train": ["0.jpg"], "val": ["1.jpg"]}), '"split": "train"}'),
    ],
)
def test_an_object_that_is_no_table_is_refused_in_words(
    tmp_path: Path, text: str, told: str
) -> None:
    fill(tmp_path, "images/0.jpg", "images/1.jpg")
    (tmp_path / "train.json").write_text(text)
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=tmp_path / "train.json"))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            lines([{"file_name": "images/0.jpg", "label": ["a", "b"]}]),
            "line 1: 'label' holds lists",
        ),
        (
            lines([{"file_name": "images/0.jpg", "objects": {"bbox": [1]}}]),
            "line 1: 'objects' holds lists or objects",
        ),
        (lines([ROWS[0], [1, 2]]), "line 2: list in place of an object"),
        (lines([ROWS[0]]) + '{"file_name": \n', "line 2: not JSON"),
        (json.dumps({"images": [1], "annotations": []}), "one object with the keys 'images'"),
        (json.dumps([ROWS[0], 3]), "item 2: int in place of an object"),
        (
            lines([ROWS[0], {"file_name": "images/1.jpg", "label": None}]),
            "column 'label' is empty in line 2",
        ),
    ],
)
def test_what_is_no_table_is_refused_in_words(tmp_path: Path, text: str, told: str) -> None:
    fill(tmp_path, "images/0.jpg", "images/1.jpg")
    (tmp_path / "metadata.jsonl").write_text(text)
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=tmp_path / "metadata.jsonl"))
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
def test_a_table_beside_the_pictures_has_the_labels(tmp_path: Path, name: str) -> None:
    fill(tmp_path, "images/0.jpg", "images/1.jpg", "README.md")
    text = lines(ROWS)
    if name.endswith("csv"):
        text = "file_name,label\nimages/0.jpg,cat\nimages/1.jpg,7\n"
    (tmp_path / name).write_text(text)
    assert find_format(tmp_path) == "folder"
    listing = list_pictures(PrepareConfig(source=tmp_path))
    assert pairs(listing) == EXPECTED
    assert f"read the labels in {name}" in listing.warnings[0]


@pytest.mark.parametrize("name", ["metadata.jsonl", "_classes.csv"])
def test_each_split_has_its_table(tmp_path: Path, name: str) -> None:
    for split in ("train", "valid", "test"):
        fill(tmp_path / split, "0.jpg", "1.jpg")
        rows = [{"file_name": f"{idx}.jpg", "label": "ab"[idx]} for idx in range(2)]
        one_hot = "filename, a, b\n0.jpg, 1, 0\n1.jpg, 0, 1\n"
        (tmp_path / split / name).write_text(one_hot if name[0] == "_" else lines(rows))
    listing = list_pictures(PrepareConfig(source=tmp_path))
    assert [(p.path, p.label, p.split) for p in listing.pictures] == [
        (f"{folder}/{idx}.jpg", "ab"[idx], split)
        for folder, split in (("test", Split.TEST), ("train", Split.TRAIN), ("valid", Split.VAL))
        for idx in range(2)
    ]


@pytest.mark.parametrize("name", ["metadata.csv", "_classes.csv"])
def test_a_remedy_for_the_table_of_one_split_keeps_the_others(tmp_path: Path, name: str) -> None:
    root = tmp_path / "my export"
    for split in ("train", "valid", "test"):
        fill(root / split, "0.jpg", "1.jpg", "2.jpg")
        (root / split / name).write_text("filename, a, b\n0.jpg, 1, 0\n1.jpg, 0, 1\n2.jpg, 1, 1\n")
    with pytest.raises(DataError, match="several classes in row 4") as caught:
        list_pictures(PrepareConfig(source=root))
    found = typed_listing(str(caught.value.fix).partition("the first: ")[2])
    assert [p.label for p in found.pictures] == ["1", "0", "1"] * 3
    assert Counter(p.split for p in found.pictures) == dict.fromkeys(Split, 3)


def test_an_edited_table_of_one_split_replaces_it_and_leaves_a_copy(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        fill(tmp_path / split, "0.jpg", "1.jpg", "2.jpg")
        rows = ["file_name,label,kind", "0.jpg,a,x", "1.jpg,b,x", "2.jpg,,y"]
        (tmp_path / split / "metadata.csv").write_text("\n".join(rows) + "\n")
    with pytest.raises(DataError, match="'label' is empty in row 4") as caught:
        list_pictures(PrepareConfig(source=tmp_path))
    command = str(caught.value.fix).partition("To remove: ")[2]
    with pytest.raises(DataError, match="'label' is empty in row 4") as caught:
        typed_listing(command)
    assert (tmp_path / "train" / "metadata.csv.bak1").is_file()
    found = typed_listing(str(caught.value.fix).partition("To remove: ")[2])
    assert [(p.path, p.label) for p in found.pictures] == [
        *(("train/0.jpg", "a"), ("train/1.jpg", "b"), ("valid/0.jpg", "a"), ("valid/1.jpg", "b"))
    ]


def test_splits_are_the_folders_in_the_paths_of_a_table(tmp_path: Path) -> None:
    fill(tmp_path, "train/0.jpg", "test/1.jpg")
    text = "file_name,label\ntrain/0.jpg,a\ntest/1.jpg,b\n"
    (tmp_path / "metadata.csv").write_text(text)
    listing = list_pictures(PrepareConfig(source=tmp_path))
    assert [picture.split for picture in listing.pictures] == [Split.TRAIN, Split.TEST]


def test_class_folders_with_captions_are_read_as_folders(tmp_path: Path) -> None:
    fill(tmp_path, "cat/0.jpg", "dog/1.jpg")
    text = "file_name,text\ncat/0.jpg,one\ndog/1.jpg,two\n"
    (tmp_path / "metadata.csv").write_text(text + "dog/2.jpg,three\n")
    fill(tmp_path, "dog/2.jpg")
    found = pairs(list_pictures(PrepareConfig(source=tmp_path)))
    assert found == [("cat/0.jpg", "cat"), ("dog/1.jpg", "dog"), ("dog/2.jpg", "dog")]


def test_options_of_folders_and_two_tables(tmp_path: Path) -> None:
    fill(tmp_path, "x/0.jpg", "y/1.jpg")
    for name in ("metadata.csv", "metadata.jsonl"):
        (tmp_path / name).write_text("file_name,label\nx/0.jpg,a\ny/1.jpg,b\n")
    listing = list_pictures(PrepareConfig(source=tmp_path, classes_from=ClassesFrom.TOP))
    assert pairs(listing) == [("x/0.jpg", "x"), ("y/1.jpg", "y")]
    with pytest.raises(UsageError, match=r"both metadata.csv and metadata.jsonl") as caught:
        list_pictures(PrepareConfig(source=tmp_path))
    assert str(caught.value.fix).endswith(f"stepladder prepare {tmp_path}/metadata.csv")

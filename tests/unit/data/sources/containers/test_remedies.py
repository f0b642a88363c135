"""Containers as hubs and tools write them; a remedy that an error prints works when it is typed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stepladder.errors import DataError, StepladderError

ROWS = range(20)
KINDS = ("apple", "bread")
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def typed(error: StepladderError) -> dict[str, str]:
    """Return the options in the remedy of an error, as a user would type them."""
    assert error.fix is not None
    found = re.findall(r"--([a-z-]+) ([^\s,;]+)", error.fix)
    assert found, f"no option in: {error.fix}"
    assert not {"NAME", "COLUMN"} & {value for _, value in found}, error.fix
    return {name.replace("-", "_"): value for name, value in found}


def follow(shop: Any, source: Path, **options: Any) -> Any:
    """Prepare a source; follow the remedies of errors, at most three."""
    for _ in range(3):
        try:
            return shop.make(source, **options)
        except StepladderError as error:
            options |= typed(error)
    return shop.make(source, **options)


def kinds_of(shop: Any, folder: Path) -> dict[int, str]:
    labels = shop.labels(folder)
    return {int(re.findall(r"\d+", path)[-1]): label for path, label in labels.items()}


def images(shop: Any) -> list[dict[str, Any]]:
    return [{"bytes": shop.photo(row), "path": f"{row}.jpg"} for row in ROWS]


def class_labels(*, nested: bool) -> dict[bytes, bytes]:
    label = {"names": list(KINDS), "_type": "ClassLabel"}
    features = {"annotation": {"label": label}} if nested else {"label": label}
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


def test_a_label_within_a_struct_is_named_and_its_class_names_are_read(shop: Any) -> None:
    labels = [{"label": row % 2, "who": "x"} for row in ROWS]
    table = pa.table({"image": pa.array(images(shop), IMAGE), "annotation": labels})
    source = shop.table("t.parquet", table.replace_schema_metadata(class_labels(nested=True)))
    with pytest.raises(StepladderError) as caught:
        shop.make(source)
    assert typed(caught.value) == {"label_column": "annotation.label"}
    result = follow(shop, source, label_column="annotation")
    assert kinds_of(shop, result.folder) == {row: KINDS[row % 2] for row in ROWS}


def test_columns_within_structs_can_be_named(shop: Any) -> None:
    rows = [
        {"img": {"bytes": shop.photo(row), "path": f"{row}.jpg"}, "kind": KINDS[row % 2]}
        for row in ROWS
    ]
    source = shop.table("t.parquet", {"sample": rows})
    result = follow(shop, source)
    assert kinds_of(shop, result.folder) == {row: KINDS[row % 2] for row in ROWS}


@pytest.mark.parametrize("form", ["null bytes", "struct of path", "column of paths"])
@pytest.mark.parametrize("is_absolute", [True, False])
def test_pictures_that_a_table_has_only_the_path_of_are_read(
    shop: Any, form: str, is_absolute: bool
) -> None:
    folder = shop.folder / "files"
    folder.mkdir()
    for row in ROWS:
        (folder / f"{row}.jpg").write_bytes(shop.photo(row))
    paths = [str(folder / f"{row}.jpg") if is_absolute else f"files/{row}.jpg" for row in ROWS]
    columns: dict[str, Any] = {
        "null bytes": pa.array([{"bytes": None, "path": path} for path in paths], IMAGE),
        "struct of path": pa.array([{"path": path} for path in paths]),
        "column of paths": pa.array(paths),
    }
    table = {"image": columns[form], "label": [KINDS[row % 2] for row in ROWS]}
    result = follow(shop, shop.table("t.parquet", table))
    assert sorted(shop.labels(result.folder).values()) == sorted(KINDS * 10)


def test_a_missing_file_is_named_and_read_when_it_is_there(shop: Any) -> None:
    table = {
        "image": pa.array([{"bytes": None, "path": f"{row}.jpg"} for row in ROWS], IMAGE),
        "label": [KINDS[row % 2] for row in ROWS],
    }
    source = shop.table("t.parquet", table)
    with pytest.raises(DataError) as caught:
        shop.make(source)
    assert "does not exist: the file '0.jpg', which the table names" in str(caught.value)
    assert "--max-bad" not in str(caught.value)  # nothing would be left
    for row in ROWS:
        (shop.folder / f"{row}.jpg").write_bytes(shop.photo(row))
    assert shop.make(source).num_bad == 0


@pytest.mark.parametrize("form", ["struct of path", "column of paths"])
def test_paths_that_start_from_the_folder_above(shop: Any, form: str) -> None:
    photos = shop.folder / "photos"
    lists = shop.folder / "lists"
    photos.mkdir()
    lists.mkdir()
    for row in ROWS:
        (photos / f"{row}.jpg").write_bytes(shop.photo(row))
    paths = [f"photos/{row}.jpg" for row in ROWS]
    image = pa.array([{"path": path} for path in paths] if form == "struct of path" else paths)
    source = shop.table("lists/t.parquet", {"image": image, "label": [KINDS[r % 2] for r in ROWS]})
    with pytest.raises(DataError) as caught:
        shop.make(source, image_column="image")
    assert "../photos/0.jpg exists" in str(caught.value)
    assert caught.value.fix == "Add --path-format '../{}' to the command."
    made = shop.make(source, image_column="image", path_format="../{}")
    assert made.num_bad == 0
    assert sorted(shop.labels(made.folder).values()) == sorted(KINDS * 10)


def test_a_list_of_one_picture_is_that_picture_and_more_are_refused(shop: Any) -> None:
    pictures = [[image] for image in images(shop)]
    labels = [KINDS[row % 2] for row in ROWS]
    columns = {"images": pa.array(pictures, pa.list_(IMAGE)), "label": labels}
    result = shop.make(shop.table("one.parquet", columns))
    assert kinds_of(shop, result.folder) == {row: KINDS[row % 2] for row in ROWS}
    plain = {"images": [[image["bytes"]] for image in images(shop)], "label": labels}
    assert shop.make(shop.table("bytes.parquet", plain), "plain").num_bad == 0
    pictures[3] = [*pictures[3], *pictures[4]]
    pictures[5] = []
    columns["images"] = pa.array(pictures, pa.list_(IMAGE))
    result = shop.make(shop.table("some.parquet", columns), "some", max_bad=0.5)
    text = (result.folder / "quarantine.csv").read_text()
    assert "is a list of 2 pictures (some.parquet: row 3); a row must have one" in text
    assert "is a list of 0 pictures" in text


def test_class_names_in_cls_are_read(shop: Any) -> None:
    members = [
        member
        for row in ROWS
        for member in (
            (f"{row}.jpg", shop.photo(row)),
            (f"{row}.cls", KINDS[row % 2].encode()),
        )
    ]
    result = shop.make(shop.tar("t.tar", members))
    assert kinds_of(shop, result.folder) == {row: KINDS[row % 2] for row in ROWS}


@pytest.mark.parametrize("label_first", [True, False])
@pytest.mark.parametrize("name", ["IMG_2024.01.{:02d}", "a{0:02d}.b.{0:02d}", "d/v1.2/x{:02d}"])
def test_the_last_dot_counts_if_the_name_before_it_has_picture_and_label(
    shop: Any, name: str, label_first: bool
) -> None:
    members = []
    for row in ROWS:
        pair = [
            (f"{name.format(row)}.jpg", shop.photo(row)),
            (f"{name.format(row)}.cls", KINDS[row % 2].encode()),
        ]
        members += pair[::-1] if label_first else pair
    result = shop.make(shop.tar("t.tar", members))
    found = {
        path.removesuffix(".jpg")[-2:]: kind for path, kind in shop.labels(result.folder).items()
    }
    assert found == {f"{row:02d}": KINDS[row % 2] for row in ROWS}


def test_class_folders_in_a_tar_are_its_labels(shop: Any) -> None:
    members = [
        (f"photos/{split}/{KINDS[row % 2]}/IMG.{row}.jpg", shop.photo(row))
        for split, rows in (("train", range(14)), ("val", range(14, 20)))
        for row in rows
    ]
    result = shop.make(shop.tar("t.tar", members))
    assert result.manifest.class_counts == {"train": (7, 7), "val": (3, 3)}
    assert kinds_of(shop, result.folder) == {row: KINDS[row % 2] for row in ROWS}


NO_PICTURES = (
    *("LICENSE.txt", "README.md", "classes.txt", "data/info.json", "data/a/boxes.csv"),
    *("data/a/1.xml", "data/b/notes.pdf", "data/b/Thumbs.db", "data/.DS_Store"),
)


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("has_folders", [True, False])
def test_files_that_are_no_pictures_by_their_names_are_skipped_in_a_tar(
    shop: Any, has_folders: bool, place: str
) -> None:
    members = []
    for row in ROWS:
        kind = KINDS[row % 2]
        name = f"data/{kind}/{row}" if has_folders else f"data/{row}"
        members.append((f"{name}.png", shop.encode(shop.draw(row))))
        members += [] if has_folders else [(f"{name}.cls", kind.encode())]
    others = [(name, b"{}") for name in NO_PICTURES]
    result = shop.make(
        shop.tar("t.tgz", others + members if place == "first" else members + others, mode="w:gz")
    )
    assert kinds_of(shop, result.folder) == {row: KINDS[row % 2] for row in ROWS}
    assert result.num_bad == 0
    assert "classes.txt" in " ".join(result.warnings)


@pytest.mark.parametrize("form", ["json", "nested json", "member"])
def test_the_label_of_a_tar_is_named_by_what_was_found(shop: Any, form: str) -> None:
    members = []
    for row in ROWS:
        kind = KINDS[row % 2]
        label = {
            "json": (f"{row}.json", json.dumps({"score": 0.5, "class": kind})),
            "nested json": (f"{row}.json", json.dumps({"annotation": {"label": kind}})),
            "member": (f"{row}.kind", kind),
        }[form]
        members += [(f"{row}.jpg", shop.photo(row)), (label[0], label[1].encode())]
    result = follow(shop, shop.tar("t.tar", members))
    assert kinds_of(shop, result.folder) == {row: KINDS[row % 2] for row in ROWS}

"""Commands that edit cells and rows also work for JSON tables, and for one table in each split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError
from tests.unit.data.sources.printed import commands_in, typed_listing

AGES = [18, 55, 21, 89, 34, 62, 47, 71, 29, 80, 66, 40]
TAGS = [["cat"], ["dog"], ["cat", "dog"], ["cat", "red"], ["red"], ["dog"]]


def write(table: Path, key: str, values: Sequence[object], form: str = "") -> None:
    rows = [{"file_name": f"{at}.jpg", key: value} for at, value in enumerate(values)]
    table.parent.mkdir(exist_ok=True)
    for row in rows:
        (table.parent / str(row["file_name"])).write_bytes(b"x")
    if form == "array":
        text = json.dumps(rows)
    elif form == "columns":
        text = json.dumps({name: [row[name] for row in rows] for name in rows[0]})
    elif table.suffix == ".csv":
        text = "\n".join([f"file_name,{key}", *(f"{r['file_name']},{r[key]}" for r in rows)])
    else:
        text = "\n".join(map(json.dumps, rows))
    table.write_text(text)


def refused(source: Path, **options: str) -> DataError:
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=source, **options))
    return caught.value


@pytest.mark.parametrize("form", ["array", "lines", "columns"])
def test_ranges_of_numbers_in_json_become_classes(tmp_path: Path, form: str) -> None:
    table = tmp_path / "my rows.json"
    write(table, "age", AGES, form)
    error = refused(table, label_column="age")
    found = typed_listing(str(error.fix).partition("you may change: ")[2])
    labels = [p.label for p in found.pictures]
    assert labels[:2] == ["below 34", "55 to below 71"]
    assert len(set(labels)) == 4


def test_one_of_several_labels_in_json_is_learnt(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", "tags", ["|".join(some) for some in TAGS])
    error = refused(tmp_path / "rows.jsonl")
    command, _ = commands_in(error.fix)
    labels = [p.label for p in typed_listing(command).pictures]
    tag = next(iter(set(labels) & {"cat", "dog", "red"}))
    assert labels == [tag if tag in some else f"not {tag}" for some in TAGS]


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_the_tables_of_all_splits_are_edited_alike(tmp_path: Path, name: str) -> None:
    for split in ("train", "my val"):
        write(tmp_path / split / name, "age", AGES)
    (tmp_path / "my val").rename(tmp_path / "val")
    error = refused(tmp_path, label_column="age")
    found = typed_listing(str(error.fix).partition("you may change: ")[2])
    assert len({p.label for p in found.pictures}) == 4
    assert {p.split for p in found.pictures} == {Split.TRAIN, Split.VAL}
    assert len(found.pictures) == 2 * len(AGES)
    assert "55" in (tmp_path / "val" / f"{name}.bak1").read_text()


def test_tables_of_splits_with_other_columns_are_not_edited_by_index(tmp_path: Path) -> None:
    write(tmp_path / "train" / "metadata.csv", "age", AGES)
    write(tmp_path / "val" / "metadata.csv", "age", AGES)
    text = (tmp_path / "val" / "metadata.csv").read_text()
    (tmp_path / "val" / "metadata.csv").write_text(
        text.replace("\n", ",x\n").replace(",x", ",a", 1)
    )
    assert "python -c" not in str(refused(tmp_path, label_column="age").fix)


@pytest.mark.parametrize("name", ["rows.json", "rows.csv"])
def test_any_number_of_rows_with_empty_cells_is_removed_by_the_command(
    tmp_path: Path, name: str
) -> None:
    write(tmp_path / name, "label", ["a", "", "b", *([""] * 25), "a"])
    error = refused(tmp_path / name)
    assert "'label' is empty in 26" in error.what
    found = typed_listing(str(error.fix).partition("To remove: ")[2])
    assert [p.label for p in found.pictures] == ["a", "b", "a"]

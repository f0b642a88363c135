"""A column for each finding, with -1 and empty cells, is never read as a class without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError
from tests.unit.data.sources.printed import commands_in, typed_listing

HEADER = "Path,Sex,Age,AP/PA,No Finding,Cardiomegaly,Edema"
CELLS = [
    "Female,62,AP,,1.0,1.0",
    "Male,25,AP,1.0,,0.0",
    "Male,83,AP,-1.0,-1.0,",
    "Female,73,PA,,-1.0,1.0",
    "Female,61,PA,,0.0,-1.0",
    "Male,73,PA,1.0,0.0,0.0",
]


def table_of(folder: Path, cells: Sequence[str] = CELLS, header: str = HEADER) -> Path:
    rows = [header]
    for at, row in enumerate(cells):
        (folder / f"small/train/{at}").mkdir(parents=True)
        (folder / f"small/train/{at}/view1.jpg").write_bytes(b"x")
        rows.append(f"small/train/{at}/view1.jpg,{row}")
    table = folder / "small" / "train.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


def refused(table: Path, **options: object) -> DataError:
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=table, **options))
    return caught.value


def test_findings_are_asked_for_and_the_commands_decide_what_empty_cells_and_minus_one_are(
    tmp_path: Path,
) -> None:
    """As in CheXpert, whose paths begin with the table's own folder."""
    error = refused(table_of(tmp_path))
    assert "'No Finding', 'Cardiomegaly', 'Edema'" in error.what
    assert "of 6 rows, 1 have several of them, 5 have empty cells, 3 have -1" in error.what
    assert "A picture has one label here" in str(error.why)
    (command,) = commands_in(error.fix)
    assert "--label-column Edema" in command
    with pytest.raises(DataError, match="'Edema' is empty in 1 of 6 rows and -1 in 1") as caught:
        typed_listing(command)
    without, filled = commands_in(caught.value.fix)
    found = typed_listing(without)
    assert [p.label for p in found.pictures] == ["1.0", "0.0", "1.0", "0.0"]
    assert found.pictures[0].path == "train/0/view1.jpg"
    assert [p.label for p in typed_listing(filled).pictures] == ["1.0", "0.0", "0.0", "1.0", "0.0"]


def test_a_path_that_begins_with_the_tables_own_folder_is_read(tmp_path: Path) -> None:
    table = table_of(tmp_path, ["a", "b"], "path,label")
    found = list_pictures(PrepareConfig(source=table))
    assert [p.path for p in found.pictures] == ["train/0/view1.jpg", "train/1/view1.jpg"]
    assert "--path-format '../{}'" in found.warnings[0]


def test_without_empty_cells_minus_one_beside_zero_is_not_read_as_zero(tmp_path: Path) -> None:
    table = table_of(tmp_path, ["1,-1,0", "0,1,0", "0,0,1", "1,0,-1"], "Path,Mass,Edema,Hernia")
    assert "2 have -1" in refused(table).what
    error = refused(table, label_column="Edema")
    assert error.what == "column 'Edema' is -1 in 1"
    (command,) = commands_in(error.fix)
    assert Counter(p.label for p in typed_listing(command).pictures) == {"1": 1, "0": 2}


def test_one_in_each_row_and_empty_cells_are_read_by_the_command(tmp_path: Path) -> None:
    table = table_of(tmp_path, ["1,,", ",1,", ",,1", "1,,"], "Path,Mass,Edema,Hernia")
    filled, one = commands_in(refused(table).fix)
    assert [p.label for p in typed_listing(filled).pictures] == ["Mass", "Edema", "Hernia", "Mass"]
    assert "--label-column Mass" in one
    with pytest.raises(DataError, match="'Mass' is empty in 2 of 4 rows"):
        typed_listing(one)


def test_minus_one_and_one_in_every_cell_are_classes(tmp_path: Path) -> None:
    table = table_of(tmp_path, ["1,-1,-1", "-1,1,-1", "-1,-1,1"], "Path,Mass,Edema,Hernia")
    labels = [p.label for p in list_pictures(PrepareConfig(source=table)).pictures]
    assert labels == ["Mass", "Edema", "Hernia"]


def test_minus_one_in_a_single_column_of_labels_has_a_warning(tmp_path: Path) -> None:
    table = table_of(tmp_path, ["1", "-1", "0", "0"], "path,label")
    found = list_pictures(PrepareConfig(source=table))
    assert "column 'label' is -1 in 1 of 4 rows" in " ".join(found.warnings)


def test_empty_facts_beside_a_label_are_no_findings(tmp_path: Path) -> None:
    cells = ["a,1,,0", "b,,1,", "a,0,1,1"]
    table = table_of(tmp_path, cells, "path,label,smoker,fever,cough")
    assert [p.label for p in list_pictures(PrepareConfig(source=table)).pictures] == list("aba")

"""Rows with more or fewer cells than the header are named, with commands that read the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError
from tests.unit.data.sources.printed import commands_in, typed_listing

ROWS = [
    "1,Tops,2012,Blue Shirt",
    "2,Tops,2013,White Shirt, with buttons, new",
    "3,Jeans,2012,Turtle Jeans",
    "# a comment, too",
    "4,Jeans,2013,Gini & Jony Jeans, black",
]


def table_of(folder: Path, header: str, rows: list[str], delimiter: str = ",") -> Path:
    for at in range(1, 5):
        (folder / f"{at}.jpg").write_bytes(b"x")
    table = folder / "my styles.csv"
    table.write_text("\n".join([header, *rows]).replace(",", delimiter) + "\n")
    return table


def refused(table: Path, **options: str) -> DataError:
    with pytest.raises(DataError, match="wrong number of cells in") as caught:
        list_pictures(PrepareConfig(source=table, **options))
    return caught.value


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize(
    "options", [{"label_column": "kind"}, {"label_column": "kind", "path_column": "id"}]
)
def test_surplus_cells_of_the_last_column_are_joined_or_the_rows_left_out(
    tmp_path: Path, delimiter: str, options: dict[str, str]
) -> None:
    """As in the styles of Kaggle's fashion pictures, whose names of products have commas."""
    error = refused(table_of(tmp_path, "id,kind,year,name", ROWS, delimiter), **options)
    assert "in 2 rows: 3, 6, which begin with '2', '4': the header has 4, row 3 has 6" in error.what
    _, joined, without = commands_in(error.fix)
    assert [p.label for p in typed_listing(joined).pictures] == ["Tops", "Tops", "Jeans", "Jeans"]
    assert (
        f"White Shirt{delimiter} with buttons{delimiter} new"
        in (tmp_path / "joined-my styles.csv").read_text()
    )
    assert [p.path for p in typed_listing(without).pictures] == ["1.jpg", "3.jpg"]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("id,kind,year,name", "4,Jeans"),  # too short
        ("id,name,year,kind", "4,Shirt, black,2013,new Jeans"),  # the year is text
        ("id,kind,year,number", "4,Jeans,2013,7,8"),  # the last column has no text
    ],
)
def test_rows_that_no_join_mends_can_only_be_left_out(
    tmp_path: Path, header: str, row: str
) -> None:
    number = "7" if header.endswith("number") else "old Jeans"
    rows = [f"{at},{'ab'[at % 2]},2012,{number}" for at in (1, 2, 3)]
    error = refused(table_of(tmp_path, header, [*rows, row]), label_column=header.split(",")[1])
    assert "surplus" not in str(error.fix)
    assert "which begins with '4'" in error.what
    _, without = commands_in(error.fix)
    assert [p.path for p in typed_listing(without).pictures] == ["1.jpg", "2.jpg", "3.jpg"]


def test_columns_that_are_named_are_kept_in_the_command(tmp_path: Path) -> None:
    table = table_of(tmp_path, "1.jpg,a", ["2.jpg,b", "3.jpg,a,b", "4.jpg,b"])
    error = refused(table, columns="path,label")
    _, without = commands_in(error.fix)
    assert [p.path for p in typed_listing(without).pictures] == ["1.jpg", "2.jpg", "4.jpg"]


SPACED = [f"p{at} {at}.jpg {'cat' if at % 2 else 'dog'}" for at in range(1, 7)]


@pytest.mark.parametrize("header", ["", "path label patient"])
@pytest.mark.parametrize("bad", [["COVID 1 1.jpg cat"], ["COVID 1 1.jpg cat", "x, y z 2.jpg dog"]])
def test_a_few_uneven_rows_do_not_change_the_separator(
    tmp_path: Path, header: str, bad: list[str]
) -> None:
    """As in the lists of COVIDx, some of whose patients are called `COVID 1`."""
    rows = [*SPACED[:4], *bad, *SPACED[4:]]
    if header:
        rows = [" ".join([*row.split()[1:], row.split()[0]]) for row in SPACED]
        rows[4:4] = ["2.jpg dog COVID 1"] * len(bad)
    table = table_of(tmp_path, header or "# patients", rows)
    error = refused(table, **({} if header else {"columns": "patient,path,label"}))
    first = 6
    assert f"row{'s' * (len(bad) > 1)}{':' * (len(bad) > 1)} {first}" in error.what
    assert f"3, row {first} has {len((rows[4]).split())}" in error.what
    assert "Put quotes around cells that contain a space." in error.fix
    _, whole = commands_in(error.fix)
    assert [p.label for p in typed_listing(whole).pictures] == ["cat", "dog"] * 3
    table.write_text(
        table.read_text().replace("COVID 1", '"COVID 1"').replace("x, y z", '"x, y z"')
    )
    read = list_pictures(PrepareConfig(source=table, columns=None if header else "a,path,label"))
    assert {p.label for p in read.pictures} == {"cat", "dog"}


def test_names_of_too_few_columns_do_not_change_the_separator(tmp_path: Path) -> None:
    table = table_of(tmp_path, "# list", SPACED)
    error = refused(table, columns="path,label")
    assert "--columns names 2, row 2 has 3" in error.what
    (named,) = commands_in(error.fix)
    assert [p.label for p in typed_listing(named).pictures] == ["cat", "dog"] * 3


def test_a_row_with_a_comma_is_no_reason_to_separate_others_by_commas(tmp_path: Path) -> None:
    rows = [f"{at}.jpg cat" for at in range(1, 5)] + ["1.jpg cat, dog"]
    error = refused(table_of(tmp_path, "name kind", rows))
    assert "in row 6, which begins with '1.jpg': the header has 2, row 6 has 3" in error.what

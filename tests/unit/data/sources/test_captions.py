"""Captions are never read as classes without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.labels.captions import find_captions
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError
from tests.unit.data.sources.printed import commands_in, typed_listing

COLOURS = ("red", "green", "blue", "white")


def caption(at: int) -> str:
    return f"a {COLOURS[at % 4]} sofa of the {at}th century"


def table_of(folder: Path, rows: list[str]) -> Path:
    for at in range(12):
        (folder / f"{at}.jpg").write_bytes(b"x")
    table = folder / "captions.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


@pytest.mark.parametrize("column", ["caption", "label"])
@pytest.mark.parametrize("num_each", [1, 5])
@pytest.mark.parametrize("is_named", [False, True])
def test_captions_of_tables_are_refused(
    tmp_path: Path, column: str, num_each: int, is_named: bool
) -> None:
    """As in Flickr8k, with five captions of each picture."""
    rows = [f"{at}.jpg,{caption(at)} {k}" for at in range(12) for k in range(num_each)]
    table = table_of(tmp_path, [f"image,{column}", *rows])
    options = {"label_column": column} if is_named else {}
    with pytest.raises(DataError, match=f"column '{column}' looks like captions") as caught:
        list_pictures(PrepareConfig(source=table, **options))
    assert f"in {12 * num_each} rows, such as 'a red sofa" in caught.value.what


def test_another_column_than_the_captions_is_named_and_works(tmp_path: Path) -> None:
    rows = [f"{at}.jpg,{caption(at)},{COLOURS[at % 4]}" for at in range(12)]
    table = table_of(tmp_path, ["image,caption,colour", *rows])
    with pytest.raises(DataError, match="looks like captions") as caught:
        list_pictures(PrepareConfig(source=table, label_column="caption"))
    (command,) = commands_in(caught.value.fix)
    assert {one.label for one in typed_listing(command).pictures} == set(COLOURS)


@pytest.mark.parametrize(
    "labels",
    [
        [f"{maker} Coupe Two Door 20{at:02d}" for maker in "AB" for at in range(9)] * 5,
        [f"00{at}.Black_footed_Albatross" for at in range(9)],
        ["common brown garden snail", "red fox of the woods"],
        [str(at) for at in range(40)],
    ],
)
def test_names_of_classes_are_no_captions(labels: list[str]) -> None:
    assert find_captions(labels) is None


def test_captions_without_blanks_are_found() -> None:
    assert find_captions([f"一只红色的沙发放在大房间的中间第{at}号" for at in range(9)]) is not None

"""CSV files are read as users write them, and errors name row and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing, list_pictures
from stepladder.errors import DataError


def listed(folder: Path, text: str | bytes, **options: object) -> Listing:
    path = folder / "labels.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list_pictures(PrepareConfig(source=path, **options))


def test_paths_start_at_the_tables_folder(tmp_path: Path) -> None:
    listing = listed(tmp_path, "path,label\nx/1.jpg,a\n./x//2.jpg,b\n")
    assert [(p.path, p.label, p.split) for p in listing.pictures] == [
        ("x/1.jpg", "a", None),
        ("x/2.jpg", "b", None),
    ]
    assert listing.root == tmp_path.resolve()


def test_absolute_paths_are_written_relative(tmp_path: Path) -> None:
    listing = listed(tmp_path, f"path,label\n{tmp_path}/x/1.jpg,a\n{tmp_path.parent}/y.jpg,b\n")
    assert [picture.path for picture in listing.pictures] == ["x/1.jpg", "../y.jpg"]


def test_bom_crlf_quotes_and_blank_lines_are_fine(tmp_path: Path) -> None:
    text = '\ufeffpath,label\r\n"a, b\nc.jpg",one\r\n\r\n"x ""y"".jpg",two\r\n'
    listing = listed(tmp_path, text)
    assert [picture.path for picture in listing.pictures] == ["a, b\nc.jpg", 'x "y".jpg']


def test_columns_are_the_users(tmp_path: Path) -> None:
    text = "id,file,kind,part,scene\n1,1.jpg,a,train,s1\n2,2.jpg,b,Valid,s2\n3,3.jpg,a,test,s1\n"
    listing = listed(
        tmp_path,
        text,
        path_column="file",
        label_column="kind",
        split_column="part",
        group_by="scene",
    )
    assert [(p.label, p.split, p.group) for p in listing.pictures] == [
        ("a", Split.TRAIN, "s1"),
        ("b", Split.VAL, "s2"),
        ("a", Split.TEST, "s1"),
    ]


def test_a_split_column_that_nobody_filled_says_nothing(tmp_path: Path) -> None:
    listing = listed(tmp_path, "path,label,split\n1.jpg,a,\n2.jpg,b,\n")
    assert {picture.split for picture in listing.pictures} == {None}


def test_a_row_given_twice_counts_once(tmp_path: Path) -> None:
    listing = listed(tmp_path, "path,label\n1.jpg,a\n2.jpg,b\n1.jpg,a\n")
    assert len(listing.pictures) == 2
    assert "1 repeated" in listing.warnings[0]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("path,lable\n1.jpg,a\n", ["row 1", "'label'", "--label-column lable"]),
        ("path;label\n1.jpg;a\n", ["row 1", "semicolons"]),
        ("path\tlabel\n1.jpg\ta\n", ["tabs"]),
        ("path,label,label\n1.jpg,a,b\n", ["two columns", "'label'"]),
        ("path,label\n", ["no rows"]),
        ("", ["empty"]),
        ("path,label\n1.jpg,a\n2.jpg,a,b\n3.jpg,a\n", ["row 3", "header has 2, row 3 has 3"]),
        ("path,label\n1.jpg,a\n2.jpg,\n3.jpg, \n", ["'label' is empty in 2 rows: 3, 4"]),
        ("path,label\n1.jpg,a\n2.jpg,NaN\n", ["'label' is empty in row 3", "NaN"]),
        ("path,label\n,a\n2.jpg,b\n", ["'path' is empty", "row 2"]),
        ("path,label,split\n1.jpg,a,train\n2.jpg,b,\n", ["'split' is empty", "row 3"]),
        ("path,label,split\n1.jpg,a,train\n2.jpg,b,tset\n", ["row 3", "'tset'"]),
        ("path,label\n1.jpg,a\n2.jpg,b\n1.jpg,b\n", ["rows 2 and 4", "1.jpg"]),
        ("a/1.jpg,a\nb/2.jpg,b\n", ["row 1", "not a header", "path,label"]),
        ('path,label\n1.jpg,a\n"2.jpg,b\n3.jpg,b\n', ["row 3", "not a CSV"]),
        (b"path,label\n1.jpg,a\n\xff\xfe.jpg,a\n", ["row 3", "UTF-8"]),
    ],
)
def test_what_is_wrong_is_told_by_row_and_column(
    tmp_path: Path, text: str | bytes, parts: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        listed(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "labels.csv"))
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("header", "typed"),
    [
        ("filename,label", "--path-column filename"),
        ("path,Class", "--label-column Class"),
        ("paths,label", "--path-column paths"),
        ("x,label", "--path-column x"),
        ("x,y,label", "--path-column COLUMN"),
    ],
)
def test_a_missing_column_names_one_that_is_like_it(
    tmp_path: Path, header: str, typed: str
) -> None:
    with pytest.raises(DataError) as caught:
        listed(tmp_path, f"{header}\na.jpg,cat\n")
    assert caught.value.fix == f"Name the column: {typed}"

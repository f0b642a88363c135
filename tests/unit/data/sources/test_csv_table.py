"""CSV files are read as users write them, and errors name row and column."""

from __future__ import annotations

import codecs
import shlex
import subprocess
from pathlib import Path

import pytest

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError, UsageError

FILES = ("1.jpg", "2.jpg", "x/1.jpg", "a/1.jpg", 'x "y".jpg', "images/000.jpg", "images/001.jpg")


def listed(folder: Path, text: str | bytes, **options: object) -> Listing:
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
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
        ("path;label\n1.jpg;a\n2.jpg;a;b\n", ["row 3", "header has 2, row 3 has 3"]),
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
        ("a/1.jpg,a\nb/2.jpg,b\n", ["row 1", "no header", "--columns path,label"]),
        ("cat,1\ndog,2\ncat,3\n", ["row 1", "no header", "--columns path,label"]),
        ("7,test,1.jpg\n8,train,2.jpg\n", ["--columns label,split,path"]),
        ('path,label\n1.jpg,a\n"2.jpg,b\n3.jpg,b\n', ["row 3", "not a CSV"]),
        (b"path,label\n1.jpg,a\n\xff\xfe.jpg,a\n", ["row 3", "UTF-8", "iconv -f WINDOWS-1252"]),
        (codecs.BOM_UTF16_LE + "path,label\n".encode("utf-16-le") + b"\x00", ["UTF-16"]),
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


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_any_delimiter_and_unicode_encoding_is_read(
    tmp_path: Path, encoding: str, delimiter: str
) -> None:
    rows = (("path", "label"), ("1.jpg", "\u00e9t\u00e9, old"), ("2.jpg", "b"))
    text = "\r\n".join(delimiter.join(f'"{cell}"' for cell in row) for row in rows)
    listing = listed(tmp_path, text.encode(encoding))
    assert [(p.path, p.label) for p in listing.pictures] == [
        ("1.jpg", "\u00e9t\u00e9, old"),
        ("2.jpg", "b"),
    ]
    told = " ".join(listing.warnings)
    assert ("UTF-16" in told) == encoding.startswith("utf-16")
    assert ("separated" in told) == (delimiter != ",")


@pytest.mark.parametrize(
    "text",
    [
        "# made by hand\n\npath,label\n1.jpg,a\n# a pause\n2.jpg,b\n",
        "#path,label\n1.jpg,a\n2.jpg,b\n",  # as NumPy writes a header
        "sep=;\npath;label\n1.jpg;a\n2.jpg;b\n",  # as Excel reads it
        ",path,label\n0,1.jpg,a\n1,2.jpg,b\n",  # with the index of pandas
        "path;label;note\n1.jpg;a;x,y\n2.jpg;b;z\n",
    ],
)
def test_what_tools_add_to_a_table_is_skipped(tmp_path: Path, text: str) -> None:
    found = listed(tmp_path, text)
    assert [(p.path, p.label) for p in found.pictures] == [("1.jpg", "a"), ("2.jpg", "b")]


def test_a_comment_is_counted_and_errors_name_the_line_of_the_file(tmp_path: Path) -> None:
    text = "# one\n# two\npath,label\n1.jpg,a\n2.jpg,b\n"
    assert listed(tmp_path, text).warnings == (
        f"{tmp_path / 'labels.csv'}: skipped 2 comment line(s)",
    )
    with pytest.raises(DataError, match="empty in row 6"):
        listed(tmp_path, text + "3.jpg,\n")


@pytest.mark.parametrize(
    "text", ["1.jpg,a\n2.jpg,b\n", "1.jpg a\n2.jpg b\n", "1.jpg\ta\n2.jpg\tb\n"]
)
def test_columns_of_a_table_without_a_header_can_be_named(tmp_path: Path, text: str) -> None:
    listing = listed(tmp_path, text, columns="path,label")
    assert [(p.path, p.label) for p in listing.pictures] == [("1.jpg", "a"), ("2.jpg", "b")]


def test_names_of_columns_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="empty or a repeated name"):
        listed(tmp_path, "1.jpg,a\n", columns="path,path")
    with pytest.raises(DataError, match="--columns names 3, row 1 has 2"):
        listed(tmp_path, "1.jpg,a\n2.jpg,b\n", columns="path,label,split")


def test_backslashes_are_separators_unless_such_a_file_exists(tmp_path: Path) -> None:
    text = "path,label\nimages\\000.jpg,a\nimages\\001.jpg,b\n"
    listing = listed(tmp_path, text)
    assert [picture.path for picture in listing.pictures] == ["images/000.jpg", "images/001.jpg"]
    assert "backslashes" in listing.warnings[0]
    for name in ("images\\000.jpg", "images\\001.jpg"):
        (tmp_path / name).write_bytes(b"x")
    listing = listed(tmp_path, text)
    assert [picture.path for picture in listing.pictures] == ["images\\000.jpg", "images\\001.jpg"]
    assert listing.warnings == ()


PATHS = ["images/000.jpg", "images/001.jpg"]


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["images/000", "images/001"], "images/000.jpg exists, the ending is missing"),
        (["000.jpg", "001.jpg"], "images/000.jpg exists, the folder is missing"),
        (["000", "001"], "images/000.jpg exists, the folder and the ending are missing"),
        (["/images/000.jpg", "/images/001.jpg"], "exists, the path begins with a slash"),
        (["/home/ann/images/000.jpg", "/home/ann/images/001.jpg"], "images/000.jpg exists"),
        ([r"C:\ann\images\000.jpg", r"C:\ann\images\001.jpg"], "images/000.jpg exists"),
        (
            ["https://example.org/images/000.jpg", "https://example.org/images/001.jpg"],
            "is an address, not a path: images/000.jpg exists",
        ),
    ],
)
def test_paths_of_no_file_are_told_with_a_remedy_that_works(
    tmp_path: Path, cells: list[str], told: str
) -> None:
    text = f"path,label\n{cells[0]},a\n{cells[1]},b\n"
    with pytest.raises(DataError) as caught:
        listed(tmp_path, text)
    assert told in str(caught.value)
    assert caught.value.fix is not None
    typed = shlex.split(caught.value.fix.partition(": ")[2])
    if typed[0] == "--path-format":
        listing = listed(tmp_path, text, path_format=typed[1])
    else:
        line = caught.value.fix.partition(": ")[2]
        subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
        listing = list_pictures(PrepareConfig(source=tmp_path / "here-labels.csv"))
    assert [picture.path for picture in listing.pictures] == PATHS


@pytest.mark.parametrize(
    ("cell", "told", "fix"),
    [
        ("s3://bucket/7.jpg", "is an address, not a path", "Download the pictures"),
        ("7.jpg", "no picture '7.jpg'", "--path-format 'FOLDER/{}.jpg'"),
        ("IMAGES/000.JPG", "no picture", "--path-format 'FOLDER/{}.jpg'"),
        ("images/000.JPG", "upper and lower case differ", "as files are named"),
    ],
)
def test_paths_of_no_file_are_told(tmp_path: Path, cell: str, told: str, fix: str) -> None:
    with pytest.raises(DataError) as caught:
        listed(tmp_path, f"path,label\n{cell},a\n{cell}x,b\n")
    assert told in str(caught.value)
    assert fix in str(caught.value.fix)


def test_a_path_format_needs_a_place_for_the_cell(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not contain"):
        listed(tmp_path, "path,label\n1,a\n2,b\n", path_format="images/.jpg")

"""CSV files are read as users write them, and errors name row and column."""

from __future__ import annotations

import codecs
import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError, UsageError

FILES = ("1.jpg", "2.jpg", "x/1.jpg", "a/1.jpg", 'x "y".jpg', "images/000.jpg", "images/001.jpg")


def listed(
    folder: Path, text: str | bytes, *, more: Sequence[str] = (), **options: object
) -> Listing:
    for name in (*FILES, *more):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(name)
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
        ("path,age,sex\n1.jpg,4,f\n2.jpg,3,m\n", ["row 1", "'label'", "be it: 'sex', 'age'"]),
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
        ('path,label\n1.jpg,a\n"2.jpg,b\n3.jpg,b\n', ["line 3", "not a CSV"]),
        (b"path,label\n1.jpg,a\n\xff\x81.jpg,a\n", ["line 3", "not UTF-8", "Save it as UTF-8"]),
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
        ("paths,label", "--path-column paths"),
        ("x,label", "--path-column x"),
    ],
)
def test_a_missing_column_names_one_that_is_like_it(
    tmp_path: Path, header: str, typed: str
) -> None:
    with pytest.raises(DataError) as caught:
        listed(tmp_path, f"{header}\na.jpg,cat\nb.jpg,dog\n")
    table = tmp_path / "labels.csv"
    assert caught.value.fix == f"Name the column: stepladder prepare {table} {typed}"


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


def typed_listing(command: str, folder: Path) -> Listing:
    """Run a remedy in a shell, and list what its last part, `stepladder prepare`, reads."""
    edit, _, last = command.rpartition(" && ")
    if edit:
        subprocess.run(["bash", "-c", edit], cwd=folder, check=True)
    words = shlex.split(last)
    assert words[:2] == ["stepladder", "prepare"]
    options = {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(words[3::2], words[4::2], strict=True)
    }
    return list_pictures(PrepareConfig(source=Path(words[2]), **options))


@pytest.mark.parametrize(
    ("cells", "told", "flag"),
    [
        (["images/000", "images/001"], "images/000.jpg exists, the ending is missing", "'{}.jpg'"),
        (["000.jpg", "001.jpg"], "images/000.jpg exists, the folder is missing", "'images/{}'"),
        (["000", "001"], "exists, the folder and the ending are missing", "'images/{}.jpg'"),
        ([" 000.jpg ", " 001.jpg "], "images/000.jpg exists, the folder is missing", "'images/{}'"),
    ],
)
def test_paths_without_folder_or_ending_are_found(
    tmp_path: Path, cells: list[str], told: str, flag: str
) -> None:
    text = f"path,label\n{cells[0]},a\n{cells[1]},b\n"
    listing = listed(tmp_path, text)
    assert [(p.path, p.label) for p in listing.pictures] == list(zip(PATHS, "ab", strict=True))
    assert told in listing.warnings[0]
    assert listing.warnings[0].endswith(f"read as with --path-format {flag}")


@pytest.mark.parametrize(
    "names", ["Old Male Smiling", "image Old Male Smiling", "image_id  Old   Male  Smiling "]
)
@pytest.mark.parametrize("count", ["", "3\n"])
@pytest.mark.parametrize("folder", ["", "images/"])
def test_a_list_of_attributes_with_a_count_asks_for_one_of_them(
    tmp_path: Path, names: str, count: str, folder: str
) -> None:
    cells = ["-1  1 -1", " 1  1  1", " 1 -1 -1"]
    files = [f"00{at}.jpg" for at in range(3)]
    rows = [f"{file} {some}" for file, some in zip(files, cells, strict=True)]
    text = count + "\n".join([names, *rows]) + "\n"
    more = [f"{folder}{file}" for file in files]
    with pytest.raises(DataError, match="several classes in") as error:
        listed(tmp_path, text, more=more)
    command = str(error.value.fix).rpartition(": ")[2]
    assert [one.label for one in typed_listing(command, tmp_path).pictures] == ["-1", "1", "1"]
    smiling = typed_listing(command.replace("Old", "Smiling"), tmp_path)
    assert [one.label for one in smiling.pictures] == ["-1", "1", "-1"]
    assert any("skipped the first line, 3" in told for told in smiling.warnings) == bool(count)


def test_a_count_above_a_list_is_no_header(tmp_path: Path) -> None:
    for text in ("2\n1.jpg 0\n2.jpg 1\n", "2\npath,label\n1.jpg,0\n2.jpg,1\n"):
        listing = listed(tmp_path, text)
        assert [(p.path, p.label) for p in listing.pictures] == [("1.jpg", "0"), ("2.jpg", "1")]
    with pytest.raises(DataError, match="row 4"):
        listed(tmp_path, "2\npath,label\n1.jpg,0\n2.jpg,\n")


@pytest.mark.parametrize("header", ["id,diagnosis", "path,label"])
@pytest.mark.parametrize(
    ("folder", "start", "end", "digits"),
    [("images/", "", ".png", 5), ("a/b/", "", ".JPG", 2), ("", "scan_", ".tif", 4)],
)
def test_numbers_without_their_zeros_are_found(
    tmp_path: Path, header: str, folder: str, start: str, end: str, digits: int
) -> None:
    names = [f"{folder}{start}{at:0{digits}}{end}" for at in range(1, 13)]
    rows = [f"{at},{'ab'[at % 2]}" for at in range(1, 13)]
    listing = listed(tmp_path, "\n".join([header, *rows]), more=names)
    assert [picture.path for picture in listing.pictures] == names
    shape = f"{folder}{start}{{:0{digits}}}{end}"
    flag = shlex.quote(shape)
    assert listing.warnings[0].endswith(f"--path-format {flag}")
    assert "so are zeros" in listing.warnings[0]
    path, label = header.split(",")
    told = listed(
        tmp_path,
        "\n".join([header, *rows]),
        path_column=path,
        label_column=label,
        path_format=shape,
    )
    assert [picture.path for picture in told.pictures] == names
    assert told.warnings == ()


@pytest.mark.parametrize(
    ("name", "bits", "split"),
    [
        ("is_valid", ("False", "True"), Split.VAL),
        ("is_val", ("0", "1"), Split.VAL),
        ("isTest", ("0.0", "1.0"), Split.TEST),
    ],
)
@pytest.mark.parametrize("is_told", [False, True])
def test_a_column_says_which_rows_are_not_train(
    tmp_path: Path, name: str, bits: tuple[str, str], split: Split, is_told: bool
) -> None:
    told = {"split_column": name} if is_told else {}
    rows = f"path,label,{name}\n1.jpg,a,{bits[0]}\n2.jpg,b,{bits[0]}\nx/1.jpg,a,{bits[1]}\n"
    listing = listed(tmp_path, rows, **told)
    assert [picture.split for picture in listing.pictures] == [Split.TRAIN, Split.TRAIN, split]
    assert is_told or f"--split-column {name}" in listing.warnings[0]


@pytest.mark.parametrize("name", ["fold", "is_train", "subset"])
def test_a_column_of_other_splits_is_named_as_not_read(tmp_path: Path, name: str) -> None:
    listing = listed(tmp_path, f"path,label,{name}\n1.jpg,a,0\n2.jpg,b,0\nx/1.jpg,a,1\n")
    assert {picture.split for picture in listing.pictures} == {None}
    assert f"the column {name!r} is not read as splits" in listing.warnings[0]


def test_an_id_names_pictures_rather_than_another_number(tmp_path: Path) -> None:
    rows = [f"{at + 1},{at},{'ab'[at % 2]}" for at in range(1, 12)]
    names = [f"images/{at:04}.png" for at in range(1, 13)]
    listing = listed(tmp_path, "\n".join(["age,id,label", *rows]), more=names)
    assert [picture.path for picture in listing.pictures] == names[:11]


def test_a_path_format_that_finds_nothing_names_one_that_does(tmp_path: Path) -> None:
    names = [f"images/{at:06}.png" for at in range(1, 4)]
    with pytest.raises(DataError, match=r"images/000001.png exists") as error:
        listed(
            tmp_path,
            "path,label\n1,a\n2,b\n3,a\n",
            more=names,
            path_format="images/{}.png",
        )
    listing = typed_listing(str(error.value.fix).partition(": ")[2], tmp_path)
    assert [picture.path for picture in listing.pictures] == names


def test_numbers_of_pandas_with_a_dot_are_those_of_pictures(tmp_path: Path) -> None:
    names = ["images/0101.png", "images/0102.png"]
    listing = listed(tmp_path, "id,label\n101.0,a\n102.0,b\n", more=names)
    assert [picture.path for picture in listing.pictures] == names


@pytest.mark.parametrize(
    "name", ["split", "data set", "Usage", "subset", "partition", "purpose", "my column"]
)
@pytest.mark.parametrize(
    "words", [("train", "valid", "test"), ("Training", "PublicTest", "PrivateTest")]
)
def test_a_column_of_train_val_and_test_is_read_whatever_its_name_is(
    tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    rows = [f"{file},{'ab'[at % 2]},{words[at]}" for at, file in enumerate(FILES[:3])]
    listing = listed(tmp_path, "\n".join([f"path,label,{name}", *rows]))
    assert [picture.split for picture in listing.pictures] == [Split.TRAIN, Split.VAL, Split.TEST]
    assert {picture.label for picture in listing.pictures} == {"a", "b"}
    assert (name == "split") == (not listing.warnings)
    assert all(f"--split-column {shlex.quote(name)}" in told for told in listing.warnings)


def test_a_column_of_splits_is_not_taken_for_labels_nor_the_other_way_round(tmp_path: Path) -> None:
    listing = listed(tmp_path, "path,label\n1.jpg,train\n2.jpg,test\n")
    assert [(p.label, p.split) for p in listing.pictures] == [("train", None), ("test", None)]
    two = "path,label,{},{}\n1.jpg,a,train,train\n2.jpg,b,test,train\nx/1.jpg,a,val,test\n"
    with pytest.raises(DataError, match="'run', 'round'") as error:
        listed(tmp_path, two.format("run", "round"))
    assert "--split-column run" in str(error.value)
    assert listed(tmp_path, two.format("run", "set")).pictures[1].split is Split.TRAIN


@pytest.mark.parametrize("name", ["labels.csv", "my labels.csv", "labels.jsonl", "labels.json"])
@pytest.mark.parametrize(
    ("start", "told"),
    [
        ("/", "exists, the path begins with a slash"),
        ("/home/ann/", "images/000.jpg exists, '/home/ann/' is a folder of another machine"),
        ("/home/ann/[x] *.$^/", "is a folder of another machine"),
        ("C:\\ann\\", "images/000.jpg exists, 'C:/ann/' is a folder of another machine"),
        ("pets/", "images/000.jpg exists, 'pets/' is no folder here"),
        ("https://example.org/", "is an address, not a path: images/000.jpg exists"),
    ],
)
def test_paths_of_another_machine_are_told_with_a_remedy_that_works(
    tmp_path: Path, name: str, start: str, told: str
) -> None:
    folder = tmp_path / "a" / "b" / "c"  # has no other pictures around it
    folder.mkdir(parents=True)
    cells = [start + (path.replace("/", "\\") if "\\" in start else path) for path in PATHS]
    rows = [{"path": cell, "label": label} for cell, label in zip(cells, "ab", strict=True)]
    listed(folder, "path,label\n1.jpg,a\n2.jpg,b\n")
    text = "path,label\n" + "".join(f"{row['path']},{row['label']}\n" for row in rows)
    if name.endswith("l"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
    elif name.endswith("json"):
        text = json.dumps(rows)
    (folder / name).write_text(text)
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=folder / name))
    assert told in str(caught.value)
    found = typed_listing(str(caught.value.fix).partition(": ")[2], tmp_path)
    assert [(p.path, p.label) for p in found.pictures] == list(zip(PATHS, "ab", strict=True))


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252"])
def test_a_remedy_works_for_other_encodings(tmp_path: Path, encoding: str) -> None:
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    text = f"path,label\n/home/ann/{PATHS[0]},\u00c4pfel\n/home/ann/{PATHS[1]},b\n"
    with pytest.raises(DataError) as caught:
        listed(folder, text.encode(encoding))
    found = typed_listing(str(caught.value.fix).partition(": ")[2], tmp_path)
    assert [(p.path, p.label) for p in found.pictures] == [
        (PATHS[0], "\u00c4pfel"),
        (PATHS[1], "b"),
    ]


def test_pictures_beside_the_tables_folder_are_asked_about(tmp_path: Path) -> None:
    folder = tmp_path / "set" / "meta"
    folder.mkdir(parents=True)
    text = "n01/x.JPEG 0\nn02/y.JPEG 1\n"
    names = ["../train/n01/x.JPEG", "../train/n02/y.JPEG"]
    with pytest.raises(DataError) as caught:
        listed(folder, text, more=names)
    assert "../train/n01/x.JPEG exists, the folder is missing" in str(caught.value)
    found = typed_listing(str(caught.value.fix).partition(": ")[2], tmp_path)
    assert [(p.path, p.label) for p in found.pictures] == [(names[0], "0"), (names[1], "1")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.jpg,a\n2.jpg,b\n", [("1.jpg", "a"), ("2.jpg", "b")]),
        ("cat, images/000\ndog, images/001\ncat, x/1\n", [(PATHS[0], "cat"), (PATHS[1], "dog")]),
        ("000,a\n001,b\n", [(PATHS[0], "a"), (PATHS[1], "b")]),
        ("images/000.jpg 0\nimages/001.jpg 1 \n", [(PATHS[0], "0"), (PATHS[1], "1")]),
        ("images/000.jpg\t0\nimages/001.jpg\t1\n", [(PATHS[0], "0"), (PATHS[1], "1")]),
        (",filenames,cats\n0,000.jpg,352\n1,001.jpg,7\n", [(PATHS[0], "352"), (PATHS[1], "7")]),
        ("Class;File\na;images/000.jpg\nb;images/001.jpg\n", [(PATHS[0], "a"), (PATHS[1], "b")]),
        ('"file name","kind"\n"1.jpg","a"\n"2.jpg","b"\n', [("1.jpg", "a"), ("2.jpg", "b")]),
        (
            "image,class_id,class_name\n000,4,cat\n001,5,dog\n",
            [(PATHS[0], "cat"), (PATHS[1], "dog")],
        ),
        ("path , label\n 1.jpg , a\n 2.jpg , b\n", [("1.jpg", "a"), ("2.jpg", "b")]),
        ("file,label\n1.jpg,a\nfile,label\n2.jpg,b\n,\n", [("1.jpg", "a"), ("2.jpg", "b")]),
    ],
)
def test_columns_are_found_from_the_cells(
    tmp_path: Path, text: str, expected: list[tuple[str, str]]
) -> None:
    found = listed(tmp_path, text)
    assert [(p.path, p.label) for p in found.pictures][:2] == expected


SIX = ("000", "001", "1", "2", "3", "4")
SIX_FILES = [f"images/{name}.jpg" for name in SIX]


@pytest.mark.parametrize(
    ("header", "rows", "label"),
    [
        ("Filename;Width;Height;Roi.X1;ClassId", "60;59;5;{}", "ClassId"),
        ("image;xmin;ymax;img_size;grade", "5;7;9;{}", "grade"),
        ("image;patient_id;SpeciesName", "7;{}", "SpeciesName"),
        ("image;site;Tree Species", "north;{}", "Tree Species"),
        ("image;label_confidence;class_label", "0.5;{}", "class_label"),
        ("image;dx;dx_type;age;localization", "{};histo;50.0;back", "dx"),
        ("image;type;Category", "photo;{}", "Category"),
        ("image;subclass_count;cls", "3;{}", "cls"),
    ],
)
def test_the_column_of_labels_is_found_by_words_of_its_name(
    tmp_path: Path, header: str, rows: str, label: str
) -> None:
    """The other columns have few distinct values, too: some rows differ from the pattern."""
    labels = ["14", "1", "14", "1", "2", "2"]
    text = header + "\n"
    for at, (name, one) in enumerate(zip(SIX, labels, strict=True)):
        cells = [cell if at % 2 or cell == "{}" else f"{cell}1" for cell in rows.split(";")]
        text += f"{name};{';'.join(cells).format(one)}\n"
    found = listed(tmp_path, text, more=SIX_FILES)
    assert [p.label for p in found.pictures] == labels
    assert f"--label-column {shlex.quote(label)}" in " ".join(found.warnings)


@pytest.mark.parametrize(
    ("header", "suggested"),
    [
        ("image,frame,year,ripeness,kind", "kind"),
        ("image,fine_label,coarse_label,kind,year", "coarse_label"),
    ],
)
def test_the_likeliest_of_several_columns_is_suggested(
    tmp_path: Path, header: str, suggested: str
) -> None:
    rows = ["1,2019,3,ripe", "1,2020,3,raw", "2,2019,1,ripe", "2,2020,3,raw", "3,2019,1,raw"]
    text = "\n".join([header, *(f"{name},{row}" for name, row in zip(SIX, rows, strict=False))])
    with pytest.raises(DataError, match="several may be it") as caught:
        listed(tmp_path, text, more=SIX_FILES)
    assert f"--label-column {suggested}" in str(caught.value.fix)
    found = typed_listing(str(caught.value.fix).partition(": ")[2], tmp_path)
    assert len(found.pictures) == len(rows)


def test_an_error_lists_at_most_five_columns(tmp_path: Path) -> None:
    names = ",".join(f"c{at}" for at in range(40))
    row = ",".join("x" for _ in range(40))
    with pytest.raises(DataError) as caught:
        listed(tmp_path, f"{names}\n{row}\n{row}\n".replace("x", "5", 3))
    assert "'c0', 'c1', 'c2', 'c3', 'c4' and 35 more" in str(caught.value)
    assert "c7" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("my cat.jpg 0\nthe dog.jpg 1\nx.jpg 0\n", ["0", "1", "0"]),
        ("my cat.jpg 0\nthe dog.jpg 1\n", ["0", "1"]),
        ("path label\nmy cat.jpg 0\nx.jpg 1\n", ["0", "1"]),
        ("my cat.jpg big cat\nx.jpg dog\n", ["big cat", "dog"]),
        ("my cat 0\nthe dog 1\nx 0\n", ["0", "1", "0"]),
        ("x.jpg 0\nmy cat.jpg  1\n", ["0", "1"]),
    ],
)
@pytest.mark.parametrize("folder", ["", "pics/"])
def test_names_with_blanks_are_found_in_lists_with_blanks(
    tmp_path: Path, text: str, labels: list[str], folder: str
) -> None:
    names = [f"{folder}{name}.jpg" for name in ("my cat", "the dog", "x")]
    found = listed(tmp_path, text, more=names)
    assert [p.label for p in found.pictures] == labels
    assert {p.path for p in found.pictures} <= set(names)
    assert "which contain spaces, too" in " ".join(found.warnings)


def test_blanks_separate_columns_if_no_picture_has_a_name_with_blanks(tmp_path: Path) -> None:
    found = listed(tmp_path, "7 1.jpg train\n8 2.jpg test\n")
    assert [(p.path, p.label) for p in found.pictures] == [("1.jpg", "7"), ("2.jpg", "8")]


def test_splits_of_a_table_without_a_header_are_found(tmp_path: Path) -> None:
    found = listed(tmp_path, "7,test,1.jpg\n8,train,2.jpg\n")
    assert [(p.label, p.split) for p in found.pictures] == [("7", Split.TEST), ("8", Split.TRAIN)]
    assert "there is no header; read as with --columns label,split,path" in found.warnings[0]


def test_a_table_that_can_be_read_in_two_ways_is_refused_with_a_command_that_works(
    tmp_path: Path,
) -> None:
    with pytest.raises(DataError, match="several may be it: 'sex', 'age'") as caught:
        listed(tmp_path, "file,age,sex\n000,3,f\n001,4,m\n1.jpg,4,f\n")
    command = str(caught.value.fix).partition(": ")[2]
    found = typed_listing(command, tmp_path)
    assert [p.label for p in found.pictures][:2] == ["f", "m"]
    with pytest.raises(DataError, match=r"p/7.jpg and q/7.jpg are both pictures") as caught:
        listed(
            tmp_path,
            "path,label\n7.jpg,a\n8.jpg,b\n",
            more=["p/7.jpg", "p/8.jpg", "q/7.jpg", "q/8.jpg"],
        )
    found = typed_listing(str(caught.value.fix).partition(": ")[2], tmp_path)
    assert [p.path for p in found.pictures] == ["p/7.jpg", "p/8.jpg"]


@pytest.mark.parametrize(
    ("folders", "ending"),
    [(("part_1", "part_2"), ".jpg"), (("part_2", "part_1"), ""), (("a", "b/in", "c"), ".JPEG")],
)
def test_pictures_divided_over_folders_are_read_from_all(
    tmp_path: Path, folders: Sequence[str], ending: str
) -> None:
    """The first folder has most of the pictures, the last one has a single one."""
    names = [f"p{at:03}" if ending else f"p{at:03}.png" for at in range(80)]
    places = [folders[0]] * 60 + [folders[-2]] * 19 + [folders[-1]]
    files = [f"{place}/{name}{ending}" for place, name in zip(places, names, strict=True)]
    rows = "".join(f"{name},{at % 2}\n" for at, name in enumerate(names))
    found = listed(tmp_path, f"path,label\n{rows}", more=files)
    assert [p.path for p in found.pictures] == files
    told = f"each picture is in one of the folders {', '.join(sorted({*places}))}"
    assert told in " ".join(found.warnings)


@pytest.mark.parametrize("folders", [("part_1",), ("part_1", "part_2")])
def test_a_second_copy_of_a_folder_is_named_and_not_read(
    folders: Sequence[str], tmp_path: Path
) -> None:
    """HAM10000 as it is offered for download has each of its two folders twice."""
    files = [f"{folder}/{folder}_{at}.png" for folder in folders for at in range(4)]
    names = [file.partition("/")[2] for file in files]
    rows = "".join(f"{name},{at % 2}\n" for at, name in enumerate(names))
    for file in files:
        for copy in (file, f"second_{file}"):
            (tmp_path / copy).parent.mkdir(exist_ok=True)
            (tmp_path / copy).write_text(file)
    found = listed(tmp_path, f"path,label\n{rows}")
    assert [p.path for p in found.pictures] == files
    for folder in folders:
        told = f"the folder second_{folder} has a second copy of the files in {folder} "
        assert told in " ".join(found.warnings)
    (tmp_path / f"second_{files[0]}").write_text(files[0][::-1])
    with pytest.raises(DataError, match="are both pictures"):
        listed(tmp_path, f"path,label\n{rows}")


def test_folders_that_share_pictures_or_lack_some_are_not_joined(tmp_path: Path) -> None:
    text = "path,label\n" + "".join(f"p{at}.png,{at % 2}\n" for at in range(6))
    both = [f"{folder}/p{at}.png" for folder, end in (("m", 4), ("n", 6)) for at in range(end)]
    found = listed(tmp_path, text, more=both)
    assert {p.path.partition("/")[0] for p in found.pictures} == {"n"}
    crossing = [f"m/p{at}.png" for at in range(4)] + [f"n/p{at}.png" for at in range(2, 6)]
    with pytest.raises(DataError, match=r"row 4: .* m/p2.png and n/p2.png are both pictures"):
        listed(tmp_path / "crossing", text, more=crossing)
    lacking = tmp_path / "other"
    found = listed(lacking, text, more=[f"m/p{at}.png" for at in range(4)] + ["n/p4.png"])
    assert {p.path.partition("/")[0] for p in found.pictures} == {"m"}


def test_one_column_per_class_is_one_label(tmp_path: Path) -> None:
    text = "image,MEL,NV,BCC\n000,0.0,1.0,0.0\n001,1.0,0.0,0.0\n"
    found = listed(tmp_path, text)
    assert [(p.path, p.label) for p in found.pictures] == [(PATHS[0], "NV"), (PATHS[1], "MEL")]
    assert "read the columns MEL, NV, BCC as classes" in " ".join(found.warnings)


def test_another_column_of_paths_keeps_the_columns_of_classes(tmp_path: Path) -> None:
    text = "path,picture,MEL,NV\nq1,images/000.jpg,0,1\nq2,images/001.jpg,1,0\n"
    with pytest.raises(
        DataError, match=r"column 2 names pictures, such as images/000.jpg"
    ) as error:
        listed(tmp_path, text)
    found = typed_listing(str(error.value.fix).partition(": ")[2], tmp_path)
    assert [(p.path, p.label) for p in found.pictures] == [(PATHS[0], "NV"), (PATHS[1], "MEL")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("filename, cat, dog\n1.jpg, 1, 0\n2.jpg, 1, 1\n", "several classes in row 3"),
        ("filename, cat, dog\n1.jpg, 1, 0\n2.jpg, 0, 0\n", "no class in row 3"),
        (
            "file,age,a,b,c,d\n1.jpg,7,1,1,0,0\n2.jpg,8,-1,1,1,1\n",
            "several classes in 2 rows: 2, 3",
        ),
    ],
)
def test_rows_with_several_classes_are_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(DataError, match=f"one column per class, and {told}") as caught:
        listed(tmp_path, text)
    assert "several of them is not supported" in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "num_several"),
    [
        (["cat|dog", "cat", "dog"], 1),
        (["cat dog", "cat", "dog"], 1),
        (["['cat', 'dog']", "['cat']", "dog"], 2),
        (["golden retriever", "great dane", "cat"], 0),
    ],
)
def test_several_labels_in_a_cell_are_counted(
    tmp_path: Path, labels: list[str], num_several: int
) -> None:
    rows = [f'{name},"{label}"' for name, label in zip(FILES, labels, strict=False)]
    listing = listed(tmp_path, "\n".join(["path,label", *rows]))
    told = [line for line in listing.warnings if "several in one cell" in line]
    assert [f"{num_several} of 3 labels" in line for line in told] == [True] * bool(num_several)


def test_rows_are_counted_as_in_a_spreadsheet_and_lines_as_in_an_editor(tmp_path: Path) -> None:
    text = '# made\n\npath,note,label\n1.jpg,"a\nb\nc",x\n2.jpg,"d\ne",\nx/1.jpg,,y\na/1.jpg,, \n'
    with pytest.raises(DataError, match=r"empty in 2 rows: 5, 7 \(line 7, 10\)") as caught:
        listed(tmp_path, text)
    command = str(caught.value.fix).partition("remove: ")[2]
    found = typed_listing(command, tmp_path)
    assert [(p.path, p.label) for p in found.pictures] == [("1.jpg", "x"), ("x/1.jpg", "y")]


def test_all_that_is_wrong_with_rows_is_in_one_message_and_one_command_removes_it(
    tmp_path: Path,
) -> None:
    rows = ["1.jpg,a", "2.jpg,", "x/1.jpg,a", "a/1.jpg,b", "x/1.jpg,b", "9.jpg,a", "x/1.jpg,a"]
    with pytest.raises(DataError) as caught:
        listed(tmp_path, "\n".join(["path,label", *rows]))
    message = str(caught.value)
    assert "column 'label' is empty in row 3;" in message
    assert "rows 4 and 6 have different labels, splits or groups for 'x/1.jpg';" in message
    assert "no picture exists for row 7" in message
    command = str(caught.value.fix).partition("To remove all of these rows: ")[2]
    found = typed_listing(command, tmp_path)
    assert [(p.path, p.label) for p in found.pictures] == [("1.jpg", "a"), ("a/1.jpg", "b")]


def test_many_missing_pictures_are_left_to_the_limit_of_bad_ones(tmp_path: Path) -> None:
    rows = ["1.jpg,a", "2.jpg,b", "2.jpg,a", "x/1.jpg,b", *(f"no{at}.jpg,a" for at in range(30))]
    more = [f"no{at}.jpg" for at in range(8)]
    with pytest.raises(DataError, match="no picture exists for 22 rows: 14, 15, 16") as caught:
        listed(tmp_path, "\n".join(["path,label", *rows]), more=more)
    command = str(caught.value.fix).partition("To remove the others: ")[2]
    assert len(typed_listing(command, tmp_path).pictures) == len(rows) - 2


def test_windows_text_is_read_and_told_if_its_words_are_likely(tmp_path: Path) -> None:
    listing = listed(tmp_path, "path,label\n1.jpg,\u00c4pfel\n2.jpg,b\n".encode("cp1252"))
    assert [p.label for p in listing.pictures] == ["\u00c4pfel", "b"]
    assert "read as Windows-1252, such as '\u00c4pfel'" in listing.warnings[0]
    for text, encoding in (
        ("\u044f\u0431\u043b\u043e\u043a\u043e", "cp1251"),
        ("\u82f9\u679c", "gbk"),
    ):
        with pytest.raises(DataError, match="line 2: not UTF-8 text"):
            listed(tmp_path, f"path,label\n1.jpg,{text}\n2.jpg,b\n".encode(encoding))


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


@pytest.mark.parametrize("name", ["image_id", "img"])
def test_of_many_columns_those_named_so_are_paths(tmp_path: Path, name: str) -> None:
    numbers = ",".join(f"f{at}" for at in range(30))
    rows = [f"{at},{'ab'[at % 2]}," + ",".join(str(at + by) for by in range(30)) for at in range(6)]
    names = [f"images/{at}.png" for at in range(6)]
    listing = listed(tmp_path, "\n".join([f"{name},label,{numbers}", *rows]), more=names)
    assert [picture.path for picture in listing.pictures] == names

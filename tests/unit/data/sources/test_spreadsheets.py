"""A spreadsheet beside pictures is named, and the commands write it as a table and read it."""

from __future__ import annotations

import shutil
import zipfile
from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from stepladder.config.choices import ClassesFrom
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.not_read.spreadsheets import read_sheet, write_csv
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError, StepladderError, UsageError
from tests.unit.data.sources.printed import commands_in, typed_listing

_MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
_REL = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'


def save(path: Path, sheet: str, shared: tuple[str, ...] = ()) -> Path:
    """Write a workbook whose first tab is its second file of a sheet."""
    strings = "".join(f"<si>{one}</si>" for one in shared)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "xl/workbook.xml",
            f'<workbook {_MAIN} {_REL}><sheets><sheet name="Labels" sheetId="2" r:id="rId2"/>'
            '<sheet name="Notes" sheetId="1" r:id="rId1"/></sheets></workbook>',
        )
        relations = "".join(
            f'<Relationship Id="rId{at}" Target="worksheets/sheet{at}.xml"/>' for at in (1, 2)
        )
        archive.writestr(
            "xl/_rels/workbook.xml.rels", f"<Relationships>{relations}</Relationships>"
        )
        archive.writestr("xl/worksheets/sheet1.xml", f"<worksheet {_MAIN}><sheetData/></worksheet>")
        archive.writestr(
            "xl/worksheets/sheet2.xml",
            f"<worksheet {_MAIN}><sheetData>{sheet}</sheetData></worksheet>",
        )
        archive.writestr("xl/sharedStrings.xml", f"<sst {_MAIN}>{strings}</sst>")
    return path


def save_rows(path: Path, rows: list[tuple[str, str]]) -> Path:
    cells = "".join(
        "<row>"
        + "".join(f'<c t="inlineStr"><is><t>{escape(cell)}</t></is></c>' for cell in row)
        + "</row>"
        for row in rows
    )
    return save(path, cells)


def fill(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


@pytest.mark.parametrize("folders", [("Images1/", "Images2/"), ("images/",), ("",), ("train/",)])
@pytest.mark.parametrize("ending", ["", ".png"])
def test_a_sheet_that_names_the_pictures_is_written_as_a_table(
    tmp_path: Path, folders: tuple[str, ...], ending: str
) -> None:
    names = [f"{folders[idx % len(folders)]}image_{idx}.png" for idx in range(12)]
    root = fill(tmp_path / "my set", *names)
    rows = [(f"image_{idx}{ending}", ["1", "2", "3"][idx // 4]) for idx in range(12)]
    save_rows(root / "labels.xlsx", [("Image", "Label"), *rows])
    with pytest.raises(StepladderError) as caught:
        list_pictures(PrepareConfig(source=root))
    assert "labels.xlsx names these pictures, with labels in its column 'Label'" in str(
        caught.value.why
    )
    edit, by_hand = commands_in(caught.value.fix)
    listing = typed_listing(edit)
    assert Counter(one.label for one in listing.pictures) == {"1": 4, "2": 4, "3": 4}
    assert typed_listing(by_hand).pictures == listing.pictures


def test_a_table_beside_two_folders_is_read_without_moving_pictures(tmp_path: Path) -> None:
    names = [f"Images{1 + idx % 2}/image_{idx}.png" for idx in range(12)]
    root = fill(tmp_path, *names)
    rows = [f"image_{idx},{idx % 3}" for idx in range(12)]
    (root / "labels.csv").write_text("\n".join(["Image,Label", *rows]))
    with pytest.raises(StepladderError) as caught:
        list_pictures(PrepareConfig(source=root))
    listing = typed_listing(commands_in(caught.value.fix)[0])
    assert Counter(one.label for one in listing.pictures) == {"0": 4, "1": 4, "2": 4}


def test_classes_with_a_sheet_of_the_same_labels_stay_classes(tmp_path: Path) -> None:
    root = fill(tmp_path, "images_1/1.png", "images_1/2.png", "images_2/3.png", "images_2/4.png")
    rows = [(f"{idx}.png", f"images_{1 + (idx > 2)}") for idx in range(1, 5)]
    save_rows(root / "labels.xlsx", [("file", "label"), *rows])
    assert len(list_pictures(PrepareConfig(source=root)).pictures) == 4


def test_cells_are_read_by_place_and_type(tmp_path: Path) -> None:
    sheet = (
        '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="C1" t="s"><v>1</v></c></row>'
        '<row r="3"><c r="A3"><v>7</v></c><c r="B3" t="b"><v>1</v></c>'
        '<c r="C3" t="str"><f>A3</f><v>a,b</v></c></row>'
        '<row r="4"><c r="C4"><v>0.5</v></c></row>'
    )
    shared = ("<t>file</t>", "<r><t>cl</t></r><r><t>ass</t></r><rPh><t>x</t></rPh>")
    path = save(tmp_path / "a.xlsx", sheet, shared)
    cells = read_sheet(path)
    assert cells.header == ["file", "", "class"]
    assert [row for _, row in cells.body] == [["7", "TRUE", "a,b"], ["", "", "0.5"]]
    write_csv(str(path), str(tmp_path / "a.csv"))
    assert (tmp_path / "a.csv").read_text().splitlines()[1] == '7,TRUE,"a,b"'


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_a_damaged_workbook_is_an_error_and_never_hides_the_classes(
    tmp_path: Path, damage: str
) -> None:
    root = fill(tmp_path / "set", "images_1/1.png", "images_2/2.png")
    path = save_rows(root / "labels.xlsx", [("file", "label"), ("1.png", "a"), ("2.png", "b")])
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    elif damage == "text":
        path.write_text("file,label\n")
    else:
        shutil.copy(save(tmp_path / "empty.xlsx", ""), path)
    with pytest.raises(DataError, match="this Excel workbook"):
        read_sheet(path)
    assert len(list_pictures(PrepareConfig(source=root)).pictures) == 2


BATCHES = [f"{('monday', 'friday')[idx % 2]}/{idx}.png" for idx in range(12)]


@pytest.mark.parametrize("is_sheet", [False, True])
def test_folders_whose_pictures_have_other_labels_in_a_table_are_asked_for(
    tmp_path: Path, is_sheet: bool
) -> None:
    root = fill(tmp_path, *BATCHES)
    rows = [("file", "label"), *((f"{idx}.png", "abc"[idx // 4]) for idx in range(12))]
    if is_sheet:
        save_rows(root / "labels.xlsx", rows)
    else:
        (root / "labels.csv").write_text("\n".join(map(",".join, rows)))
    with pytest.raises(UsageError, match="monday are probably not classes") as caught:
        list_pictures(PrepareConfig(source=root))
    assert "If these folders are the classes: --classes-from top" in str(caught.value.why)
    listing = typed_listing(commands_in(caught.value.fix)[0])
    assert Counter(one.label for one in listing.pictures) == {"a": 4, "b": 4, "c": 4}
    top = list_pictures(PrepareConfig(source=root, classes_from=ClassesFrom.TOP))
    assert {one.label for one in top.pictures} == {"monday", "friday"}


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("label", [str(idx % 2) for idx in range(12)]),  # one number for each folder
        ("label", [BATCHES[idx].partition("/")[0] for idx in range(12)]),
        ("type", ["jpg" if idx < 6 else "png" for idx in range(12)]),
        ("camera", ["left" if idx < 6 else "right" for idx in range(12)]),
        ("label", ["blurred", "dark", "dark", "blurred"]),  # of a few pictures
    ],
)
def test_a_table_that_does_not_contradict_the_folders_is_no_question(
    tmp_path: Path, header: str, cells: list[str]
) -> None:
    root = fill(tmp_path, *BATCHES)
    rows = [f"{idx}.png,{cell}" for idx, cell in enumerate(cells)]
    (root / "table.csv").write_text("\n".join([f"file,{header}", *rows]))
    assert {one.label for one in list_pictures(PrepareConfig(source=root)).pictures} == {
        "monday",
        "friday",
    }

"""A file that is no table of text is refused by its content, with a command that works."""

from __future__ import annotations

import bz2
import gzip
import lzma
import subprocess
import zipfile
from pathlib import Path

import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.containers.opening import open_pictures
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import StepladderError


def refused(path: Path) -> StepladderError:
    with pytest.raises(StepladderError) as caught:
        open_pictures(PrepareConfig(source=path))
    assert str(caught.value).startswith(f"{path}: this file is ")
    return caught.value


@pytest.mark.parametrize(
    ("name", "out"),
    [
        ("labels.xlsx", "labels.csv"),
        ("labels.csv", "table1-labels.csv"),  # is not overwritten
        ("labels", "labels.csv"),
    ],
)
@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"xl/workbook.xml": "<workbook/>"}, "an Excel workbook (.xlsx)"),
        (
            {"mimetype": "application/vnd.oasis.opendocument.spreadsheet"},
            "an OpenDocument spreadsheet (.ods)",
        ),
    ],
)
def test_spreadsheets_are_to_be_saved_as_csv(
    tmp_path: Path, name: str, out: str, entries: dict[str, str], told: str
) -> None:
    path = tmp_path / name
    with zipfile.ZipFile(path, "w") as archive:
        for entry, text in entries.items():
            archive.writestr(entry, text)
    error = refused(path)
    assert told in error.what
    assert "save it as CSV" in str(error.fix)
    assert str(error.fix).endswith(f"stepladder prepare {tmp_path / out}")


def test_an_old_workbook_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.xls").write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600))
    assert "an Excel workbook (.xls)" in refused(tmp_path / "a.xls").what


@pytest.mark.parametrize(
    ("names", "source"),
    [(["photos/a/1.jpg", "photos/b/2.jpg"], "photos"), (["a/1.jpg", "b/2.jpg"], "my photos")],
)
def test_a_zip_is_unpacked_by_the_command(tmp_path: Path, names: list[str], source: str) -> None:
    path = tmp_path / "my photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    unzip, _, command = str(refused(path).fix).removeprefix("Unpack it: ").partition(" && ")
    assert command.removeprefix("stepladder prepare ").strip("'") == str(tmp_path / source)
    program, archive_path, flag, folder = unzip.replace("'", "").replace(" photos", "#").split()
    assert (program, flag) == ("unzip", "-d")
    with zipfile.ZipFile(archive_path.replace("#", " photos")) as archive:
        archive.extractall(folder.replace("#", " photos"))
    listing = list_pictures(PrepareConfig(source=tmp_path / source))
    assert {picture.label for picture in listing.pictures} == {"a", "b"}


@pytest.mark.parametrize(("pack", "end"), [(gzip, "gz"), (bz2, "bz2"), (lzma, "xz")])
def test_a_packed_table_is_unpacked_by_the_command(tmp_path: Path, pack: object, end: str) -> None:
    (tmp_path / "1.jpg").write_bytes(b"x")
    (tmp_path / "2.jpg").write_bytes(b"x")
    path = tmp_path / f"labels.csv.{end}"
    path.write_bytes(pack.compress(b"path,label\n1.jpg,a\n2.jpg,b\n"))  # type: ignore[attr-defined]
    fix = str(refused(path).fix)
    unpack, _, command = fix.removeprefix("Unpack it: ").partition(" && ")
    subprocess.run(unpack, shell=True, check=True)
    source = Path(command.removeprefix("stepladder prepare "))
    listing = list_pictures(PrepareConfig(source=source))
    assert [picture.label for picture in listing.pictures] == ["a", "b"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(20), "a picture"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS"),
        (b"SQLite format 3\x00", "an SQLite database"),
        (b"%PDF-1.4", "a PDF"),
    ],
)
def test_other_files_are_named(tmp_path: Path, data: bytes, told: str) -> None:
    (tmp_path / "labels.csv").write_bytes(data)
    assert told in refused(tmp_path / "labels.csv").what

"""The files of a table, their order, and how damage is reported."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepladder.config.choices import Split
from stepladder.data import open_table
from stepladder.data.sources.safe_arrow import require_safe_pyarrow
from stepladder.data.tables.cache_users import MANIFEST
from stepladder.data.tables.source import TableSource
from stepladder.errors import DataError, UsageError


def write(path: Path, numbers: range, *, checksums: bool = False, **more: pa.Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"x": pa.array(numbers, pa.int64()), **more})
    pq.write_table(table, path, row_group_size=3, write_page_checksum=checksums)


def footer_lost(data: bytes) -> bytes:
    """Overwrite the footer, except its length and the magic bytes."""
    size = int.from_bytes(data[-8:-4], "little")
    return data[: -8 - size] + b"\xff" * size + data[-8:]


def all_x(source: TableSource) -> list[int]:
    found: list[int] = source.read(np.arange(len(source))).inputs["x"].tolist()
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files, leftovers of a writer, and a hidden file."""
    write(tmp_path / "t" / "b.parquet", range(5, 9))
    write(tmp_path / "t" / "a.parquet", range(5))
    for name in ("_SUCCESS", "_metadata", ".a.parquet.crc", ".hidden.parquet", "read.me"):
        (tmp_path / "t" / name).write_bytes(b"")
    return tmp_path / "t"


def test_rows_are_ordered_by_file_name_then_row_group(folder: Path) -> None:
    source = open_table(folder)
    assert all_x(source) == list(range(9))
    assert source.block_rows == (3, 2, 3, 1)
    assert source.describe(7) == "b.parquet, row 2"


@pytest.mark.parametrize("path", ["a.parquet", "*.parquet", "[ab].parquet", "", "../**/?.parquet"])
def test_a_file_a_glob_and_a_folder_are_a_table(path: str, folder: Path) -> None:
    wanted = list(range(5)) if path == "a.parquet" else list(range(9))
    assert all_x(open_table(os.path.normpath(folder / path))) == wanted
    assert all_x(open_table(f"file://{folder / path}" if path[:2] != ".." else folder))[:5] == [
        *range(5)
    ]


GLOBS = [
    "[!a]",
    "[ab]",
    "[a-c]",
    "*[]b]",
    "[]]",
    "[^]",
    "[!!-b]",
    "t[[]1]",
    "t[!/]1]",
    "[\\]",
    "[!]",
]


@pytest.mark.parametrize("glob", [f"{glob}.parquet" for glob in GLOBS])
def test_a_glob_means_what_it_means_to_python(glob: str, folder: Path) -> None:
    for name in ("]", "^", "t[1]", "\\", "[!]"):
        write(folder / f"{name}.parquet", range(1))
    wanted = sorted(path.name for path in folder.glob(glob) if path.name[0] not in "._")
    if wanted:
        source = open_table(folder / glob)
        starts = [0, *itertools.accumulate(source.block_rows)][:-1]
        found = dict.fromkeys(source.describe(row).split(",")[0] for row in starts)
        assert list(found) == wanted
    else:
        with pytest.raises(DataError, match="there are no Parquet files of a table here"):
            open_table(folder / glob)


@pytest.mark.parametrize("name", ["g[1]", "g*", "g?", "[!a]", "{a,b}", "**"])
def test_a_path_that_is_there_is_no_glob(name: str, folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "g1")
    odd = folder.parent / name
    write(odd / f"{name}.parquet", range(20, 23))
    write(odd / "~other.parquet", range(23, 25))
    assert all_x(open_table(odd)) == list(range(20, 25))
    assert all_x(open_table(odd / f"{name}.parquet")) == [20, 21, 22]
    assert all_x(open_table(f"file://{odd}/~o*.parquet")) == [23, 24]
    assert open_table(odd).describe(4) == "~other.parquet, row 1"


def test_folders_give_columns_and_splits(tmp_path: Path) -> None:
    for split, start in (("train", 0), ("validation", 10)):
        for day in (7, 11):
            write(tmp_path / f"split={split}" / f"day={day}" / "p.parquet", range(start, start + 2))
    source = open_table(tmp_path, split="val", columns=["x", "day"])
    got = source.read(np.arange(4)).inputs
    assert got["x"].tolist() == [10, 11, 10, 11]
    assert got["day"].tolist() == [11, 11, 7, 7]  # by name: 11 before 7
    assert open_table(tmp_path, split="train", target="day").read(np.array([3])).targets[0] == 7


def test_file_names_name_splits_as_hugging_face_writes_them(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00001.parquet", range(4))
    write(tmp_path / "test-00000-of-00001.parquet", range(4, 6))
    assert all_x(open_table(tmp_path, split=Split.TEST)) == [4, 5]
    with pytest.raises(DataError, match="the table has no rows of the split val"):
        open_table(tmp_path, split="val")


def test_a_column_names_splits_where_file_names_do_not(tmp_path: Path) -> None:
    marks = pa.array(["train", "val", "train", "val", "val", "train", None])
    write(tmp_path / "a.parquet", range(7), part=marks)
    source = open_table(tmp_path, split="val", split_column="part", columns=["x"])
    assert all_x(source) == [1, 3, 4]
    assert source.block_rows == (1, 2, 0)
    assert source.describe(2) == "a.parquet, row 4"
    with pytest.raises(DataError, match="no rows of the split test"):
        open_table(tmp_path, split="test", split_column="part")
    with pytest.raises(UsageError, match="no string column split"):
        open_table(tmp_path, split="val")


@pytest.mark.parametrize("kind", [pa.string_view(), pa.large_string(), pa.string()], ids=str)
def test_a_column_of_texts_of_any_kind_names_splits(kind: pa.DataType, tmp_path: Path) -> None:
    columns = {
        "s": pa.array(["a", None, "c"], kind),
        "raw": pa.array([b"a", b"b", b"c"], pa.binary_view()),
        "split": pa.array(["train", "val", "val"], kind),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    source = open_table(tmp_path, split="val", fill={"s": "?"})
    assert source.read(np.array([1, 0])).inputs == {
        "s": ["c", "?"],
        "raw": [b"c", b"b"],
        "split": ["val", "val"],
    }


def test_the_fingerprint_is_of_the_rows_and_of_what_is_read(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")  # which preserves the modification times
    first = open_table(folder).fingerprint
    assert open_table(copy).fingerprint == first
    assert open_table(folder, target="x").fingerprint != first
    write(copy / "b.parquet", range(6, 10))
    assert open_table(copy).fingerprint != first


@pytest.mark.parametrize("path", ["", "a.parquet", "*.parquet"])
def test_rows_that_took_the_place_of_others_are_other_data(path: str, tmp_path: Path) -> None:
    """Same size, same minimum and maximum: footers cannot distinguish them."""
    file = tmp_path / "a.parquet"

    def written(values: list[int], changed_s: int) -> str:
        pq.write_table(pa.table({"x": values}), file, compression="none", use_dictionary=False)
        os.utime(file, (changed_s, changed_s))
        return open_table(tmp_path / path).fingerprint

    first, other = written([1, 2, 3, 9], 1000), written([1, 3, 2, 9], 1001)
    assert first != other
    assert written([1, 2, 3, 9], 1000) == first


def test_what_a_converter_wrote_is_the_same_data_whenever_it_was_written(folder: Path) -> None:
    (folder / MANIFEST).write_text("{}")
    for path in (folder, folder / "*.parquet"):
        first = open_table(path).fingerprint
        (folder / "b.parquet").touch()
        assert open_table(path).fingerprint == first


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"", "0 bytes"),
        (lambda data: b"PAR1", "4 bytes"),
        (lambda data: data[: len(data) // 2], "does not end in PAR1"),
        (lambda data: b"<html>" + b" " * 99, "does not end in PAR1"),
        (lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1", "footer is longer than the file"),
        (footer_lost, "not a complete Parquet file"),
    ],
)
def test_a_damaged_file_is_named(damage, said: str, folder: Path) -> None:
    file = folder / "b.parquet"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=rf"b\.parquet: .*{said}") as caught:
        open_table(folder)
    assert caught.value.fix


def test_a_flipped_byte_is_found_by_the_page_checksum(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", range(1000, 1003), checksums=True)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    place = data.index((1001).to_bytes(8, "little"))  # plain encoding, within the page
    data[place] ^= 0x55
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.parquet, row group 0: .*CRC"):
        open_table(tmp_path)


def test_drift_of_the_columns_names_the_file(folder: Path) -> None:
    table = pa.table({"x": pa.array([1.5]), "y": [1]})
    pq.write_table(table, folder / "c.parquet")
    said = r"c\.parquet, from row 0 on: column x has type double, but int64"
    with pytest.raises(DataError, match=said):
        open_table(folder)
    pq.write_table(pa.table({"y": [1]}), folder / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet, from row 0 on: column x is missing"):
        open_table(folder)


def test_a_file_that_changes_while_it_is_read_is_reported(folder: Path) -> None:
    source = open_table(folder, max_cache_bytes=1)  # nothing is kept
    source.read(np.array([8]))
    source.read(np.array([0]))
    write(folder / "b.parquet", range(6, 10))
    with pytest.raises(DataError, match=r"b\.parquet: this file of the table was changed after"):
        source.read(np.array([8]))
    (folder / "b.parquet").unlink()
    with pytest.raises(DataError, match=r"b\.parquet"):
        source.read(np.array([8]))


def test_a_table_that_is_being_written_is_refused(folder: Path) -> None:
    write(folder / "_temporary" / "0" / "part.parquet", range(3))
    with pytest.raises(DataError, match="the table is still being written"):
        open_table(folder)


def test_places_without_a_table_are_reported(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / "*.parquet", tmp_path / "none" / "*"):
        with pytest.raises(DataError, match="there are no Parquet files of a table here"):
            open_table(path)
    for path in (tmp_path, tmp_path / "*.parquet"):
        with pytest.raises(UsageError, match="this is not a Delta table"):
            open_table(path, version=1)
    with pytest.raises(DataError, match="the file, folder or bucket does not exist"):
        open_table(tmp_path / "none", version=1)
    with pytest.raises(
        UsageError, match=r"the pattern of file names is not valid \(bad character range z-a\)"
    ):
        open_table(tmp_path / "[z-a].parquet")


def test_an_unknown_split_is_reported(folder: Path) -> None:
    with pytest.raises(UsageError, match="'bogus' is not one of the possible values"):
        open_table(folder, split="bogus")


def test_two_columns_of_one_name_are_reported_where_they_are_read(folder: Path) -> None:
    arrays = [pa.array([value], pa.int64()) for value in range(3)]
    pq.write_table(pa.Table.from_arrays(arrays, names=["y", "y", "x"]), folder / "c.parquet")
    with pytest.raises(
        DataError, match=r"c\.parquet: several columns of the file have the same name: y"
    ):
        open_table(folder / "c.parquet")
    assert all_x(open_table(folder, columns=["x"]))[-1] == 2


def test_a_password_in_an_address_is_refused_and_not_reported() -> None:
    with pytest.raises(
        UsageError, match="the address contains an access key or a password"
    ) as caught:
        open_table("abfs://user:canary@account.dfs.core.windows.net/t")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("s3a://bucket/table", "Use s3://bucket/table"),
        ("dbfs:/tables/one", "Use /dbfs/tables/one"),
        ("dbfs:///tables/one", "Use /dbfs/tables/one"),
    ],
)
def test_sparks_names_of_places_are_reported_as_ours(typed: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"not supported here\n.*{meant}$"):
        open_table(typed)


def test_an_old_pyarrow_opens_no_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pa, "__version__", "22.0.0")
    require_safe_pyarrow.cache_clear()
    with pytest.raises(
        UsageError, match=r"pyarrow 22\.0\.0 is too old: .* pyarrow 23\.0\.1 prevents"
    ):
        open_table(folder)

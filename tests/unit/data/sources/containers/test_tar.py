"""No part of a tar is skipped silently: zero blocks, joined tars, sparse members, odd headers."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from stepladder.data.sources.containers.tar import Member, read_members
from stepladder.data.sources.walk import Skipped
from stepladder.errors import DataError

BLOCK = 512
MEMBERS = [(f"{row:02d}.cls", str(row % 2).encode() * 700) for row in range(40)]


def packed(members: list[tuple[str, bytes]] = MEMBERS, **options: Any) -> bytes:
    """Return the bytes of a tar as Python writes it, padded to a record of 10,240."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", **options) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def read(data: bytes, skipped: Skipped | None = None) -> list[Member]:
    """Read all of a tar."""
    told = Skipped() if skipped is None else skipped
    return list(read_members(io.BytesIO(data), "t.tar", max_bytes=1 << 30, skipped=told))


def end_of(data: bytes) -> int:
    """Return the offset of a tar's end mark."""
    return -(-len(data.rstrip(b"\0")) // BLOCK) * BLOCK


def padded(record: int, members: list[tuple[str, bytes]] = MEMBERS) -> bytes:
    """Return a tar with a padded last record, as by `tar -b`."""
    data = packed(members)
    whole = data[: end_of(data)] + bytes(2 * BLOCK)
    return whole + bytes(-len(whole) % record)


def test_a_header_of_zeros_among_members_is_reported_with_the_byte() -> None:
    data = bytearray(packed())
    at = 20 * 3 * BLOCK  # a member is a header and two blocks
    data[at : at + BLOCK] = bytes(BLOCK)
    with pytest.raises(
        DataError, match=f"more data after its end mark .*, at byte {at + BLOCK}"
    ) as caught:
        read(bytes(data))
    assert caught.value.where == f"t.tar: after {at} bytes"


def test_a_tar_joined_to_another_by_cat_is_reported_with_what_joins_them() -> None:
    with pytest.raises(DataError, match="more data after its end mark") as caught:
        read(packed() + packed())
    assert "tar --concatenate" in str(caught.value.fix)


@pytest.mark.parametrize("num_zeros", [12_000, 75_000, 3 << 20])
def test_a_tar_that_turns_into_zeros_is_reported(num_zeros: int) -> None:
    whole = packed()
    data = whole[: end_of(whole) - 3 * BLOCK] + bytes(num_zeros // BLOCK * BLOCK)
    with pytest.raises(DataError, match="zero bytes, more than the padding of a record") as caught:
        read(data)
    cut = end_of(data) + 2 * BLOCK
    assert f"truncate -s {cut} FILE" in str(caught.value.fix)
    assert len(read(data[:cut])) == len(MEMBERS) - 1


@pytest.mark.parametrize("record", [BLOCK, 20 * BLOCK, 256 * BLOCK, 2048 * BLOCK])
def test_the_zeros_of_a_last_record_are_of_any_usual_size(record: int) -> None:
    assert len(read(padded(record))) == len(MEMBERS)
    assert len(read(gzip.compress(padded(record)))) == len(MEMBERS)


def test_one_block_of_zeros_at_the_end_is_enough() -> None:
    data = packed()
    assert len(read(data[: end_of(data) + BLOCK])) == len(MEMBERS)


def test_a_prepare_of_half_a_tar_fails_and_leaves_no_store(shop: Any) -> None:
    members = []
    for row in range(40):
        members += [(f"{row}.cls", b"%d" % (row % 2)), (f"{row}.jpg", shop.photo(row))]
    source = shop.tar("t.tar", members)
    data = source.read_bytes()
    source.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    with pytest.raises(DataError, match=r"truncated|zero bytes"):
        shop.make(source)
    assert not (shop.folder / "store").exists()


# sparse members


def sparse_tar(folder: Path, *forms: str) -> bytes:
    """Let tar pack a sparse file between two normal ones."""
    for name in ("a.txt", "z.txt"):
        (folder / name).write_bytes(b"plain")
    with (folder / "m.jpg").open("wb") as file:
        for hole in range(40):  # more than fit in the header of the GNU format
            file.seek(hole * (1 << 17))
            file.write(os.urandom(4096))
        file.truncate(50 * (1 << 17))
    words = ["tar", "--sparse", *forms, "-cf", "-", "a.txt", "m.jpg", "z.txt"]
    return subprocess.run(words, cwd=folder, capture_output=True, check=True).stdout


@pytest.mark.parametrize(
    "forms",
    [
        ("--format=gnu",),
        ("--format=pax", "--sparse-version=0.0"),
        ("--format=pax", "--sparse-version=0.1"),
        ("--format=pax", "--sparse-version=1.0"),
    ],
)
def test_a_member_stored_sparse_is_reported_by_its_name_and_the_rest_is_read(
    tmp_path: Path, forms: tuple[str, ...]
) -> None:
    data = sparse_tar(tmp_path, *forms)
    if b"GNU.sparse" not in data and data[BLOCK * 2 + 156 : BLOCK * 2 + 157] != b"S":
        pytest.skip("the file system has no sparse files")
    skipped = Skipped()
    assert [member.name for member in read(data, skipped)] == ["a.txt", "z.txt"]
    [reason] = skipped.counts
    assert "sparse file(s) in a tar" in reason
    assert skipped.examples[reason] == ["t.tar/m.jpg"]


# headers


def pax(*records: tuple[str, str]) -> bytes:
    """Return a tar whose first member has these records in its header."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in MEMBERS[:2]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.pax_headers = dict(records) if name == MEMBERS[0][0] else {}
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


@pytest.mark.parametrize("size", ["²", "-1", "7e2", "", "9" * 5000])
def test_a_size_that_is_not_a_number_is_reported_with_the_byte(size: str) -> None:
    with pytest.raises(DataError, match="as the size of a member") as caught:
        read(pax(("size", size)))
    assert caught.value.where == "t.tar: after 0 bytes"


@pytest.mark.parametrize("length", [b"\xb2", b"9" * 5000, b"3", b"999", b""])
def test_a_damaged_line_of_a_pax_header_is_reported(length: bytes) -> None:
    info = tarfile.TarInfo("x")
    line = length + b" path=y\n"
    info.type, info.size = tarfile.XHDTYPE, len(line)
    data = info.tobuf(tarfile.USTAR_FORMAT) + line + bytes(-len(line) % BLOCK)
    with pytest.raises(DataError, match="damaged pax header"):
        read(data + packed())


def test_a_long_note_in_a_header_is_read_past() -> None:
    found = read(pax(("comment", "n" * (900 << 10)), ("path", "ä/first.txt")))
    assert [member.name for member in found] == ["ä/first.txt", MEMBERS[1][0]]
    assert found[0].data == MEMBERS[0][1]


def test_a_header_beyond_a_mebibyte_is_reported_as_such() -> None:
    with pytest.raises(DataError, match="has an extended header of 1048") as caught:
        read(pax(("comment", "n" * (1 << 20))))
    assert "extended attributes" in str(caught.value.fix)


def test_a_folder_that_names_a_size_has_no_data() -> None:
    folder = tarfile.TarInfo("folder")
    folder.type, folder.size = tarfile.DIRTYPE, 4096
    data = folder.tobuf(tarfile.USTAR_FORMAT) + packed()
    assert len(read(data)) == len(MEMBERS)

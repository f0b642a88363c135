"""The Parquet layout: file names, page headers, footers, and foreign files."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.data.store.pages import (
    LayoutError,
    decode_path,
    encode_path,
    page_header,
    read_footer,
    split_strings,
)
from stepladder.data.store.thrift import Decoder


@given(st.binary(max_size=40))
def test_any_file_name_comes_back(raw: bytes) -> None:
    name = raw.decode("utf-8", "surrogateescape")
    stored = encode_path(name).decode("utf-8")
    assert decode_path(stored).encode("utf-8", "surrogateescape") == raw


@pytest.mark.parametrize(
    "name", ["a b.jpg", "é/ü\n.jpg", "\N{GRINNING FACE}.png", "-x.jpg", "e\u0301"]
)
def test_names_that_are_text_stay_as_they_are(name: str) -> None:
    assert encode_path(name).decode() == name


def test_names_that_are_no_text_are_escaped() -> None:
    assert encode_path(os.fsdecode(b"\xff\\x.jpg")) == rb"\xff\\x.jpg"


@pytest.mark.parametrize("crc", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_page_headers_hold_the_crc_as_parquet_has_it(crc: int) -> None:
    header = Decoder(page_header(1000, 1, crc)).struct()
    assert header[4] & 0xFFFFFFFF == crc
    assert -(2**31) <= header[4] < 2**31
    assert (header[2], header[3], header[5][1]) == (1000, 1000, 1)


def test_lengths_that_do_not_fit_are_refused() -> None:
    assert split_strings(b"\x02\0\0\0ab\0\0\0\0") == [b"ab", b""]
    with pytest.raises(LayoutError):
        split_strings(b"\x09\0\0\0ab")


def footer_of(path: Path) -> Any:
    with path.open("rb") as file:
        return read_footer(file.fileno())


class Marker:
    """Leaves a marker file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_a_pickled_extension_type_is_refused_and_not_run(tmp_path: Path) -> None:
    """CVE-2023-47248: older pyarrow unpickled a type's own metadata."""
    marker = tmp_path / "ran"
    facts = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Marker(marker)),
    }
    field = pa.field("picture", pa.binary(), metadata=facts)
    pq.write_table(pa.table([[b"x"]], schema=pa.schema([field])), tmp_path / "a.parquet")
    with pytest.raises(LayoutError, match="not written by `stepladder prepare`"):
        footer_of(tmp_path / "a.parquet")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a complete Parquet file"),
        (b"PAR1", "not a complete Parquet file"),
        (b"PAR1PAR1PAR1", "footer is damaged"),
        (b"PAR1" + b"\xff" * 4 + b"PAR1", "footer is damaged"),
        (b"PAR1" + b"\x15" * 40 + b"\x10\0\0\0PAR1", "footer is damaged"),
        (b"\x89PNG" + b"\0" * 100, "not a complete Parquet file"),
    ],
)
def test_what_is_not_parquet_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(LayoutError, match=reason):
        footer_of(tmp_path / "a.parquet")


def test_our_facts_on_other_columns_are_refused(tmp_path: Path) -> None:
    facts = {"stepladder.format": "1", "stepladder.size": "8", "stepladder.encoding": "pixels"}
    table = pa.table({"picture": [b"x"]}).replace_schema_metadata(facts)
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(LayoutError, match="columns do not match those of a store"):
        footer_of(tmp_path / "a.parquet")

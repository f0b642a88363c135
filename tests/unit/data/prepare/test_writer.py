"""Shards: readable by any Parquet reader, same bytes each time, published atomically."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from stepladder.config.choices import Compression, Encoding, Split, VerifyPages
from stepladder.data.prepare.writer import ShardWriter
from stepladder.data.store.index import index_path, open_index, rebuild_index
from stepladder.data.store.manifest import fingerprint_of, load_manifest
from stepladder.data.store.shard import Shard
from stepladder.data.store.store import Store
from stepladder.errors import DataError, UsageError
from stepladder.records import ShardInfo


def write_rows(path: Path, num_rows: int, *, size: int = 8, encoding: str = "pixels") -> ShardInfo:
    random = np.random.default_rng(0)
    with ShardWriter(path, encoding=Encoding(encoding), size=size) as writer:
        for row in range(num_rows):
            pixels = random.integers(0, 256, size=(size, size, 3), dtype=np.uint8)
            picture: Any = pixels if encoding == "pixels" else pixels.tobytes()[: 50 + row]
            digest = hashlib.sha256(str(row).encode()).digest()
            writer.add(sha256=digest, path=f"a/{row} é.jpg", label=row % 5, picture=picture)
        return writer.close()


@pytest.mark.parametrize(("encoding", "num_groups"), [("pixels", 3), ("jpeg", 1)])
def test_pyarrow_reads_it_with_checksums_on(tmp_path: Path, encoding: str, num_groups: int) -> None:
    info = write_rows(tmp_path / "train-a.parquet", 130, encoding=encoding)
    table = pq.read_table(tmp_path / info.name, page_checksum_verification=True)
    facts = pq.read_metadata(tmp_path / info.name)
    assert [str(field.type) for field in table.schema][:3] == [
        "fixed_size_binary[32]",
        "string",
        "int32",
    ]
    assert not any(field.nullable for field in table.schema)
    assert table["path"].to_pylist() == [f"a/{row} é.jpg" for row in range(130)]
    assert table["label"].to_pylist() == [row % 5 for row in range(130)]
    expected = 8 * 8 * 3 if encoding == "pixels" else 57
    assert len(table["picture"][7].as_py()) == expected
    assert facts.num_row_groups == num_groups
    column = facts.row_group(0).column(3)
    assert column.compression == "UNCOMPRESSED"
    assert column.statistics is None
    assert not column.has_dictionary_page
    assert facts.metadata[b"stepladder.encoding"] == encoding.encode()
    assert facts.metadata[b"stepladder.size"] == b"8"


@pytest.mark.parametrize(("compression", "codec"), [("lz4", "LZ4"), ("zstd", "ZSTD")])
def test_packed_pages_are_read_by_any_reader_and_by_ours(
    tmp_path: Path, compression: str, codec: str
) -> None:
    path = tmp_path / "train-a.parquet"
    flat = np.zeros((16, 16, 3), dtype=np.uint8)
    packing = Compression(compression)
    with ShardWriter(path, encoding=Encoding.PIXELS, size=16, compression=packing) as writer:
        for row in range(70):
            writer.add(sha256=bytes(32), path=f"{row}", label=0, picture=flat + row)
        info = writer.close()
    table = pq.read_table(path, page_checksum_verification=True)
    assert [value.as_py() for value in table["picture"]] == [bytes([r]) * 768 for r in range(70)]
    column = pq.read_metadata(path).row_group(0).column(3)
    assert column.compression == codec
    assert column.total_compressed_size < column.total_uncompressed_size / 5

    shard = Shard(path, info, verify=VerifyPages.FIRST_TOUCH, compression=packing, is_mapped=True)
    out = np.empty((3, 768), dtype=np.uint8)
    for _ in range(2):
        num_bytes = shard.read_into(np.array([69, 0, 7]), out, [2, 0, 1])
        assert out[:, 5].tolist() == [0, 7, 69]
    assert num_bytes < 3 * 768 / 5
    assert rebuild_index(shard._file, info) == index_path(path).read_bytes()


def test_pyarrow_finds_a_flipped_byte_by_our_crc(tmp_path: Path) -> None:
    info = write_rows(tmp_path / "train-a.parquet", 10)
    index = open_index(index_path(tmp_path / info.name), info)
    assert index is not None
    data = bytearray((tmp_path / info.name).read_bytes())
    data[index.offsets[4] + 17] ^= 1
    (tmp_path / "flipped.parquet").write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(tmp_path / "flipped.parquet", page_checksum_verification=True)


@pytest.mark.parametrize("encoding", ["pixels", "jpeg"])
def test_the_index_can_be_made_again_from_the_shard(tmp_path: Path, encoding: str) -> None:
    info = write_rows(tmp_path / "train-a.parquet", 130, encoding=encoding)
    with (tmp_path / info.name).open("rb") as file:
        again = rebuild_index(file.fileno(), info)
    assert again == index_path(tmp_path / info.name).read_bytes()


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    first = write_rows(tmp_path / "train-a.parquet", 70)
    second = write_rows(tmp_path / "train-b.parquet", 70)
    assert first.sha256 == second.sha256
    assert first.sha256 == hashlib.sha256((tmp_path / first.name).read_bytes()).hexdigest()
    a, b = (index_path(tmp_path / info.name).read_bytes() for info in (first, second))
    assert a == b


def test_a_row_group_of_large_pictures_is_bounded_in_bytes(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "train-a.parquet", encoding=Encoding.JPEG, size=8) as writer:
        for row in range(5):
            writer.add(sha256=bytes(32), path=str(row), label=0, picture=bytes(9 << 20))
    assert pq.read_metadata(tmp_path / "train-a.parquet").num_row_groups == 3


def test_an_empty_shard_is_a_valid_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "val-0.parquet", 0)
    assert pq.read_table(tmp_path / "val-0.parquet").num_rows == 0


def test_a_shard_that_is_not_finished_is_not_seen(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "train-a.parquet", encoding=Encoding.PIXELS, size=8)
    writer.add(sha256=bytes(32), path="a", label=0, picture=bytes(192))
    assert not list(tmp_path.glob("*.parquet"))
    with pytest.raises(RuntimeError), writer:
        raise RuntimeError("stopped")
    assert list(tmp_path.iterdir()) == []


def test_pixels_of_another_size_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="expected 192 bytes of pixels, got 191"),
        ShardWriter(tmp_path / "train-a.parquet", encoding=Encoding.PIXELS, size=8) as writer,
    ):
        writer.add(sha256=bytes(32), path="a", label=0, picture=bytes(191))


def test_publish_replaces_a_store_and_leaves_nothing_next_to_it(
    tmp_path: Path, build_store: Any
) -> None:
    build_store(tmp_path / "store", seed=1)
    first = load_manifest(tmp_path / "store")
    build_store(tmp_path / "store", seed=2)
    second = load_manifest(tmp_path / "store")
    assert first.fingerprint != second.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_publish_works_without_the_exchange_of_linux(
    tmp_path: Path, build_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepladder.data.store.manifest._exchange", lambda first, second: False)
    build_store(tmp_path / "store", seed=1)
    build_store(tmp_path / "store", seed=2)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_publish_refuses_a_folder_that_is_not_a_store(tmp_path: Path, build_store: Any) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(UsageError, match="has files that do not belong to a store"):
        build_store(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


def test_the_fingerprint_covers_everything_but_itself(tmp_path: Path, build_store: Any) -> None:
    build_store(tmp_path / "store")
    manifest = load_manifest(tmp_path / "store")
    assert manifest.fingerprint == fingerprint_of(manifest)
    assert fingerprint_of(replace(manifest, fingerprint="")) == manifest.fingerprint
    for change in ({"fit": "crop"}, {"classes": ("a", "b", "c")}, {"versions": {"x": "2"}}):
        assert fingerprint_of(replace(manifest, **change)) != manifest.fingerprint  # type: ignore[arg-type]


def test_a_stop_between_the_renames_is_reported_with_the_way_out(
    tmp_path: Path, build_store: Any
) -> None:
    build_store(tmp_path / "store")
    (tmp_path / "store").rename(tmp_path / ".store.new")
    with pytest.raises(DataError, match=r"mv .*\.store\.new"):
        Store.open(tmp_path / "store")
    build_store(tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert Store.open(tmp_path / "store").split(Split.TRAIN) is not None

"""Delta tables are read at one version, and a store published as one stays the same store."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from stepladder.cli.main import main
from stepladder.config.choices import SourceFormat
from stepladder.data.store.manifest import load_manifest
from stepladder.data.store.publish import publish_as_delta
from stepladder.data.store.repair import repair_store
from stepladder.data.store.store import Store
from stepladder.data.store.verify import verify_store
from stepladder.errors import DataError, UsageError

KINDS = ("apple", "bread")


def rows(shop: Any, span: range) -> pa.Table:
    """Return rows of a table of pictures."""
    return pa.table(
        {
            "image": [shop.photo(row) for row in span],
            "label": [KINDS[row % 2] for row in span],
            "path": [f"{row}.jpg" for row in span],
        }
    )


@pytest.fixture
def table(shop: Any) -> Path:
    """A table with versions 0, 1 and 2, each with ten more rows."""
    folder: Path = shop.folder / "table"
    for version in range(3):
        span = range(10 * version, 10 * version + 10)
        write_deltalake(folder, rows(shop, span), mode="append")
    return folder


def test_the_latest_version_is_read_once_and_named(shop: Any, table: Path) -> None:
    result = shop.make(table)
    assert set(shop.labels(result.folder)) == {f"{row}.jpg" for row in range(30)}
    assert load_manifest(result.folder).options["delta_version"] == 2
    log = json.loads((result.folder / "prepare_log.json").read_text())
    assert log["config"]["delta_version"] == 2


def test_a_pinned_version_gives_the_same_bytes_after_the_table_moved_on(
    shop: Any, table: Path
) -> None:
    before = shop.contents(shop.make(table, "a", delta_version=1).folder)
    write_deltalake(table, rows(shop, range(30, 40)), mode="append")
    DeltaTable(table).optimize.compact()
    assert shop.contents(shop.make(table, "b", delta_version=1).folder) == before


def test_a_prepare_that_was_killed_resumes_with_the_version_it_began_with(
    shop: Any, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = shop.contents(shop.make(table, "whole", delta_version=2).folder)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("stepladder.data.prepare.engine.ShardMaker.make", killed)
        with pytest.raises(KeyboardInterrupt):
            shop.make(table, "cut")
    write_deltalake(table, rows(shop, range(30, 40)), mode="append")
    assert shop.contents(shop.make(table, "cut").folder) == wanted
    assert shop.make(table, "new").manifest.options["delta_version"] == 3


def test_partition_columns_come_from_the_log(shop: Any) -> None:
    folder = shop.folder / "table"
    kinds = ("a b", "c/d %é")
    data = rows(shop, range(20)).set_column(
        1, "label", pa.array([kinds[row % 2] for row in range(20)])
    )
    write_deltalake(folder, data, partition_by=["label"])
    result = shop.make(folder)
    assert result.manifest.classes == kinds
    found = shop.labels(result.folder)
    assert found == {f"{row}.jpg": kinds[row % 2] for row in range(20)}


@pytest.mark.parametrize(
    ("version", "words"), [(7, "no version 7; its latest version is 2"), (-1, "is not 0 or more")]
)
def test_a_version_that_is_not_there_is_refused(
    shop: Any, table: Path, version: int, words: str
) -> None:
    with pytest.raises((UsageError, ValueError), match=words):
        shop.make(table, delta_version=version)


def test_a_version_means_nothing_elsewhere(shop: Any) -> None:
    source = shop.table("t.parquet", {"image": [shop.photo(0)], "label": ["a"]})
    with pytest.raises(
        UsageError, match="--delta-version can only be used if the source is a Delta table"
    ):
        shop.make(source, delta_version=1)


def test_a_file_is_not_a_table(shop: Any) -> None:
    source = shop.table("t.parquet", {"image": [shop.photo(0)], "label": ["a"]})
    with pytest.raises(UsageError, match="not a Delta table"):
        shop.make(source, source_format=SourceFormat.DELTA)


def test_features_that_are_not_read_are_named(shop: Any, table: Path) -> None:
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    metadata = next(
        json.loads(line)
        for line in (table / "_delta_log" / f"{0:020}.json").read_text().splitlines()
        if "metaData" in line
    )
    schema = json.loads(metadata["metaData"]["schemaString"])
    for number, field in enumerate(schema["fields"], 1):
        field["metadata"] = {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": f"col-{number}",
        }
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    metadata["metaData"]["configuration"] = {
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": "3",
    }
    commit = {"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES"}}
    lines = [json.dumps(action) for action in (commit, protocol, metadata)]
    (table / "_delta_log" / f"{3:020}.json").write_text("\n".join(lines))
    with pytest.raises(DataError, match="columnMapping, which only Spark can read") as caught:
        shop.make(table)
    assert "--delta-version" in str(caught.value.fix)


@pytest.mark.usefixtures("short_vectors")
@pytest.mark.parametrize("deleted", [[2, 5, 19], [2, 5]])
def test_rows_that_were_deleted_by_a_vector_are_gone(
    shop: Any, delete_by_vector: Any, deleted: list[int]
) -> None:
    folder = shop.folder / "a table"
    data = rows(shop, range(20)).append_column("kind", pa.array(["x y"] * 20))
    write_deltalake(folder, data, partition_by=["kind"])
    delete_by_vector(folder, deleted)
    found = shop.labels(shop.make(folder, "after").folder)
    assert set(found) == {f"{row}.jpg" for row in range(20) if row not in deleted}
    assert len(shop.labels(shop.make(folder, "before", delta_version=0).folder)) == 20


def test_deleted_rows_that_are_unknown_are_an_error(shop: Any, delete_by_vector: Any) -> None:
    folder = shop.folder / "table"
    write_deltalake(folder, rows(shop, range(20)))
    delete_by_vector(folder, [2, 5])
    commit = folder / "_delta_log" / f"{1:020}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    del lines[-1]["add"]["stats"]  # the field with the number of rows
    commit.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError, match=r"deletion vectors\) cannot be read") as caught:
        shop.make(folder)
    assert "--delta-version" in str(caught.value.fix)


@pytest.fixture
def store(shop: Any) -> Path:
    """A store of twenty pictures."""
    folder: Path = shop.make(shop.table("t.parquet", rows(shop, range(20)))).folder
    return folder


def test_a_published_store_is_a_table_and_the_same_store(shop: Any, store: Path) -> None:
    before = shop.contents(store)
    assert main(["publish", str(store), "--as", "delta"]) == 0
    assert shop.contents(store) == before
    assert verify_store(store) == []
    table = DeltaTable(store).to_pyarrow_table()
    found = shop.rows(store)
    assert set(table.column_names) == {"sha256", "path", "label", "picture"}
    for row in table.to_pylist():
        _, label, picture = found[row["path"]]
        assert row["picture"] == picture.tobytes()
        assert Store.open(store).manifest.classes[row["label"]] == label
    assert table.num_rows == len(found) == 20


def test_the_command_line_reads_a_table_and_says_the_version(
    shop: Any, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(shop.folder / "store")
    words = ["--from", str(table), "--out", out, "--size", "24", "--val-frac", "0.3"]
    assert main(["prepare", *words]) == 0
    assert "version 2 of the Delta table" in capsys.readouterr().out
    assert main(["prepare", f"--from={table}", *words[2:], "--delta-version", "0"]) == 2
    words_said = capsys.readouterr().err
    assert (
        "other pictures or options: delta_version (that store has 2, you requested 0), "
        in words_said
    )
    assert main(["publish", out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["event"], told["num_rows"], told["version"]) == ("published", 30, 0)


def test_without_the_extra_the_command_to_install_it_is_reported(
    shop: Any, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(UsageError, match=r"pip install 'stepladder\[delta\]'"):
        shop.make(table)


def test_a_damaged_file_of_the_store_is_made_again_from_the_version_it_was_made_of(
    shop: Any, table: Path
) -> None:
    folder = shop.make(table).folder
    before = shop.contents(folder)
    write_deltalake(table, rows(shop, range(30, 40)), mode="append")
    shard = next(folder.glob("train-*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-100])
    assert repair_store(folder) == [shard.name]
    assert shop.contents(folder) == before


def test_publishing_again_finds_the_table(store: Path) -> None:
    assert publish_as_delta(store).is_new
    again = publish_as_delta(store)
    assert not again.is_new
    assert again.version == 0


def test_no_vacuum_removes_what_the_log_does_not_name(store: Path) -> None:
    publish_as_delta(store)
    assert DeltaTable(store).vacuum(dry_run=True, full=True) == []
    # with the table's own limit disabled it would: the property protects it
    unsafe = DeltaTable(store).vacuum(0, True, enforce_retention_duration=False, full=True)
    assert "manifest.json" in unsafe


def test_a_store_prepared_again_is_not_a_table_until_it_is_published(
    shop: Any, store: Path
) -> None:
    publish_as_delta(store)
    source = shop.folder / "t.parquet"
    assert shop.make(source).is_up_to_date
    assert (store / "_delta_log").is_dir()
    assert not shop.make(source, size=16, overwrite=True).is_up_to_date
    assert not (store / "_delta_log").exists()
    assert publish_as_delta(store).is_new


def test_a_log_of_other_files_is_not_taken_for_the_stores(shop: Any, store: Path) -> None:
    publish_as_delta(store)
    other = shop.make(shop.folder / "t.parquet", "other", size=16).folder
    shutil.copytree(store / "_delta_log", other / "_delta_log")
    with pytest.raises(UsageError, match="lists other files than the store has") as caught:
        publish_as_delta(other)
    assert "rm -r" in str(caught.value.fix)


def test_only_a_whole_store_is_published(shop: Any, store: Path) -> None:
    with pytest.raises(DataError, match="not a store"):
        publish_as_delta(shop.folder)
    next(store.glob("train-*.parquet")).unlink()
    with pytest.raises(DataError, match="is missing"):
        publish_as_delta(store)
    assert not (store / "_delta_log").exists()

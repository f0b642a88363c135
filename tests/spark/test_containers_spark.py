"""Container files and tables with Spark: the same bytes as the local engine."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from PIL import Image

from stepladder.config.choices import EngineName, SourceFormat
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import plan
from stepladder.data.prepare.prepare import PrepareResult, prepare
from stepladder.data.sources.containers import parquet
from stepladder.data.sources.containers.spool import ContainerRecords
from stepladder.data.spark.containers import ContainerTasks
from stepladder.data.spark.site import open_site
from stepladder.data.store.repair import repair_store
from stepladder.errors import DataError, UsageError
from stepladder.records import read_json

KINDS = ("apple", "bread")
NUM = 40


@pytest.fixture(scope="module", autouse=True)
def small_files() -> Iterator[None]:
    """Several files of few pictures, and several parts per source file."""
    before = plan.MAX_MEAN_SHARD_BYTES, parquet.MIN_PART_BYTES
    plan.MAX_MEAN_SHARD_BYTES, parquet.MIN_PART_BYTES = 20_000, 1
    yield
    plan.MAX_MEAN_SHARD_BYTES, parquet.MIN_PART_BYTES = before


def photo(seed: int) -> bytes:
    """Return the bytes of a picture that is unique to its seed."""
    coarse = np.random.default_rng(seed).integers(0, 255, size=(5, 6, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((36, 30)).save(file, "PNG" if seed % 3 == 0 else "JPEG")
    return file.getvalue()


def columns(span: range) -> dict[str, Any]:
    """Return rows; the fourth is not a picture, and one picture is duplicated."""
    pictures = [b"no picture" if row == 3 else photo(row % (NUM - 1)) for row in span]
    return {"image": pictures, "label": [KINDS[row % 2] for row in span]}


def hugging_face(folder: Path) -> Path:
    """Two files that name their split, with label numbers for class names."""
    for split, span in (("train", range(30)), ("validation", range(30, NUM))):
        rows = columns(span)
        pairs = zip(span, rows["image"], strict=True)
        images = [{"bytes": picture, "path": f"{at}.jpg"} for at, picture in pairs]
        features = '{"info": {"features": {"image": {"_type": "Image"}, "label": {"_type": '
        features += '"ClassLabel", "names": ["bread", "apple"]}}}}'
        labels = [row % 2 for row in span]
        table = pa.table({"image": images, "label": labels})
        table = table.replace_schema_metadata({"huggingface": features})
        folder.mkdir(exist_ok=True)
        pq.write_table(table, folder / f"{split}-00000-of-00001.parquet", row_group_size=7)
    return folder


def tars(folder: Path) -> Path:
    """Three tars, one of them with an invalid picture."""
    folder.mkdir()
    for part in range(3):
        span = range(part, NUM, 3)
        with tarfile.open(folder / f"{part:03}.tar", "w") as tar:
            for row, picture in zip(span, columns(span)["image"], strict=True):
                for ending, data in (("jpg", picture), ("cls", str(row % 2).encode())):
                    info = tarfile.TarInfo(f"{row:05}.{ending}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return folder


def delta(folder: Path) -> Path:
    """A table whose second version deleted rows of the first, followed by more rows."""
    write_deltalake(folder, pa.table({**columns(range(30)), "row": range(30)}))
    write_deltalake(folder, pa.table({**columns(range(30, NUM)), "row": range(10)}), mode="append")
    write_deltalake(folder, pa.table({**columns(range(9)), "row": range(9)}), mode="append")
    return folder


def make(out: Path, source: Path, **options: Any) -> PrepareResult:
    config = PrepareConfig(source=source, out=out, size=24, max_bad=0.1, val_frac=0.3, **options)
    return prepare(config)


def contents(folder: Path) -> dict[str, bytes]:
    """Read all files of a store except the one with timestamps."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.pop("prepare_log.json")
    return files


@pytest.mark.parametrize(
    ("write", "options"),
    [
        (hugging_face, {}),
        (tars, {}),
        (delta, {"delta_version": 1}),
    ],
    ids=["hugging face", "tars", "delta"],
)
def test_the_store_has_the_bytes_of_the_local_engine(
    spark: Any, tmp_path: Path, write: Callable[[Path], Path], options: dict[str, Any]
) -> None:
    source = write(tmp_path / "source")
    local = make(tmp_path / "local", source, **options)
    by_spark = make(tmp_path / "spark", source, engine=EngineName.SPARK, **options)
    assert contents(by_spark.folder) == contents(local.folder)
    assert len(by_spark.manifest.shards) > 3
    assert by_spark.warnings == local.warnings
    assert by_spark.num_bad == 1
    logs = [read_json(made.folder / "prepare_log.json") for made in (local, by_spark)]
    assert all(log["config"]["source"] == str(source) for log in logs)
    assert list(tmp_path.glob("*.partial")) == []


def test_what_was_hashed_before_a_kill_is_not_read_again(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tars(tmp_path / "source")
    wanted = contents(make(tmp_path / "whole", source, engine=EngineName.SPARK).folder)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("stepladder.data.spark.containers.ContainerRows.listing", die)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "cut", source, engine=EngineName.SPARK)
    records = sorted((tmp_path / "cut.partial" / "containers").glob("*.jsonl"))
    assert len(records) == 3
    records[0].unlink()
    records[1].write_text(records[1].read_text()[:-9])  # the end was lost on disk
    inode = records[2].stat().st_ino
    seen = []
    read = ContainerRecords.read

    def spy(self: ContainerRecords, key: str) -> Any:
        seen.append(self.path(key).stat().st_ino if self.path(key).exists() else None)
        return read(self, key)

    monkeypatch.setattr(ContainerRecords, "read", spy)
    assert contents(make(tmp_path / "cut", source, engine=EngineName.SPARK).folder) == wanted
    assert seen.count(inode) == 2  # found, and unchanged after the others were hashed
    assert len(set(seen[-3:])) == 3


def test_a_task_reports_file_and_row(spark: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    rows = columns(range(NUM))
    pq.write_table(pa.table(rows), source / "a.parquet")
    rows["label"][7] = None
    pq.write_table(pa.table(rows), source / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: row 7"):
        make(tmp_path / "store", source, engine=EngineName.SPARK)
    assert not (tmp_path / "store").exists()


def test_tables_without_rows_hold_no_pictures(spark: Any, tmp_path: Path) -> None:
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns(range(1))).slice(0, 0), source)
    with pytest.raises(DataError, match="contain no pictures"):
        make(tmp_path / "store", source, engine=EngineName.SPARK)


def test_tasks_carry_the_way_to_their_files_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are sent to another machine, which has its own credentials."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    from stepladder.data.remote import arrow_files
    from stepladder.data.sources.containers.files import SourceFile
    from stepladder.data.sources.containers.webdataset import TarContainer

    filesystem = arrow_files.object_filesystem()
    file = SourceFile("a.tar", 1, 1, "key", filesystem, "photos/a.tar")
    config = PrepareConfig()
    site = open_site(tmp_path)
    told = ContainerTasks(site=site, config=config, containers=[TarContainer(file, None, config)])
    data = pickle.dumps(told)
    assert b"canary" not in data
    assert b"127.0.0.1:9" in data
    (container,) = pickle.loads(data).containers
    assert container.key == "key"


def test_a_table_is_read_by_its_name(spark: Any, tmp_path: Path) -> None:
    rows = {**columns(range(NUM)), "path": [f"{row}.jpg" for row in range(NUM)]}
    (tmp_path / "source").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "source" / "a.parquet")
    local = contents(make(tmp_path / "local", tmp_path / "source").folder)
    spark.read.parquet(str(tmp_path / "source")).createOrReplaceTempView("shop_photos")
    options = {"engine": EngineName.SPARK, "source_format": SourceFormat.TABLE}
    made = make(tmp_path / "store", Path("shop_photos"), **options)
    assert contents(made.folder) == local
    assert read_json(made.folder / "prepare_log.json")["source"] == "shop_photos"
    damaged = min(made.folder.glob("*.parquet"))
    damaged.write_bytes(b"damage")
    assert repair_store(made.folder) == [damaged.name]
    assert contents(made.folder) == local
    by_files = Path(f"parquet.`{tmp_path}/source`")
    assert contents(make(tmp_path / "named", by_files, **options).folder) == local


@pytest.mark.parametrize("name", ["no.such.table.here", "no_such_table", "no table"])
def test_a_table_that_is_not_there_is_named(spark: Any, tmp_path: Path, name: str) -> None:
    options = {"engine": EngineName.SPARK, "source_format": SourceFormat.TABLE}
    with pytest.raises(UsageError, match="has no table of this name") as caught:
        make(tmp_path / "store", Path(name), **options)
    assert name in str(caught.value)
    assert not (tmp_path / "store").exists()

"""Damaged, truncated, hostile or changing container files: reported by file and row, no data loss.

Rows 19, 21 to 24, 26 and 27 of the list of faults, for sources other than picture files.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, convert_to_deltalake, write_deltalake
from PIL import Image

from stepladder.config.choices import SourceFormat
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.prepare import prepare
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.sources.containers import files as files_module
from stepladder.data.sources.containers import parquet as parquet_module
from stepladder.data.sources.containers.opening import open_pictures
from stepladder.data.sources.containers.spool import Buckets, Spool
from stepladder.data.sources.containers.tables import open_tables
from stepladder.data.sources.containers.tar import read_members
from stepladder.data.sources.containers.webdataset import TarContainer
from stepladder.data.sources.pictures import FilePictures, Workers
from stepladder.data.sources.safe_arrow import refuse_older, require_safe_pyarrow
from stepladder.data.sources.walk import Skipped
from stepladder.data.store.store import Store
from stepladder.data.store.verify import verify_store
from stepladder.errors import DataError, ResourceError, UsageError

KINDS = ("apple", "bread")
NUM_ROWS = 60


def photo(seed: int) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 255, size=(5, 6, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((36, 30)).save(file, "PNG" if seed % 3 == 2 else "JPEG")
    return file.getvalue()


PHOTOS = [photo(seed) for seed in range(NUM_ROWS)]
LABELS = [KINDS[row % 2] for row in range(NUM_ROWS)]


def columns(span: range = range(NUM_ROWS)) -> dict[str, Any]:
    return {"image": [PHOTOS[row] for row in span], "label": [LABELS[row] for row in span]}


def table(path: Path, content: Any = None, **options: Any) -> Path:
    made = pa.table(columns() if content is None else content)
    pq.write_table(made, path, **{"row_group_size": 10, **options})
    return path


def config_of(source: Path, out: str = "store", **options: Any) -> PrepareConfig:
    settings = {"size": 24, "workers": 2, "val_frac": 0.3, "out": source.parent / out, **options}
    return PrepareConfig(source=source, **settings)


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.iterdir() if path.name != "prepare_log.json")
    return {path.name: path.read_bytes() for path in paths}


# 21: kill -9

PROGRAM = """
import os, signal, sys
from pathlib import Path
from stepladder.config.choices import SourceFormat
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import (plan, prepare)
from stepladder.data.sources.containers import parquet
from stepladder.data.sources.containers.spool import Spool
from stepladder.data.prepare.shard_work import ShardMaker
import PIL.JpegImagePlugin, PIL.PngImagePlugin, pyarrow.parquet, simplejpeg, torch

parquet.MIN_PART_BYTES = 10_000  # a part a row group
plan.MAX_MEAN_SHARD_BYTES = 12_000

def counting(function, point, num):
    def call(*args, **options):
        global calls
        calls += 1
        if point == function.__name__ and calls == num:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)
    return call

for line in sys.stdin:
    out, point, num = line.split()
    child = os.fork()
    if child == 0:
        calls = 0
        owner = {"add": Spool, "finish": Spool, "_write": ShardMaker}.get(point)
        if owner:
            setattr(owner, point, counting(getattr(owner, point), point, int(num)))
        source = Path(sys.argv[1])
        prepare.prepare(
            PrepareConfig(source=source, out=Path(out), size=24, workers=2, val_frac=0.3)
        )
        print(calls, flush=True)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("ended", code, flush=True)
"""


@pytest.mark.thorough
def test_a_killed_prepare_resumes_from_what_was_spooled(tmp_path: Path) -> None:
    source = table(tmp_path / "t.parquet")
    kills = [("add", 1), ("add", 35), ("finish", 1), ("add", 12), ("_write", 1), ("_write", 4)]
    out = tmp_path / "cut"
    lines = [f"{out} {point} {num}" for point, num in kills]
    lines += [f"{out} add 1000", f"{tmp_path / 'whole'} add 1000"]
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    *killed, cut_calls, cut_end, whole_calls, whole_end = result.stdout.splitlines()
    assert killed == ["ended -9"] * len(kills), result.stderr
    assert (cut_end, whole_end) == ("ended 0", "ended 0")
    assert int(cut_calls) == 0  # everything was spooled before the first store file was written
    assert int(whole_calls) == NUM_ROWS
    assert contents(out) == contents(tmp_path / "whole")
    assert verify_store(out) == []
    assert not out.with_name("cut.partial").exists()


class Stopped(Exception):
    """Simulates a kill, where the kill itself is not tested."""


def stop_before_writing(config: PrepareConfig, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepare until everything is spooled; return the spool folder."""

    def stop(*_: object, **__: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr("stepladder.data.prepare.engine.ShardMaker.make", stop)
        with pytest.raises(Stopped):
            prepare(config)
    return config.out.with_name(f"{config.out.name}.partial") / "spool"


def count_added(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count pictures that are spooled from now on."""
    added: list[int] = []
    add = Spool.add

    def counted(spool: Spool, item: Any, sha256: bytes) -> Any:
        added.append(item.row)
        return add(spool, item, sha256)

    monkeypatch.setattr(Spool, "add", counted)
    return added


def flip_a_byte(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)


def largest(folder: Path) -> Path:
    return max(folder.iterdir(), key=lambda path: path.stat().st_size)


def test_spooled_bytes_that_were_damaged_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_module, "MIN_PART_BYTES", 10_000)
    source = table(tmp_path / "t.parquet")
    prepare(config_of(source, "whole"))
    config = config_of(source, "cut")
    spool = stop_before_writing(config, monkeypatch)
    bucket = max(spool.glob("?"), key=lambda path: path.stat().st_size)
    flip_a_byte(bucket, bucket.stat().st_size // 2)
    added = count_added(monkeypatch)
    prepare(config)
    assert len(added) == 10  # the row group of the damaged picture
    assert contents(config.out) == contents(tmp_path / "whole")


def test_a_source_that_changed_after_a_kill_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = table(tmp_path / "t.parquet")
    stop_before_writing(config_of(source, "cut"), monkeypatch)
    turned = columns()
    turned["label"] = [KINDS[row % 2 == 0] for row in range(NUM_ROWS)]
    table(source, turned)
    prepare(config_of(source, "cut"))
    prepare(config_of(source, "whole"))
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_other_columns_are_not_taken_for_those_that_were_spooled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = table(tmp_path / "t.parquet", {**columns(), "other": LABELS[::-1]})
    stop_before_writing(config_of(source), monkeypatch)
    added = count_added(monkeypatch)
    prepare(config_of(source, label_column="other"))
    assert len(added) == NUM_ROWS


def test_rows_that_were_deleted_after_a_kill_are_not_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delete_by_vector: Any
) -> None:
    monkeypatch.setattr(parquet_module, "MIN_PART_BYTES", 10_000)
    source = tmp_path / "delta"
    source.mkdir()
    table(source / "rows.parquet")
    convert_to_deltalake(source)
    stop_before_writing(config_of(source, "cut", delta_version=0), monkeypatch)
    delete_by_vector(source, [3, 27])
    added = count_added(monkeypatch)
    assert version_read(source, "cut", delta_version=1)[1] == NUM_ROWS - 2
    assert len(added) == 9 + 9  # the row groups that lost a row; the others are in the spool
    version_read(source, "whole", delta_version=1)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_a_split_known_from_names_only_after_a_kill_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source = tmp_path / "in"
    source.mkdir()

    def add(name: str, span: range) -> None:
        if kind == "tar":
            write_tar(source / name, samples()[2 * span.start : 2 * span.stop])
        else:
            table(source / name, columns(span))

    add(f"val-0.{kind}", range(20))  # not a split by itself
    stop_before_writing(config_of(source, "cut"), monkeypatch)
    add(f"train-0.{kind}", range(20, NUM_ROWS))
    prepare(config_of(source, "cut"))
    prepare(config_of(source, "whole"))
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_disk_that_loses_spooled_bytes_is_a_loud_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Buckets.read
    monkeypatch.setattr(Buckets, "read", lambda *args: read(*args)[:-1] + b"?")
    source = table(tmp_path / "t.parquet")
    with pytest.raises(ResourceError, match="the disk returned other bytes") as caught:
        prepare(config_of(source))
    assert "same command again" in str(caught.value.fix)
    assert not (tmp_path / "store").exists()
    monkeypatch.undo()
    prepare(config_of(source))
    assert verify_store(tmp_path / "store") == []


def test_room_for_the_pictures_is_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = table(tmp_path / "t.parquet")
    monkeypatch.setattr("stepladder.data.prepare.plan.disk_free_bytes", lambda _: 1000)
    added = count_added(monkeypatch)
    with pytest.raises(ResourceError, match="unpacking the pictures of the source needs"):
        prepare(config_of(source))
    assert added == []


# 19: more than 2 GiB in a row group


@pytest.mark.thorough
def test_a_row_group_over_two_gigabytes_is_read_in_little_memory(tmp_path: Path) -> None:
    path, size, num_rows = tmp_path / "large.parquet", 16 << 20, 136
    one = pa.array([bytes(size)])
    made = {"image": pa.chunked_array([one] * num_rows), "label": [*KINDS] * (num_rows // 2)}
    plain = {"use_dictionary": False, "write_statistics": False, "compression": "lz4"}
    table(path, made, row_group_size=num_rows, **plain)
    del one, made
    assert pq.ParquetFile(path).metadata.num_row_groups == 1
    config = config_of(path, max_pixels=50_000_000)
    (part,) = open_tables(config, SourceFormat.PARQUET).containers
    assert part.picture_bytes > 2 << 30
    process = psutil.Process()
    before = peak = process.memory_info().rss
    num_seen = 0
    for items in part.items():
        num_seen += len(items)
        assert all(len(item.data) == size for item in items)
        peak = max(peak, process.memory_info().rss)
    assert num_seen == num_rows
    assert peak - before < 200 << 20


# 22: files that are cut or no Parquet


@pytest.mark.parametrize("damage", ["0 bytes", "4 bytes", "half", "no footer", "text"])
def test_a_damaged_parquet_file_is_named(tmp_path: Path, damage: str) -> None:
    (tmp_path / "in").mkdir()
    table(tmp_path / "in" / "a.parquet")
    path = table(tmp_path / "in" / "b.parquet")
    data = path.read_bytes()
    cuts = {"0 bytes": b"", "4 bytes": b"PAR1", "half": data[: len(data) // 2]}
    path.write_bytes(cuts.get(damage, data[:-9] if damage == "no footer" else b"hello " * 99))
    with pytest.raises(DataError, match="cannot be read as Parquet") as caught:
        prepare(config_of(tmp_path / "in"))
    assert caught.value.where == "b.parquet"
    assert "pattern that leaves" in str(caught.value.fix)
    assert not (tmp_path / "store.partial").exists()


# 23: flipped bytes


def test_a_flipped_byte_under_a_checksum_is_told_by_file_and_row(tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", write_page_checksum=True, compression="none")
    whole = path.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    metadata = pq.ParquetFile(path).metadata
    image = metadata.row_group(0).column(0)
    begin = image.dictionary_page_offset or image.data_page_offset
    end = begin + image.total_compressed_size
    assert end < len(whole) - footer
    whole_rows = read_all(path)
    random = np.random.default_rng(23)
    places = []
    for at in random.integers(begin, end, size=40):
        path.write_bytes(whole)
        flip_a_byte(path, int(at))
        try:
            found = read_all(path)
        except DataError as error:
            places.append(str(error.where))
        else:
            assert found == whole_rows  # in a page header, in a field that does not affect rows
    assert len(places) >= 36
    assert all(place.startswith("t.parquet: from row 0") for place in places)


def read_all(path: Path) -> list[tuple[bytes, str | int]]:
    opened = open_tables(config_of(path), SourceFormat.PARQUET)
    batches = (items for part in opened.containers for items in part.items())
    return [(item.data, item.label) for items in batches for item in items]


# 24: rows that do not fit


def with_row(row: int, **values: Any) -> pa.Table:
    """Return the table of label numbers with one row changed."""
    content = columns()
    content["label"] = [index % 2 for index in range(NUM_ROWS)]
    for name, value in values.items():
        content[name][row] = value
    return pa.table(content)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "label 'label' of this row is null"),
        (-1, "label 'label' of this row is -1"),
        ("", "is empty"),
    ],
)
def test_a_label_that_is_none_is_told_by_file_and_row(
    tmp_path: Path, value: Any, words: str
) -> None:
    content = columns()
    if value != "":
        content["label"] = [index % 2 for index in range(NUM_ROWS)]
    content["label"][37] = value
    with pytest.raises(DataError, match=words) as caught:
        prepare(config_of(table(tmp_path / "t.parquet", content)))
    assert caught.value.where == "t.parquet: row 37"
    assert not (tmp_path / "store").exists()


def test_a_label_beyond_the_class_names_is_reported_by_file_and_row(tmp_path: Path) -> None:
    features = {"label": {"_type": "ClassLabel", "names": list(KINDS)}}
    made = with_row(41, label=2).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    with pytest.raises(
        DataError, match="this row has label 2, but the file names only 2 classes"
    ) as caught:
        prepare(config_of(table(tmp_path / "t.parquet", made)))
    assert caught.value.where == "t.parquet: row 41"


def test_a_null_picture_is_put_aside_by_file_and_row(tmp_path: Path) -> None:
    source = table(tmp_path / "t.parquet", with_row(12, image=None))
    prepare(config_of(source, max_bad=0.05))
    lines = (tmp_path / "store" / "quarantine.csv").read_text().splitlines()
    assert lines == ["path,reason", "t.parquet#12,is null (t.parquet: row 12)"]
    with pytest.raises(DataError, match="more than the limit of 1 %"):
        prepare(config_of(source, "strict"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": list(range(NUM_ROWS))}, "column 'label' has type int64 in this file, but"),
        (
            {"label": None},
            "column 'label' is missing in this file, but has type string in a.parquet",
        ),
        ({"image": ["text"] * NUM_ROWS}, "column 'image' has type string"),
    ],
)
def test_columns_that_differ_in_one_file_are_told(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c"):
        content = columns() | (change if name == "b" else {})
        named = {key: value for key, value in content.items() if value is not None}
        table(tmp_path / "in" / f"{name}.parquet", named)
    with pytest.raises(DataError, match=words) as caught:
        prepare(config_of(tmp_path / "in"))
    assert caught.value.where == "b.parquet: from row 0 on"


def test_labels_of_two_kinds_are_reported_with_a_row_of_each(tmp_path: Path) -> None:
    members = [("0.jpg", PHOTOS[0]), ("0.cls", b"1"), ("1.jpg", PHOTOS[1]), ("1.txt", b"pear")]
    write_tar(tmp_path / "t.tar", members)
    with pytest.raises(DataError, match=r"1 in t\.tar: row 0, 'pear' in t\.tar: row 1"):
        prepare(config_of(tmp_path / "t.tar"))


# 26: pickles


def test_a_pickled_extension_type_is_refused_unopened(tmp_path: Path) -> None:
    field = pa.field(
        "extra",
        pa.binary(),
        metadata={
            "ARROW:extension:name": "arrow.py_extension_type",
            "ARROW:extension:metadata": b"cos\nsystem\n(S'touch marker'\ntR.",
        },
    )
    made = pa.table(columns()).append_column(field, pa.array([b"x"] * NUM_ROWS))
    with pytest.raises(DataError, match="'extra' contains pickled Python objects"):
        prepare(config_of(table(tmp_path / "t.parquet", made)))
    assert not (tmp_path / "store.partial").exists()


def test_a_column_of_an_extension_type_is_refused(tmp_path: Path) -> None:
    field = pa.field("image", pa.binary(), metadata={"ARROW:extension:name": "someone.s"})
    schema = pa.schema([field, pa.field("label", pa.string())])
    with pytest.raises(DataError, match=r"extension type 'someone\.s'"):
        prepare(config_of(table(tmp_path / "t.parquet", pa.table(columns(), schema=schema))))


def test_python_objects_in_a_binary_column_are_put_aside(tmp_path: Path) -> None:
    import pickle

    source = table(tmp_path / "t.parquet", with_row(3, image=pickle.dumps({"a": [1] * 50})))
    prepare(config_of(source, max_bad=0.05))
    text = (tmp_path / "store" / "quarantine.csv").read_text()
    assert 't.parquet#3,"is a Python pickle, not a supported picture format"' in text


def test_a_pyarrow_below_the_floor_is_refused() -> None:
    require_safe_pyarrow()
    refuse_older("23.0.1")
    for found in ("14.0.0", "23.0.0", "9.1.2.dev4"):
        with pytest.raises(UsageError, match=f"pyarrow {found} is too old: .* pyarrow 23.0.1"):
            refuse_older(found)


@pytest.mark.parametrize(
    "kind", [SourceFormat.PARQUET, SourceFormat.PETASTORM, SourceFormat.DELTA, SourceFormat.AUTO]
)
def test_an_old_pyarrow_opens_no_file_of_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SourceFormat
) -> None:
    source = table(tmp_path / "in.parquet")
    monkeypatch.setattr(pa, "__version__", "22.0.0")
    require_safe_pyarrow.cache_clear()
    with pytest.raises(
        UsageError, match=r"pyarrow 22\.0\.0 is too old: .* pyarrow 23\.0\.1 prevents"
    ):
        prepare(config_of(source, source_format=kind))


# 27: Delta


@pytest.fixture
def delta(tmp_path: Path) -> Path:
    """A table with versions 0 and 1, of thirty rows each."""
    for half in range(2):
        span = range(30 * half, 30 * half + 30)
        write_deltalake(tmp_path / "delta", pa.table(columns(span)), mode="append")
    return tmp_path / "delta"


def version_read(source: Path, out: str, **options: Any) -> tuple[int, int, tuple[str, ...]]:
    """Return version, number of pictures and warnings of a prepare."""
    result = prepare(config_of(source, out, **options))
    num_rows = sum(shard.num_rows for shard in result.manifest.shards)
    return result.manifest.options["delta_version"], num_rows, result.warnings


def test_a_writer_killed_before_its_commit_leaves_the_last_version(delta: Path) -> None:
    pq.write_table(pa.table(columns(range(5))), delta / "part-00000-orphan.parquet")
    (delta / "_delta_log" / f"_commit_{2:020}.json.tmp").write_text('{"add":')
    assert version_read(delta, "store")[:2] == (1, 60)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_half_written_commit_is_passed_over_and_told(delta: Path, share: float) -> None:
    log = delta / "_delta_log" / f"{1:020}.json"
    log.write_text(log.read_text()[: int(share * len(log.read_text()))])
    version, num_rows, warnings = version_read(delta, "store")
    assert (version, num_rows) == (0, 30)
    assert any("commit of version 1 is incomplete; reading 0" in warning for warning in warnings)
    with pytest.raises(DataError, match="version 1 of the Delta table cannot be read"):
        version_read(delta, "pinned", delta_version=1)


def test_a_writer_beside_us_changes_nothing(delta: Path) -> None:
    before = version_read(delta, "before")
    stop = threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        try:
            while not stop.is_set():
                write_deltalake(delta, pa.table(columns(range(3))), mode="append")
                DeltaTable(delta).optimize.compact()
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert version_read(delta, "during", delta_version=1) == before
        assert version_read(delta, "latest")[0] >= 1
    finally:
        stop.set()
        writer.join()
    assert not errors
    assert DeltaTable(delta).version() > 1
    assert contents(delta.parent / "during") == contents(delta.parent / "before")


FULL_DISK = """
import os, resource, sys
import pyarrow as pa
from deltalake import write_deltalake
rows = pa.table({"image": [os.urandom(2000) for _ in range(30)], "label": ["apple"] * 30})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
write_deltalake(sys.argv[1], rows, mode="append")
"""


def test_a_writer_on_a_full_disk_leaves_the_last_version(delta: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(delta)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert version_read(delta, "store")[:2] == (1, 60)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_checkpoint_of_the_log_that_was_cut_is_told(delta: Path, share: float) -> None:
    DeltaTable(delta).create_checkpoint()
    (checkpoint,) = (delta / "_delta_log").glob("*.checkpoint.parquet")
    data = checkpoint.read_bytes()
    checkpoint.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DataError, match="the latest version of the Delta table cannot be read"):
        version_read(delta, "store")


def test_a_vacuumed_file_is_named_with_what_to_type(delta: Path) -> None:
    DeltaTable(delta).optimize.compact()
    gone = DeltaTable(delta).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert gone
    with pytest.raises(
        DataError, match="a data file of version 1 of the Delta table is missing"
    ) as caught:
        version_read(delta, "old", delta_version=1)
    assert any(Path(name).name in caught.value.what for name in gone)
    assert "omit --delta-version" in str(caught.value)
    assert version_read(delta, "latest")[1] == 60


# tars


def write_tar(path: Path, members: list[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def samples(num: int = NUM_ROWS) -> list[tuple[str, bytes]]:
    members = []
    for row in range(num):
        data = PHOTOS[row % NUM_ROWS]
        members += [(f"{row:03d}.cls", f"{row % 2}".encode()), (f"{row:03d}.jpg", data)]
    return members


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.7])
def test_a_tar_that_is_cut_short_is_reported_with_the_place(
    tmp_path: Path, packed: bool, share: float
) -> None:
    path = write_tar(tmp_path / "t.tar", samples())
    data = gzip.compress(path.read_bytes()) if packed else path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DataError, match=r"truncated|empty|not a tar") as caught:
        prepare(config_of(path))
    assert str(caught.value.where).startswith("t.tar: after ")
    assert "download the file again" in str(caught.value.fix)
    assert not (tmp_path / "store").exists()


def test_a_tar_cut_between_two_members_is_found_too(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", samples()[:4])
    end = 4 * 512 + 2 * 512 + sum(-(-len(PHOTOS[row]) // 512) * 512 for row in range(2))
    path.write_bytes(path.read_bytes()[:end])  # tarfile accepts it as complete
    with tarfile.open(path) as tar:
        assert len(tar.getnames()) == 4
    with pytest.raises(DataError, match="is truncated") as caught:
        prepare(config_of(path))
    assert caught.value.where == f"t.tar: after {end} bytes"


def header(name: str, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "data",
    [
        header("x", tarfile.XHDTYPE, 1 << 40),
        header("x", tarfile.GNUTYPE_LONGNAME, 1 << 40),
        header("x.jpg", tarfile.REGTYPE, 1 << 40) + bytes(4096),
        header("x.jpg", tarfile.REGTYPE, 1 << 20)[:100] + bytes(1024),
    ],
)
def test_a_tar_with_false_sizes_costs_no_memory(data: bytes) -> None:
    before = psutil.Process().memory_info().rss
    with pytest.raises(DataError) as caught:
        list(read_members(io.BytesIO(data), "t.tar", max_bytes=1 << 50, skipped=Skipped()))
    assert str(caught.value.where).startswith("t.tar: after ")
    assert psutil.Process().memory_info().rss - before < 50 << 20


def test_every_flip_in_the_header_of_a_member_is_reported(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", samples()[:6])
    whole = path.read_bytes()
    random = np.random.default_rng(5)
    for at in random.integers(0, 512, size=60):  # its checksum covers the whole header
        data = bytearray(whole)
        data[int(at)] ^= 0x55
        with pytest.raises(DataError, match="is not a tar, or is damaged") as caught:
            list(read_members(io.BytesIO(data), "t.tar", max_bytes=1 << 20, skipped=Skipped()))
        assert caught.value.where == "t.tar: after 0 bytes"


def test_a_flip_that_still_unpacks_is_reported_by_the_checksum_of_gzip(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "t.tar", samples()).read_bytes()
    packed = bytearray(gzip.compress(whole, compresslevel=0))
    packed[packed.index(PHOTOS[0]) + len(PHOTOS[0]) // 2] ^= 0x55
    path = tmp_path / "t.tar.gz"
    path.write_bytes(packed)
    with pytest.raises(DataError, match="CRC check failed") as caught:
        prepare(config_of(path))
    assert str(caught.value.where).startswith("t.tar.gz: after ")


# 17: files that change

KEPT_S = 1_000_000_000


@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_a_file_that_changes_while_it_is_read_is_reported(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"t.{kind}"
    table(path) if kind == "parquet" else write_tar(path, samples(2 * NUM_ROWS))
    opened = open_tables(config_of(path), SourceFormat.PARQUET) if kind == "parquet" else None
    part = opened.containers[0] if opened else open_tar(path)
    items = part.items()
    next(items)
    os.utime(path, (KEPT_S, KEPT_S))
    with pytest.raises(
        DataError, match="the source file changed while its pictures were read"
    ) as caught:
        list(items)
    assert caught.value.where == path.name


def open_tar(path: Path) -> TarContainer:
    found = files_module.find_files(path, suffixes=(".tar",), follow_symlinks=False)
    return TarContainer(found.files[0], None, config_of(path))


@pytest.mark.parametrize("kind", ["parquet", "tar"])
@pytest.mark.parametrize("change", ["gone", "no file"])
def test_a_file_that_goes_between_the_passes_is_named(
    tmp_path: Path, kind: str, change: str
) -> None:
    path = tmp_path / f"t.{kind}"
    table(path) if kind == "parquet" else write_tar(path, samples(NUM_ROWS))
    pictures = open_pictures(config_of(path))
    path.unlink()
    if change == "no file":
        path.mkdir()
    work = WorkFolder(tmp_path / "work")
    work.make()
    words = {
        "gone": "this source file was deleted while the pictures were read",
        "no file": "cannot be opened: .*directory",
    }[change]
    with ThreadPoolExecutor(1) as pool, pytest.raises(DataError, match=words) as caught:
        pictures.hash(work, Workers(pool, 2), earlier=path, on_done=lambda *_: None)
    assert caught.value.where == path.name


# names of files


def test_a_fifo_and_a_link_out_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table(tmp_path / "in" / "a.parquet")
    os.mkfifo(tmp_path / "in" / "b.parquet")
    outside = table(tmp_path / "outside.parquet")
    (tmp_path / "in" / "c.parquet").symlink_to(outside)
    (tmp_path / "in" / "d.parquet").symlink_to(tmp_path / "nowhere")
    result = prepare(config_of(tmp_path / "in"))
    told = " ".join(result.warnings)
    for words in ("neither a file nor a folder", "point outside the source", "cannot be read"):
        assert words in told
    assert len(Store.open(tmp_path / "store").manifest.shards) > 0
    followed = files_module.find_files(
        tmp_path / "in", suffixes=(".parquet",), follow_symlinks=True
    )
    assert [file.name for file in followed.files] == ["a.parquet", "c.parquet"]


@pytest.mark.parametrize("ending", ["parquet", "tar"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_files_that_are_pointers_of_git_lfs_are_to_be_pulled(
    tmp_path: Path, ending: str, is_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:41f7\nsize 9\n"
        (tmp_path / "in" / f"{name}.{ending}").write_bytes(pointer)
    source = Path("in") if is_folder else Path("in", f"a.{ending}")
    with pytest.raises(DataError, match="are pointers of Git LFS, without their content") as caught:
        prepare(config_of(source))
    command = f": git lfs install && git -C in lfs pull && stepladder prepare {source}"
    assert str(caught.value.fix).endswith(command)


def test_files_that_are_all_links_out_are_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "c.parquet").symlink_to(table(tmp_path / "outside.parquet"))
    with pytest.raises(UsageError, match="no file that ends in") as caught:
        files_module.find_files(Path("in"), suffixes=(".parquet",), follow_symlinks=False)
    assert str(caught.value.fix).endswith(": stepladder prepare in --follow-symlinks")


def test_pictures_in_class_folders_come_before_files_next_to_them(tmp_path: Path) -> None:
    for row in range(20):
        path = tmp_path / "in" / "train" / LABELS[row] / f"{row}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PHOTOS[row])
    table(tmp_path / "in" / "labels.parquet")
    write_tar(tmp_path / "in" / "train" / "a.tar", samples())
    assert isinstance(open_pictures(config_of(tmp_path / "in")), FilePictures)


def test_a_folder_of_two_kinds_asks_which(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table(tmp_path / "in" / "a.parquet")
    write_tar(tmp_path / "in" / "a.tar", samples())
    with pytest.raises(UsageError, match="files of several formats: parquet and webdataset"):
        open_pictures(config_of(tmp_path / "in"))
    prepare(config_of(tmp_path / "in", source_format=SourceFormat.WEBDATASET))
    assert verify_store(tmp_path / "store") == []

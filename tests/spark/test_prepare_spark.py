"""The Spark engine writes the same bytes as the local one: from files, frames, and after kills."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import stepladder
from stepladder.config.choices import EngineName, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import plan
from stepladder.data.prepare import target as target_module
from stepladder.data.prepare.prepare import PrepareResult, prepare
from stepladder.data.spark.jobs import run_tasks
from stepladder.data.spark.session import spark_session
from stepladder.data.spark.site import open_site, run_told
from stepladder.data.store.repair import repair_store
from stepladder.data.store.store import Store
from stepladder.errors import DataError, ResourceError, UsageError
from stepladder.records import read_json

SIZE = 24


@pytest.fixture(scope="module", autouse=True)
def small_files() -> Iterator[None]:
    """Several files with few pictures."""
    before, plan.MAX_MEAN_SHARD_BYTES = plan.MAX_MEAN_SHARD_BYTES, 20_000
    yield
    plan.MAX_MEAN_SHARD_BYTES = before


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty pictures of two classes: odd names, a copy, junk, one damaged and one empty."""
    root = tmp_path_factory.mktemp("source") / "photos"
    random = np.random.default_rng(0)
    for idx in range(60):
        folder = root / ("a b" if idx % 2 else "ü#1") / ("deep" if idx % 5 == 0 else ".")
        folder.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 255, size=(4, 5, 3), dtype=np.uint8)
        suffix = "png" if idx % 7 == 0 else "jpg"
        Image.fromarray(coarse).resize((50, 40)).save(folder / f"{idx} 100%.{suffix}")
    damaged = root / "a b" / "damaged.jpg"
    damaged.write_bytes((root / "a b" / "1 100%.jpg").read_bytes()[:-30])
    (root / "a b" / "empty.jpg").touch()
    (root / "a b" / "notes.txt").write_text("no picture")
    (root / "a b" / ".DS_Store").touch()
    shutil.copy(root / "ü#1" / "2 100%.jpg", root / "ü#1" / "copy.jpg")
    return root


def make(out: Path, **options: Any) -> PrepareResult:
    frame = options.pop("frame", None)
    config = PrepareConfig(out=out, **{"size": SIZE, "max_bad": 0.1, **options})
    return prepare(config, frame=frame)


def contents(folder: Path) -> dict[str, bytes]:
    """Read all files of a store except those with timestamps."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.pop("prepare_log.json")
    files.pop("prepare_hashes.jsonl", None)
    return files


@pytest.fixture(scope="module")
def local(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The store that the local engine writes."""
    made = contents(make(tmp_path_factory.mktemp("local") / "store", source=photos).folder)
    assert len([name for name in made if name.endswith(".parquet")]) > 8
    assert made["quarantine.csv"].count(b"\n") == 3
    return made


@pytest.mark.smoke
def test_files_give_the_bytes_of_the_local_engine(
    spark: Any, photos: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    made = make(tmp_path / "store", source=photos, engine=EngineName.SPARK)
    assert contents(made.folder) == local
    assert list(tmp_path.iterdir()) == [made.folder]


def test_files_that_spark_lists_give_them_too(
    spark: Any, photos: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    source = Path(f"file:{photos}")
    made = make(tmp_path / "store", source=source, engine=EngineName.SPARK)
    assert contents(made.folder) == local
    assert read_json(made.folder / "prepare_log.json")["config"]["source"] == str(source)
    damaged = min(made.folder.glob("*.parquet"))
    damaged.write_bytes(b"damage")
    assert repair_store(made.folder) == [damaged.name]
    assert contents(made.folder) == local


@pytest.mark.smoke
def test_a_frame_of_bytes_and_labels_gives_them_too(
    spark: Any, photos: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    rows = [
        (str(path.relative_to(photos)), path.parts[len(photos.parts)], path.read_bytes())
        for path in sorted(photos.rglob("*.*"))
        if path.suffix in (".jpg", ".png")
    ]
    frame = spark.createDataFrame(rows, "file string, kind string, picture binary").repartition(3)
    made = stepladder.prepare(
        frame,
        tmp_path / "store",
        size=SIZE,
        max_bad=0.1,
        path_column="file",
        label_column="kind",
    )
    assert contents(made.folder) == local
    assert read_json(made.folder / "prepare_log.json")["source"] == "DataFrame"


def test_rows_without_a_path_are_named_by_their_content(
    spark: Any, photos: Path, tmp_path: Path
) -> None:
    paths = sorted(path for path in photos.rglob("*.png"))
    rows = [(idx % 2, path.read_bytes()) for idx, path in enumerate([*paths, paths[0], paths[0]])]
    frame = spark.createDataFrame(rows, "label int, image binary")
    folders = [
        make(tmp_path / name, frame=rows_of).folder
        for name, rows_of in (("a", frame), ("b", frame.repartition(2).orderBy("image")))
    ]
    assert contents(folders[0]) == contents(folders[1])
    store = Store.open(folders[0])
    splits = [split for name in Split if (split := store.split(name)) is not None]
    names = [split.describe(row) for split in splits for row in range(len(split))]
    digest = hashlib.sha256(paths[0].read_bytes()).hexdigest()
    assert [name for name in names if digest in name] == [digest, f"{digest}.2", f"{digest}.3"]


def test_spark_images_keep_their_pixels(spark: Any, photos: Path, tmp_path: Path) -> None:
    reader = spark.read.format("image").option("recursiveFileLookup", "true")
    frame = reader.load(str(photos)).where("image.mode = 16").where("image.height = 40")
    split = Store.open(make(tmp_path / "store", frame=frame, size=50).folder).split(Split.TRAIN)
    assert split is not None
    row = next(row for row in range(len(split)) if split.describe(row).endswith(".png"))
    want = np.asarray(Image.open(photos / split.describe(row)))
    np.testing.assert_array_equal(split.picture(row)[5:45], want)


def test_spark_reads_a_store_as_it_is(
    spark: Any, photos: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    folder = make(tmp_path / "store", source=photos).folder
    rows = spark.read.parquet(*map(str, sorted(folder.glob("*.parquet")))).collect()
    found = {row.path: (bytes(row.sha256), row.label, bytes(row.picture)) for row in rows}
    store = Store.open(folder)
    wanted = {}
    for name in Split:
        if (split := store.split(name)) is not None:
            for row in range(len(split)):
                picture = split.picture(row).tobytes()
                label = int(split.labels[row])
                wanted[split.describe(row)] = (split.sha256(row), label, picture)
    assert found == wanted


def test_a_killed_worker_is_passed_over_and_a_second_call_resumes(
    spark: Any, photos: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    """Tasks of a local master are not retried: the call fails, and the next one resumes."""
    out = tmp_path / "store"
    marker = tmp_path / "killed"

    def die_once(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 1 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    frame = spark.createDataFrame(
        [
            (str(path.relative_to(photos)), path.read_bytes())
            for path in sorted(photos.rglob("*.*"))
            if path.suffix in (".jpg", ".png")
        ],
        "path string, content binary",
    )
    deadly = frame.repartition(1).mapInArrow(die_once, frame.schema)
    with pytest.raises(ResourceError, match="the Spark job failed") as caught:
        make(out, frame=deadly)
    assert "to resume" in str(caught.value)
    assert not out.exists()
    made = make(out, frame=deadly)
    assert marker.exists()
    assert contents(made.folder) == local


@pytest.mark.smoke
def test_only_what_is_not_finished_is_made_again(
    spark: Any,
    photos: Path,
    local: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver that dies before publishing leaves its files; a damaged one is detected."""

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "store"
    with monkeypatch.context() as patched:
        patched.setattr(target_module, "publish", die)
        with pytest.raises(KeyboardInterrupt):
            make(out, source=photos, engine=EngineName.SPARK)
    made = sorted((tmp_path / "store.partial" / "store").glob("*.parquet"))
    inodes = {path.name: path.stat().st_ino for path in made}
    with made[0].open("r+b") as file:
        file.seek(100)
        file.write(b"damage")
    (tmp_path / "store.partial" / "records" / f"{made[1].name}.json").unlink()
    folder = make(out, source=photos, engine=EngineName.SPARK).folder
    assert contents(folder) == local
    again = {path.name for path in folder.glob("*.parquet")} - {
        path.name for path in folder.glob("*.parquet") if path.stat().st_ino == inodes[path.name]
    }
    assert again == {made[0].name, made[1].name}


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_bad": 0.0}, DataError, "2 of 63 pictures|1 of 63 pictures"),
        ({"source": Path("file:/no/such/folder")}, UsageError, "finds no files"),
        ({"source": Path("hdfs:/no.such.host.invalid/x")}, ResourceError, "UnknownHost"),
        ({"source": Path("s3a:/bucket/photos")}, ResourceError, "S3AFileSystem not found"),
        (
            {"source": Path("s3a:/KEY:WORD@bucket/photos")},
            UsageError,
            "an access key or a password",
        ),
    ],
    ids=["too many bad", "no source", "no host", "no such scheme", "a secret"],
)
def test_what_cannot_be_made_is_reported(
    spark: Any,
    photos: Path,
    tmp_path: Path,
    options: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words) as caught:
        make(tmp_path / "store", **{"source": photos, "engine": EngineName.SPARK, **options})
    assert caught.value.fix  # type: ignore[attr-defined]
    assert not (tmp_path / "store").exists()


def test_the_users_spark_session_stays_open(spark: Any) -> None:
    """No session is active in another thread, and the context is still the user's."""
    answers = []

    def work() -> None:
        with spark_session() as session:
            answers.append(run_tasks(session, 1, str))
            answers.append(session.sparkContext is spark.sparkContext)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [{0: "0"}, True]
    assert spark.range(3).count() == 3


def test_what_is_interrupted_ends_at_once(spark: Any) -> None:
    tracker = spark.sparkContext.statusTracker()

    def sleep(_: int) -> None:
        time.sleep(100)

    def interrupt() -> None:
        stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        if any(stage is not None and stage.numActiveTasks for stage in stages):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks(spark, 2, sleep, on_poll=interrupt)
    assert tracker.getActiveJobsIds() == []


def test_a_workers_imports_are_spared_the_search_for_garbage(spark: Any, tmp_path: Path) -> None:
    """Spark collects garbage after each task, which took as long as the task itself with torch."""

    def num_frozen(_: int) -> str:
        return str(gc.get_freeze_count())

    answers = run_told(spark, open_site(tmp_path), 6, num_frozen)
    assert max(int(answer or 0) for answer in answers.values()) > 1000

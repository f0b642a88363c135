"""A task with too few rows publishes nothing; missing and truncated input are distinguished."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.hashing import Hashed
from stepladder.data.prepare.plan import Row, ShardPlan
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.reading.threads import Inline
from stepladder.data.sources.pictures import CHANGED, Workers
from stepladder.data.spark.engine import Arrivals
from stepladder.data.spark.row_tasks import END_OF_FILE, CutInputError, FileTasks
from stepladder.data.spark.shard_tasks import (
    ATTEMPTS,
    TO_MAKE,
    shard_maker,
    task_file,
    write_shard_plan,
)
from stepladder.data.spark.site import open_site, raise_told
from stepladder.errors import ResourceError

Sent = list[tuple[int, bytes, bytes]]

CONFIG = PrepareConfig(size=8)


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), shade, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


PICTURES = {hashlib.sha256(data).digest(): data for data in map(png, range(0, 250, 25))}
NUM_FILES, NUM_ROWS = 2, 5


class Desk:
    """A work folder with two files to write, and the rows that they need."""

    def __init__(self, root: Path) -> None:
        self.work = WorkFolder(root)
        self.work.make()
        site = open_site(root, cleared=(TO_MAKE, ATTEMPTS))
        self.tasks = FileTasks(site=site, config=CONFIG)
        self.plans: list[ShardPlan] = []
        self.rows: Sent = []
        hashes = sorted(PICTURES)
        for number in range(NUM_FILES):
            some = hashes[number * NUM_ROWS :][:NUM_ROWS]
            rows = tuple(Row(h.hex(), at % 2, Hashed(h, (9, 0, 0))) for at, h in enumerate(some))
            plan = ShardPlan(f"train-{number}.parquet", Split.TRAIN, rows, f"key {number}", 1000)
            write_shard_plan(task_file(site, TO_MAKE, number), plan)
            self.plans.append(plan)
            self.rows += [(number, h, PICTURES[h]) for h in some]
            self.rows.append((number, END_OF_FILE, b""))
        self.records = shard_maker(site, CONFIG, read=unread, workers=Workers(Inline(), 1))

    def make(self, rows: Sent, *, end: Exception | None = None) -> list[int]:
        """Return a task with rows in batches of two, followed by an optional error."""
        made = self.tasks.make(batches(rows, end))
        return [number for batch in made for number in batch.column(0).to_pylist()]

    def published(self) -> set[str]:
        raise_told(self.tasks.site)
        assert list((self.work.root / ATTEMPTS).iterdir()) == []
        records = {path.name.removesuffix(".json") for path in self.work.records.iterdir()}
        assert records == {path.name for path in self.work.store.glob("*.parquet")}
        return records


def unread(row: Row) -> bytes:
    raise AssertionError(row)


def batches(rows: Sent, end: Exception | None) -> Iterator[Any]:
    for start in range(0, len(rows), 2):
        columns = zip(*rows[start : start + 2], strict=True)
        kinds = (pa.int32(), pa.binary(), pa.binary())
        arrays = [pa.array(list(c), kind) for c, kind in zip(columns, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, ["shard", "sha256", "picture"])
    if end is not None:
        raise end


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "work")


@pytest.mark.parametrize("num_lacking", range(1, NUM_ROWS + 1))
def test_input_that_ends_early_publishes_no_short_file(desk: Desk, num_lacking: int) -> None:
    """A socket that is closed between two batches looks like the end of all rows."""
    with pytest.raises(CutInputError, match="are truncated"):
        desk.make(desk.rows[:-num_lacking])
    assert desk.published() == {desk.plans[0].name}
    assert desk.make(desk.rows) == [0, 1]  # Spark retries
    assert desk.published() == {plan.name for plan in desk.plans}
    assert all(not found.bad for plan in desk.plans if (found := desk.records.recorded(plan)))


def test_input_that_breaks_within_a_batch_is_for_spark_to_try_again(desk: Desk) -> None:
    """Pyarrow reports it like a disk error, which would end the work."""
    broken = OSError("Expected to be able to read 800 bytes for message body, got 12")
    with pytest.raises(CutInputError, match="message body"):
        desk.make(desk.rows[:-4], end=broken)
    assert desk.published() == {desk.plans[0].name}


def test_a_picture_that_the_frame_no_longer_gives_is_reported_as_changed(desk: Desk) -> None:
    gone = [desk.plans[0].rows[at] for at in (0, NUM_ROWS - 1)]
    hashes = {row.sha256 for row in gone}
    assert desk.make([row for row in desk.rows if row[1] not in hashes]) == [0, 1]
    found = desk.records.recorded(desk.plans[0])
    assert found is not None
    assert found.bad == tuple(Bad(row.path, CHANGED) for row in gone)


def test_a_file_of_which_nothing_is_left_is_recorded_without_one(desk: Desk) -> None:
    assert desk.make([row for row in desk.rows if row[0] == 1 or not row[2]]) == [0, 1]
    found = desk.records.recorded(desk.plans[0])
    assert found is not None
    assert (found.info, len(found.bad)) == (None, NUM_ROWS)


def test_what_is_published_is_what_the_last_attempt_left(desk: Desk) -> None:
    """Spark may give a file to two tasks; the first one's record may have been read by then."""
    told: list[Bad | None] = []
    arrivals = Arrivals(desk.plans, desk.records, desk.work.records, told.append)
    desk.make(desk.rows[1:])
    arrivals.look()
    assert [item for item in told if item] == [Bad(desk.plans[0].rows[0].path, CHANGED)]
    desk.make(desk.rows)
    found = arrivals.finished()
    assert len(told) == NUM_FILES * NUM_ROWS
    for plan in desk.plans:
        info = found[plan.name].info
        assert info is not None
        digest = hashlib.sha256((desk.work.store / plan.name).read_bytes()).hexdigest()
        assert (digest, info.num_rows) == (info.sha256, NUM_ROWS)


def test_a_record_that_is_gone_is_missed(desk: Desk) -> None:
    arrivals = Arrivals(desk.plans, desk.records, desk.work.records, lambda _: None)
    desk.make(desk.rows)
    arrivals.look()
    (desk.work.records / f"{desk.plans[1].name}.json").unlink()
    with pytest.raises(
        ResourceError, match="1 files that Spark's executors wrote to this folder cannot be seen"
    ):
        arrivals.finished()

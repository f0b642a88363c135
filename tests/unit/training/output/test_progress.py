"""Reader statistics in a run's display and events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepladder.config.choices import Split, Where
from stepladder.data.reading.reader import Reader
from stepladder.data.store.shard_files import ShardFilesStats
from stepladder.data.store.store import Store, StoreSplit
from stepladder.records import read_jsonl
from stepladder.training.output.display import Display, ProgressState
from stepladder.training.run import train
from stepladder.training.session import reading_totals


@pytest.fixture
def split(tmp_path: Path, build_store: Callable) -> StoreSplit:
    build_store(tmp_path / "s", num_rows={"train": 40}, size=4)
    source = Store.open(tmp_path / "s").split(Split.TRAIN)
    assert source is not None
    return source


def test_totals_are_those_of_the_attempt(split: StoreSplit) -> None:
    reader = Reader(split, seed=0, global_batch_size=8, threads=2)
    assert reading_totals(reader) == {}
    for epoch in range(2):
        list(reader.epoch(epoch))
    totals = reading_totals(reader)
    assert (totals["num_read"], totals["read_bytes"]) == (80, 80 * 4 * 4 * 3)
    assert (totals["num_threads"], totals["decode_s"]) == (2, 0)
    assert totals["fetch_s"] > 0
    assert "num_requests" not in totals


def test_pictures_in_memory_are_read_once(split: StoreSplit) -> None:
    reader = Reader(split, seed=0, global_batch_size=8, where=Where.MEMORY)
    for epoch in range(3):
        list(reader.epoch(epoch))
    totals = reading_totals(reader)
    assert (totals["num_read"], totals["read_bytes"]) == (40, 40 * 4 * 4 * 3)


def test_a_remote_store_reports_its_cache(
    split: StoreSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ShardFilesStats(num_requests=4, num_bytes=23, num_hits=1, num_misses=1)
    now = ShardFilesStats(num_requests=9, num_retries=1, num_bytes=100, num_hits=4, num_misses=3)
    looks = iter([before, now])
    monkeypatch.setattr(split, "files_stats", lambda: next(looks))
    reader = Reader(split, seed=0, global_batch_size=8)
    list(reader.epoch(0))
    totals = reading_totals(reader)
    assert (totals["num_requests"], totals["num_retries"]) == (5, 1)
    assert totals["received_bytes"] == 77
    assert (totals["cache_hits"], totals["cache_misses"]) == (3, 2)


class Kept(Display):
    """Records what it is asked to show."""

    def __init__(self) -> None:
        self.states: list[ProgressState] = []

    def is_due(self) -> bool:
        return True

    def step(self, state: ProgressState) -> None:
        self.states.append(state)

    def warning(self, text: str) -> None:
        pass


def test_each_log_line_is_followed_by_what_reading_took(
    tmp_path: Path, job: Any, points: Any
) -> None:
    display = Kept()
    train(job(tmp_path / "run"), points(), task_name="points.py:PointsTask", display=display)
    events = list(read_jsonl(tmp_path / "run" / "events.jsonl"))
    trains = [event for event in events if event["event"] == "train"]
    readers = [event for event in events if event["event"] == "reader"]
    assert [event["step"] for event in readers] == [event["step"] for event in trains]
    assert [event["num_read"] for event in readers[1::2]] == [37, 74, 111, 148, 185]
    assert readers[-1]["fetch_s"] > 0
    assert len(display.states) == 25
    assert {state.read_bytes_per_s for state in display.states} == {None}, "a Dataset has no bytes"


def test_progress_shows_the_bytes_that_steps_take(
    tmp_path: Path, build_store: Callable, job: Any, points: Any
) -> None:
    build_store(tmp_path / "s", num_rows={"train": 37, "val": 5}, size=4)
    store = Store.open(tmp_path / "s")

    class FromStore(points):  # type: ignore[misc]
        def data(self, split: Split) -> StoreSplit | None:
            return store.split(split)

        def augment(self, batch: Any, *, seed: int, epoch: int) -> Any:
            return batch._replace(inputs=batch.inputs.float().mean(dim=1)[:, 0, :2])

        def metrics(self, model: Any, batch: Any) -> Any:
            return super().metrics(model, self.augment(batch, seed=0, epoch=0))

    display = Kept()
    train(job(tmp_path / "run"), FromStore(), task_name="points.py:FromStore", display=display)
    last = display.states[-1]
    assert last.read_bytes_per_s == pytest.approx(last.samples_per_s * 4 * 4 * 3)
    assert last.cache_hit_frac is None
    assert last.fetch_example_s is not None
    assert last.fetch_example_s > 0
    assert last.decode_example_s == 0  # pixels

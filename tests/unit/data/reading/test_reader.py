"""The reader: batches in the given order with any number of threads, and no leftovers."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.config.choices import Encoding, OrderMode, Split, Where
from stepladder.data.batch import Batch
from stepladder.data.features.feature_files import Features
from stepladder.data.features.feature_source import HeldFeatures
from stepladder.data.reading.examples import PictureSource, ReadCost
from stepladder.data.reading.reader import Reader, Source, resolve_where
from stepladder.data.reading.threads import THREAD_NAME
from stepladder.data.store.store import Store
from stepladder.errors import DataError, UsageError


class Counting(PictureSource):
    """Pictures filled with their row number; rows in `broken` cannot be read."""

    def __init__(self, n: int, broken: tuple[int, ...] = ()) -> None:
        self.fingerprint = "counting"
        self.labels = np.arange(n, dtype=np.int64) % 7
        self.picture_shape = (2, 4, 3)
        self.broken = broken
        self.rows_per_task = 3

    def __len__(self) -> int:
        return len(self.labels)

    def read_into(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        for place, row in enumerate(rows.tolist()):
            if row in self.broken:
                raise DataError("cannot be read", where=self.describe(row))
            out[place] = row % 256
        return ReadCost(num_bytes=out.nbytes)


def reader(source: Source, batch: int = 8, **options: Any) -> Reader:
    return Reader(source, seed=3, global_batch_size=batch, **options)


def num_threads() -> int:
    return sum(thread.name.startswith(THREAD_NAME) for thread in threading.enumerate())


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, build_store: Any) -> tuple[Source, np.ndarray]:
    folder = tmp_path_factory.mktemp("reader") / "s"
    pictures = build_store(folder, num_rows={"train": 100}, shards=4)
    source = Store.open(folder).split(Split.TRAIN)
    assert source is not None
    return source, pictures["train"]


@pytest.mark.parametrize("where", [Where.STREAM, Where.MEMORY])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("mode", list(OrderMode))
def test_batches_hold_the_rows_of_the_order(
    split: tuple[Source, np.ndarray], where: Where, threads: int, mode: OrderMode
) -> None:
    source, pictures = split
    made = reader(source, 32, threads=threads, where=where, mode=mode)
    batches = list(made.epoch(1))
    ids = torch.cat([batch.ids for batch in batches]).numpy()
    assert [len(batch.ids) for batch in batches] == [32, 32, 32, 4]
    assert made.steps_per_epoch == 4
    assert ids.tolist() == made.order.samples(1, 0, 100).tolist()
    inputs = torch.cat([batch.inputs for batch in batches])
    assert inputs.shape == (100, 3, 8, 8)
    assert inputs.dtype == torch.uint8
    assert np.array_equal(inputs.permute(0, 2, 3, 1).numpy(), pictures[ids])
    targets = torch.cat([batch.targets for batch in batches])
    assert targets.dtype == torch.int64
    assert targets.tolist() == [row % 3 for row in ids]
    assert made.stats.num_rows == 100


def test_jpegs_do_not_depend_on_threads(tmp_path: Path, build_store: Any) -> None:
    build_store(tmp_path / "s", encoding=Encoding.JPEG, size=32)
    source = Store.open(tmp_path / "s").split(Split.TRAIN)
    assert source is not None
    one, three = (list(reader(source, threads=n).epoch(0)) for n in (1, 3))
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(one, three, strict=True))


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 20),
    world=st.integers(1, 5),
    threads=st.integers(1, 3),
    prefetch=st.integers(1, 4),
    start=st.integers(0, 60),
)
def test_ranks_and_restarts_join_to_the_global_order(
    n: int, batch: int, world: int, threads: int, prefetch: int, start: int
) -> None:
    start = min(start, n)
    source = Counting(n)
    ranks = [
        list(
            reader(
                source,
                batch,
                rank=rank,
                world_size=world,
                threads=threads,
                prefetch_batches=prefetch,
            ).epoch(4, start)
        )
        for rank in range(world)
    ]
    seen: list[int] = []
    for parts in zip(*ranks, strict=True):  # every rank takes every step, even if its part is empty
        for part in parts:
            assert part.inputs.shape == (len(part.ids), 3, 2, 4)
            assert part.inputs.float().mean(dim=(1, 2, 3)).tolist() == part.ids.tolist()
            seen += part.ids.tolist()
    assert seen == reader(source, batch).order.samples(4, start, n).tolist()


@settings(max_examples=50)
@given(
    n=st.integers(1, 300),
    batch=st.integers(1, 80),
    world=st.integers(1, 3),
    start=st.integers(0, 300),
    has_targets=st.booleans(),
)
def test_features_copied_in_one_go_come_in_the_batches_of_the_order(
    n: int, batch: int, world: int, start: int, has_targets: bool
) -> None:
    start = min(start, n)
    rows = torch.arange(n)
    targets = rows if has_targets else None
    held = Features(features=rows.unsqueeze(1).float(), targets=targets, seconds=0.0)
    source = HeldFeatures(Counting(n), held)
    wanted = reader(source, batch).order.samples(4, start, n)
    ranks = [reader(source, batch, rank=rank, world_size=world) for rank in range(world)]
    steps = list(zip(*(rank.epoch(4, start) for rank in ranks), strict=True))
    assert [sum(len(part.ids) for part in parts) for parts in steps] == [
        min(batch, n - at) for at in range(start, n, batch)
    ]
    parts = [part for step in steps for part in step]
    assert [row for part in parts for row in part.ids.tolist()] == wanted.tolist()
    for part in parts:
        assert part.inputs.squeeze(1).tolist() == part.ids.tolist()
        assert (part.targets is not None) == has_targets
        assert part.targets is None or torch.equal(part.targets, part.ids)


def test_a_batch_stays_valid_as_long_as_it_is_held() -> None:
    held = list(reader(Counting(200), 4).epoch(0))
    for batch in held:
        assert batch.inputs.float().mean(dim=(1, 2, 3)).tolist() == batch.ids.tolist()


def test_part_of_a_batch_keeps_its_memory() -> None:
    rows: list[tuple[int, torch.Tensor]] = []
    for batch in reader(Counting(200), 4).epoch(0):
        rows.append((int(batch.ids[1]), batch.inputs[1]))
    assert all((picture == row).all() for row, picture in rows)


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    places = {batch.inputs.data_ptr() for batch in reader(Counting(400), 4).epoch(0)}
    assert len(places) <= 5  # 100 batches


def test_a_fraction_reads_only_its_rows_into_memory() -> None:
    made = reader(Counting(200), 8, fraction=0.1, where=Where.MEMORY)
    for epoch in range(2):
        batches = list(made.epoch(epoch))
        assert sum(len(batch.ids) for batch in batches) == made.num_examples == 20
        for batch in batches:
            assert batch.inputs.float().mean(dim=(1, 2, 3)).tolist() == batch.ids.tolist()
    assert made.stats.num_read == 20, "data in memory is not read"
    assert made.stats.num_bytes == 20 * 24
    assert made.stats.num_rows == 2 * 20


@pytest.mark.parametrize("how", ["exhaust", "close", "drop", "break", "fail"])
def test_threads_end_with_the_iterator(how: str) -> None:
    batches = reader(Counting(200, broken=(199,)), 4, threads=3).epoch(0)
    next(batches)
    assert num_threads() > 0
    if how == "exhaust":
        with pytest.raises(DataError):
            list(batches)
    elif how == "close":
        batches.close()
    elif how == "drop":
        del batches
    elif how == "break":
        for _ in batches:
            break
        del batches
    else:
        with pytest.raises(KeyboardInterrupt):
            batches.throw(KeyboardInterrupt())
    gc.collect()
    assert num_threads() == 0


def test_closing_the_reader_ends_its_iterators() -> None:
    made = reader(Counting(200), 4)
    batches = made.epoch(0)
    next(batches)
    made.close()
    assert num_threads() == 0
    assert list(batches) == []


def test_an_error_in_a_thread_reaches_the_consumer_at_its_batch() -> None:
    source = Counting(40)
    order = reader(source, 4).order.samples(0, 0, 40)
    source.broken = (int(order[22]),)
    batches = reader(source, 4, threads=2).epoch(0)
    good: list[Batch] = []
    with pytest.raises(DataError, match=f"row {order[22]}: cannot be read"):
        good.extend(batches)
    assert len(good) == 5
    assert num_threads() == 0


def test_endless_continues_with_the_next_epoch() -> None:
    made = reader(Counting(10), 4)
    batches = made.endless(epoch=2, start=8)
    sizes = [len(next(batches).ids) for _ in range(5)]
    batches.close()
    assert sizes == [2, 4, 4, 2, 4]


def test_where_is_memory_if_a_quarter_of_it_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Counting(100)  # 2,400 bytes decoded
    monkeypatch.setattr("stepladder.data.reading.memory.available_memory_bytes", lambda: 4 * 2400)
    assert resolve_where(source, Where.AUTO) is Where.MEMORY
    monkeypatch.setattr(
        "stepladder.data.reading.memory.available_memory_bytes", lambda: 4 * 2400 - 1
    )
    assert resolve_where(source, Where.AUTO) is Where.STREAM
    assert resolve_where(source, Where.AUTO, fraction=0.5) is Where.MEMORY
    assert resolve_where(source, Where.MEMORY) is Where.MEMORY


def test_choices_that_do_not_go_together_are_refused() -> None:
    for wrong in ({"rank": 2, "world_size": 2}, {"rank": -1}, {"world_size": 0}, {"batch": 0}):
        with pytest.raises(UsageError, match=r"rank is 2|rank is -1|world_size is 0|size is 0"):
            reader(Counting(5), **wrong)
    with pytest.raises(ValueError, match="position 6"):
        reader(Counting(5)).epoch(0, 6)
    with pytest.raises(ValueError, match="auto"):
        reader(Counting(5), where=Where.AUTO)
    from stepladder.data.reading.datasets import as_source

    with pytest.raises(UsageError, match="keeps the pictures of a store in memory"):
        reader(as_source([(1, 2), (3, 4)]), where=Where.MEMORY)


@pytest.mark.parametrize("name", ["mode", "sample", "where"])
def test_a_name_that_is_not_a_choice_is_reported_with_those_that_are(name: str) -> None:
    with pytest.raises(
        UsageError, match=rf"{name}: 'bogus' is not one of the possible values\n.*one of: auto, "
    ):
        reader(Counting(40), **{name: "bogus"})


def test_data_without_an_example_is_reported() -> None:
    with pytest.raises(UsageError, match="the dataset is empty"):
        reader(Counting(0))

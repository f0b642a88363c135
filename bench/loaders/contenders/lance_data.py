"""Lance: rows by number, its torch dataset, and LanceDB's StreamingDataset."""

from __future__ import annotations

import itertools
import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bench.loaders.contract import (
    BATCH,
    Batches,
    Epoch,
    Job,
    Kind,
    Line,
    Setting,
    Shuffle,
)

PACKAGE = "pylance"
WRITER = "lance_data"
LINES = (
    *(
        Line(
            name="Lance, take",
            kind=kind,
            shuffle=Shuffle.GLOBAL,
            settings=({"form": "take", "ahead": 0}, {"form": "take", "ahead": 2}),
        )
        for kind in (Kind.PIXELS, Kind.JPEG)
    ),
    Line(
        name="Lance, LanceDataset",
        kind=Kind.PIXELS,
        shuffle=Shuffle.SHARDS,
        settings=({"form": "dataset", "readahead": 4}, {"form": "dataset", "readahead": 16}),
    ),
)
WRITE_SETTINGS = ({"workers": 2},)
ROWS_PER_FRAGMENT = 256


def write(job: Job, setting: Setting) -> None:
    import lance
    import pyarrow as pa

    folder = job.place("lance_data")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # fixed-size binary: lists of uint8 were eight times slower to take, and other versions slower
    # too
    is_fixed = job.kind is Kind.PIXELS
    kind = pa.binary(3 * job.size * job.size) if is_fixed else pa.large_binary()
    schema = pa.schema([("picture", kind), ("number", pa.int64())])

    def batches() -> Iterator[Any]:
        items = job.items(threads=setting["workers"])
        while rows := list(itertools.islice(items, BATCH)):
            numbers = pa.array([idx for idx, _ in rows], pa.int64())
            pictures = pa.array([data for _, data in rows], kind)
            yield pa.RecordBatch.from_arrays([pictures, numbers], schema=schema)

    lance.write_dataset(
        pa.RecordBatchReader.from_batches(schema, batches()),
        str(folder / "pictures.lance"),
        max_rows_per_file=ROWS_PER_FRAGMENT,
        data_storage_version="2.1",
    )


def open_epochs(job: Job, setting: Setting) -> Epoch:
    import lance

    table = lance.dataset(str(job.place("lance_data") / "pictures.lance"))
    if setting["form"] == "dataset":
        return _stream(job, table, setting["readahead"])
    seeds = itertools.count()

    def take(ids: list[int]) -> tuple[Any, Any]:
        return pictures_of(job, table.take(ids))

    def epoch() -> Batches:
        order = np.random.default_rng(next(seeds)).permutation(job.num_pictures).tolist()
        batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        if not setting["ahead"]:
            yield from map(take, batches)
            return
        with ThreadPoolExecutor(setting["ahead"]) as pool:
            pending = deque(pool.submit(take, ids) for ids in batches[: setting["ahead"]])
            for ids in batches[setting["ahead"] :]:
                yield pending.popleft().result()
                pending.append(pool.submit(take, ids))
            for future in pending:
                yield future.result()

    return epoch


def pictures_of(job: Job, found: Any) -> tuple[Any, Any]:
    """Return the pixels of rows, as a view or decoded, and their numbers."""
    column = found["picture"]
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    numbers = np.asarray(found["number"])
    if job.kind is not Kind.PIXELS:
        return np.stack([job.decode(item.as_py()) for item in column]), numbers
    rows = np.frombuffer(column.buffers()[1], dtype=np.uint8)
    rows = rows.reshape(-1, job.size, job.size, 3)
    return rows[column.offset : column.offset + len(column)], numbers


def _stream(job: Job, table: Any, readahead: int) -> Epoch:
    from lance.sampler import ShardedFragmentSampler
    from lance.torch.data import LanceDataset

    seeds = itertools.count()

    def epoch() -> Batches:
        sampler = ShardedFragmentSampler(0, 1, randomize=True, seed=next(seeds))
        return LanceDataset(
            table,
            BATCH,
            sampler=sampler,
            batch_readahead=readahead,
            to_tensor_fn=lambda batch, **_: pictures_of(job, batch),
        )

    return epoch

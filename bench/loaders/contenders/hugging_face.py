"""Hugging Face datasets: the Arrow cache by index, and as a stream of shards."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.loaders.contenders.hugging_face_stream import stream
from bench.loaders.contract import (
    BATCH,
    Batches,
    Epoch,
    Job,
    Kind,
    Line,
    Setting,
    Shuffle,
    loader_options,
    workers_settings,
)

PACKAGE = "datasets"
WRITER = "hugging_face"
LINES = (
    Line(
        name="Hugging Face datasets, map-style",
        kind=Kind.PIXELS,
        shuffle=Shuffle.GLOBAL,
        settings=(
            {"form": "arrow", "workers": 0},
            {"form": "arrow", "workers": 2},
            {"form": "rows", "workers": 0},
            {"form": "rows", "workers": 2},
            {"form": "in memory", "workers": 0},
        ),
    ),
    *(
        Line(
            name="Hugging Face datasets, to_iterable_dataset",
            kind=kind,
            shuffle=Shuffle.SHARDS,
            settings=workers_settings(0, 1, 2, form="stream"),
        )
        for kind in (Kind.PIXELS, Kind.JPEG)
    ),
    Line(
        name="Hugging Face datasets, map-style",
        kind=Kind.JPEG,
        shuffle=Shuffle.GLOBAL,
        settings=workers_settings(0, 2, 3, form="rows"),
    ),
)
NUM_SHARDS = 12
WRITE_SETTINGS = ({"workers": 2}, {"workers": 1})


def write(job: Job, setting: Setting) -> None:
    """Write the Arrow cache."""
    import datasets

    folder = job.place("hugging_face")
    shutil.rmtree(folder, ignore_errors=True)
    datasets.disable_progress_bars()
    features = datasets.Features(
        {"picture": datasets.Value("large_binary"), "number": datasets.Value("int64")}
    )
    num = setting["workers"]
    made = datasets.Dataset.from_generator(
        _rows,
        features=features,
        cache_dir=str(folder / "cache"),
        gen_kwargs={"job": job, "parts": job.parts(2 * num)},
        num_proc=num if num > 1 else None,
        writer_batch_size=BATCH,
    )
    made.save_to_disk(str(folder / "saved"), num_proc=1)
    shutil.rmtree(folder / "cache")


def _rows(job: Job, parts: list[range]) -> Iterator[dict[str, Any]]:

    for part in parts:
        for idx, data in job.items(part, threads=0):
            yield {"picture": data, "number": idx}


class _Rows:
    """The examples of a batch, as a torch Dataset by index."""

    def __init__(self, table: Any, job: Job) -> None:
        self.table, self.job = table, job

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, idx: int) -> tuple[Any, int]:
        return self.__getitems__([idx])[0]

    def __getitems__(self, ids: list[int]) -> list[tuple[Any, int]]:
        found = self.table[ids]
        return [
            (self.job.tensor(data), number)
            for data, number in zip(found["picture"], found["number"], strict=True)
        ]


def open_epochs(job: Job, setting: Setting) -> Epoch:
    import datasets
    from torch.utils.data import DataLoader

    is_held = setting["form"] == "in memory"
    folder = job.place("hugging_face") / "saved"
    table = datasets.load_from_disk(str(folder), keep_in_memory=is_held)
    if setting["form"] == "stream":
        return stream(table.to_iterable_dataset(num_shards=NUM_SHARDS), job, setting)
    if setting["form"] == "rows":
        rows: Any = _Rows(table, job)
        loader = DataLoader(rows, batch_size=BATCH, shuffle=True, **loader_options(setting))
        return lambda: loader
    by_batch: Any = _Batches(table.with_format("arrow"), job.size)
    if setting["workers"]:
        from torch.utils.data import BatchSampler, RandomSampler

        sampler = BatchSampler(RandomSampler(by_batch), BATCH, drop_last=False)
        batches = DataLoader(by_batch, batch_size=None, sampler=sampler, **loader_options(setting))
        return lambda: batches
    seeds = itertools.count()

    def epoch() -> Batches:
        order = np.random.default_rng(next(seeds)).permutation(len(table))
        for start in range(0, len(order), BATCH):
            yield by_batch[order[start : start + BATCH].tolist()]

    return epoch


class _Batches:
    """Batches from Arrow's buffer, which the library gathered, without another copy."""

    def __init__(self, table: Any, size: int) -> None:
        self.table, self.size = table, size

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, ids: list[int]) -> tuple[Any, Any]:
        import torch

        found = self.table[ids].combine_chunks()
        column = found["picture"].chunk(0)
        values = np.frombuffer(column.buffers()[2], dtype=np.uint8)
        num_bytes = 3 * self.size * self.size
        start = column.offset * num_bytes
        rows = values[start : start + len(column) * num_bytes]
        pictures = rows.reshape(-1, self.size, self.size, 3)
        return torch.from_numpy(pictures), torch.tensor(found["number"].to_pylist())

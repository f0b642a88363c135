"""Hugging Face datasets: Parquet files as a stream."""

from __future__ import annotations

import itertools
from typing import Any

from bench.loaders.contract import (
    BATCH,
    BUFFER,
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
WRITER = "parquet_files"
LINES = (
    Line(
        name="Hugging Face datasets, streaming",
        kind=Kind.PIXELS,
        shuffle=Shuffle.SHARDS,
        settings=workers_settings(0, 1, 2),
    ),
    Line(
        name="Hugging Face datasets, streaming",
        kind=Kind.JPEG,
        shuffle=Shuffle.SHARDS,
        settings=workers_settings(0, 1, 2),
    ),
)


def open_epochs(job: Job, setting: Setting) -> Epoch:
    import datasets

    files = sorted(str(path) for path in job.place("parquet_files").glob("*.parquet"))
    table = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    return stream(table, job, setting)


def stream(table: Any, job: Job, setting: Setting) -> Epoch:
    """Shuffle the shards and rows in a buffer, and load batches."""
    from torch.utils.data import DataLoader

    rows: Any = table.shuffle(seed=0, buffer_size=BUFFER)
    # decoded where the batch is made: in the workers, if there are any
    loader = DataLoader(rows, batch_size=BATCH, collate_fn=_Collate(job), **loader_options(setting))
    epochs = itertools.count()

    def epoch() -> Batches:
        rows.set_epoch(next(epochs))
        return loader

    return epoch


class _Collate:
    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        from torch.utils.data import default_collate

        return default_collate([(self.job.tensor(row["picture"]), row["number"]) for row in rows])

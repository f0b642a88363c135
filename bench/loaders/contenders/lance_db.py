"""LanceDB's StreamingDataset on the table that Lance wrote."""

from __future__ import annotations

import itertools
from typing import Any

from bench.loaders.contenders.lance_data import pictures_of
from bench.loaders.contract import BATCH, Batches, Epoch, Job, Kind, Line, Setting, Shuffle

PACKAGE = "lancedb"
WRITER = "lance_data"
LINES = tuple(
    Line(
        name="LanceDB StreamingDataset",
        kind=kind,
        shuffle=Shuffle.GLOBAL,
        settings=(
            {"workers": 0, "depth": 1},
            {"workers": 0, "depth": 4},
            {"workers": 2, "depth": 2},
        ),
    )
    for kind in (Kind.PIXELS, Kind.JPEG)
)


class _Transform:
    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, rows: Any) -> list[tuple[Any, int]]:
        import torch

        pictures, numbers = pictures_of(self.job, rows)
        return list(zip(torch.from_numpy(pictures), numbers.tolist(), strict=True))


def open_epochs(job: Job, setting: Setting) -> Epoch:
    import lancedb
    from lancedb.streaming import StreamingDataset
    from torch.utils.data import DataLoader

    table = lancedb.connect(str(job.place("lance_data"))).open_table("pictures")
    epochs = itertools.count()

    def epoch() -> Batches:
        data = StreamingDataset(
            table,
            num_splits=max(1, setting["workers"]),
            epoch=next(epochs),
            read_batch_size=BATCH,
            io_queue_depth=setting["depth"],
            transform=_Transform(job),
            transform_queue_depth=4,
        )
        workers = setting["workers"]
        context = "spawn" if workers else None  # Lance is not fork-safe
        return DataLoader(
            data, batch_size=BATCH, num_workers=workers, multiprocessing_context=context
        )

    return epoch

"""LitData: chunks written by optimize, read by StreamingDataLoader."""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

from bench.loaders.contenders.torchvision_ops import allow_torchvision
from bench.loaders.contract import (
    BATCH,
    Epoch,
    Job,
    Kind,
    Line,
    Setting,
    Shuffle,
    loader_options,
    workers_settings,
)

PACKAGE = "litdata"
WRITER = "lit_data"
LINES = tuple(
    Line(
        name="LitData",
        kind=kind,
        shuffle=Shuffle.SHARDS,
        settings=(*workers_settings(0, 1, 2), *workers_settings(2, prefetch=4)),
    )
    for kind in (Kind.PIXELS, Kind.JPEG)
)
WRITE_SETTINGS = ({"workers": 2}, {"workers": 1})


def write(job: Job, setting: Setting) -> None:
    allow_torchvision()
    import litdata

    folder = job.place("lit_data")
    shutil.rmtree(folder, ignore_errors=True)
    litdata.optimize(
        fn=partial(_sample, job),
        inputs=list(range(job.num_pictures)),
        output_dir=str(folder),
        chunk_bytes="64MB",
        num_workers=setting["workers"],
    )


def _sample(job: Job, idx: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    return {"picture": job.item(idx), "number": idx}


def open_epochs(job: Job, setting: Setting) -> Epoch:
    allow_torchvision()
    import litdata

    class Pictures(litdata.StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return job.tensor(sample["picture"]), sample["number"]

    data = Pictures(str(job.place("lit_data")), shuffle=True, seed=0, max_cache_size="50GB")
    loader = litdata.StreamingDataLoader(data, batch_size=BATCH, **loader_options(setting))
    return lambda: loader

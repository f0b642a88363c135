"""MosaicML Streaming: MDS shards."""

from __future__ import annotations

import shutil
from pathlib import Path
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
    in_processes,
    loader_options,
)

PACKAGE = "mosaicml-streaming"
WRITER = "mosaic"
LINES = tuple(
    Line(
        name="MosaicML Streaming",
        kind=kind,
        shuffle=Shuffle.SHARDS,
        settings=(
            {"workers": 0, "algorithm": "py1e"},
            {"workers": 2, "algorithm": "py1e"},
            {"workers": 2, "algorithm": "py1s"},
            {"workers": 2, "algorithm": "py1e", "prefetch": 4},
        ),
    )
    for kind in (Kind.PIXELS, Kind.JPEG)
)
WRITE_SETTINGS = ({"form": "threads"}, {"form": "processes"})
COLUMNS = {"picture": "bytes", "number": "int"}


def write(job: Job, setting: Setting) -> None:
    allow_torchvision()
    from streaming.base.util import merge_index

    folder = job.place("mosaic")
    shutil.rmtree(folder, ignore_errors=True)
    if setting["form"] == "threads":
        _write(job, folder, range(job.num_pictures), threads=2)
    else:
        folder.mkdir(parents=True)
        in_processes(_write_part, job, folder, 2)
        merge_index(str(folder), keep_local=True)


def _write_part(job: Job, folder: Path, part_idx: int, part: range) -> None:
    _write(job, folder / str(part_idx), part, threads=0)


def _write(job: Job, folder: Path, part: range, *, threads: int) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns=COLUMNS) as writer:
        for idx, data in job.items(part, threads=threads):
            writer.write({"picture": data, "number": idx})


def open_epochs(job: Job, setting: Setting) -> Epoch:
    allow_torchvision()
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    class Pictures(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return job.tensor(sample["picture"]), sample["number"]

    clean_stale_shared_memory()
    data = Pictures(
        local=str(job.place("mosaic")),
        shuffle=True,
        shuffle_algo=setting["algorithm"],
        batch_size=BATCH,
        num_canonical_nodes=1,
    )
    loader = DataLoader(data, batch_size=BATCH, **loader_options(setting))
    return lambda: loader

"""WebDataset: tar files, shuffled by shard and buffer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.loaders.contract import (
    BATCH,
    BUFFER,
    Epoch,
    Job,
    Kind,
    Line,
    Setting,
    Shuffle,
    in_processes,
    loader_options,
    workers_settings,
)

PACKAGE = "webdataset"
WRITER = "web_dataset"
LINES = tuple(
    Line(
        name="WebDataset",
        kind=kind,
        shuffle=Shuffle.SHARDS,
        settings=(*workers_settings(0, 1, 2), *workers_settings(2, prefetch=4)),
    )
    for kind in (Kind.PIXELS, Kind.JPEG)
)
WRITE_SETTINGS = ({"form": "threads"}, {"form": "processes"})
PER_SHARD = 256


def write(job: Job, setting: Setting) -> None:
    folder = job.place("web_dataset")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if setting["form"] == "threads":
        _write_part(job, folder, 0, range(job.num_pictures), threads=2)
    else:
        in_processes(_write_part, job, folder, 2)


def _write_part(job: Job, folder: Path, part_idx: int, part: range, threads: int = 0) -> None:
    import webdataset as wds

    pattern = str(folder / f"{part_idx}-%03d.tar")
    with wds.ShardWriter(pattern, maxcount=PER_SHARD, verbose=0) as sink:
        for idx, data in job.items(part, threads=threads):
            sink.write({"__key__": f"{idx:06d}", "picture": data})


class _Decode:
    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, sample: dict[str, Any]) -> tuple[Any, int]:
        return self.job.tensor(sample["picture"]), int(sample["__key__"])


def open_epochs(job: Job, setting: Setting) -> Epoch:
    import webdataset as wds

    shards = sorted(str(path) for path in job.place("web_dataset").glob("*.tar"))
    data = (
        wds.WebDataset(shards, shardshuffle=len(shards), empty_check=False)
        .shuffle(BUFFER)
        .map(_Decode(job))
        .batched(BATCH, collation_fn=_collate)
    )
    loader = wds.WebLoader(data, batch_size=None, **loader_options(setting))

    def epoch() -> Iterator[Any]:
        return iter(loader)

    return epoch


def _collate(samples: list[tuple[Any, int]]) -> Any:
    from torch.utils.data import default_collate

    return default_collate(samples)

"""The limit of decoding: the shared function on JPEGs in memory, on one core, batch by batch."""

from __future__ import annotations

import numpy as np

from loader_contenders.contract import BATCH, Batches, Epoch, Job, Kind, Line, Setting, Shuffle

PACKAGE = None
WRITER = None
LINES = tuple(
    Line(name="decode, one core", kind=kind, shuffle=Shuffle.NONE, settings=({},))
    for kind in (Kind.JPEG, Kind.PRESIZED)
)


def open_epochs(job: Job, _: Setting) -> Epoch:

    files = [job.item(idx) for idx in range(job.num_pictures)]
    target = np.empty((BATCH, job.size, job.size, 3), dtype=np.uint8)

    def epoch() -> Batches:
        for start in range(0, job.num_pictures, BATCH):
            ids = range(start, min(start + BATCH, job.num_pictures))
            for row, idx in zip(target, ids, strict=False):
                row[...] = job.decode(files[idx])
            yield target[: len(ids)], ids

    return epoch

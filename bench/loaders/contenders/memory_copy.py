"""The limit of any loader that fills a buffer: copying a batch that is in cache."""

from __future__ import annotations

import numpy as np

from bench.loaders.contract import BATCH, Batches, Epoch, Job, Kind, Line, Setting, Shuffle

PACKAGE = None
WRITER = None
LINES = (Line(name="memcpy, hot", kind=Kind.PIXELS, shuffle=Shuffle.NONE, settings=({},)),)


def open_epochs(job: Job, _: Setting) -> Epoch:
    first = [job.item(idx % job.num_pictures) for idx in range(BATCH)]
    source = np.frombuffer(b"".join(first), dtype=np.uint8).reshape(BATCH, job.size, job.size, 3)
    target = np.empty_like(source)
    numbers = np.arange(job.num_pictures)

    def epoch() -> Batches:
        for start in range(0, job.num_pictures, BATCH):
            ids = numbers[start : start + BATCH]
            np.copyto(target[: len(ids)], source[: len(ids)])
            yield target[: len(ids)], ids

    return epoch

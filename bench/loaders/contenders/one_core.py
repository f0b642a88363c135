"""The limits of decoding: the shared function on JPEGs in memory, on one core and on two.

Two cores means a process per core, with nothing shared: this includes contention of the machine's
cores, but not of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from bench.loaders.contract import BATCH, Batches, Epoch, Job, Kind, Line, Setting, Shuffle

PACKAGE = None
WRITER = None
LINES = tuple(
    Line(name=name, kind=kind, shuffle=Shuffle.NONE, settings=({"processes": num},))
    for kind in (Kind.JPEG, Kind.PRESIZED)
    for name, num in (("decode, one core", 1), ("decode, a process a core", 2))
)


def open_epochs(job: Job, setting: Setting) -> Epoch:

    files = [job.item(idx) for idx in range(job.num_pictures)]
    target = np.empty((BATCH, job.size, job.size, 3), dtype=np.uint8)

    def batches(part: range) -> Batches:
        for start in range(0, len(part), BATCH):
            ids = part[start : start + BATCH]
            for row, idx in zip(target, ids, strict=False):
                row[...] = job.decode(files[idx])
            yield target[: len(ids)], ids

    def epoch() -> Batches:
        own, *others = job.parts(setting["processes"])
        children = [_begin(batches, part) for part in others]
        yield from batches(own)
        for child, part in zip(children, others, strict=True):
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                raise RuntimeError("the second process failed")
            for start in range(0, len(part), BATCH):  # only counted; pixels stay there
                ids = part[start : start + BATCH]
                yield target[: len(ids)], ids

    return epoch


def _begin(batches: Callable[[range], Batches], part: range) -> int:
    """Decode one part in a process of its own."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for _ in batches(part):
                pass
            status = 0
        finally:
            os._exit(status)
    return child

"""The limit of preparing: decode directly into a row group's buffer, and write it in one call.

One process per core, and row groups of 8 pictures, so that a write is 2 MB: the fastest of several
variants. It has no hashes, checksums, index, near-duplicates or fsync, all of which ours has.
`bound_hashed` adds hashes and fsync: the cost of a file's sha256 and of writing it to disk.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path

import numpy as np

from bench.loaders.contract import Job, Setting, in_processes

PACKAGE = None
WRITER = "bound"
LINES = ()
WRITE_SETTINGS = ({"workers": 2, "is_hashed": False},)
GROUP = 8


def write(job: Job, setting: Setting) -> None:
    folder = job.place("bound")
    folder.mkdir(parents=True, exist_ok=True)
    write_part = partial(_write_part, is_hashed=setting["is_hashed"])
    in_processes(write_part, job, folder, setting["workers"])


def _write_part(job: Job, folder: Path, part_idx: int, part: range, *, is_hashed: bool) -> None:
    import torch

    from stepladder.config.choices import Fit
    from stepladder.data.decoding.decode import examine_content
    from stepladder.machine.allocator import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    block = np.empty((GROUP, job.size, job.size, 3), dtype=np.uint8)
    digest = hashlib.sha256()
    with (folder / f"{part_idx}.bin").open("wb", buffering=0) as file:
        for start in range(0, len(part), GROUP):
            ids = part[start : start + GROUP]
            group = block[: len(ids)]
            group[:] = 255
            for row, idx in zip(group, ids, strict=True):
                data = job.photo(idx).read_bytes()
                content = examine_content(data, size=job.size, fit=Fit.PAD).pixels
                height, width = content.shape[:2]
                top, left = (job.size - height) // 2, (job.size - width) // 2
                row[top : top + height, left : left + width] = content
            if is_hashed:
                digest.update(group.data)
            file.write(group.data)
        if is_hashed:
            os.fsync(file.fileno())

"""The limit of preparing: decode straight into a row group's buffer, and write it with one write.

Writes only. It has no hashes, checksums, index, near-duplicates or sync, all of which ours has.
`bound_hashed` has the first and the last: what a file's sha256 and its way to the disk take.
"""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from loader_contenders.contract import BATCH, Job, Setting

PACKAGE = None
WRITER = "bound"
LINES = ()
WRITE_SETTINGS = ({"workers": 2, "is_hashed": False},)


class _File:
    """The file of one thread, and the memory of its row group."""

    def __init__(self, path: Path, job: Job) -> None:
        self.file = path.open("wb", buffering=0)
        # fresh memory each time would cost page faults
        self.block = np.empty((BATCH, job.size, job.size, 3), dtype=np.uint8)
        self.digest = hashlib.sha256()


def write(job: Job, setting: Setting) -> None:

    from stepladder.config.choices import Fit
    from stepladder.data.decode import decode_content

    folder = job.place("bound")
    folder.mkdir(parents=True, exist_ok=True)
    own = threading.local()
    files: list[_File] = []

    def write_group(start: int) -> None:
        ids = range(start, min(start + BATCH, job.num_pictures))
        if not hasattr(own, "file"):
            own.file = _File(folder / f"{threading.get_ident()}.bin", job)
            files.append(own.file)
        group = own.file.block[: len(ids)]
        group[:] = 255
        for row, idx in zip(group, ids, strict=True):
            data = job.photo(idx).read_bytes()
            content = decode_content(data, size=job.size, fit=Fit.PAD)
            height, width = content.shape[:2]
            top, left = (job.size - height) // 2, (job.size - width) // 2
            row[top : top + height, left : left + width] = content
        if setting["is_hashed"]:
            own.file.digest.update(group.data)
        own.file.file.write(group.data)

    with ThreadPoolExecutor(setting["workers"]) as pool:
        list(pool.map(write_group, range(0, job.num_pictures, BATCH)))
    for one in files:
        if setting["is_hashed"]:
            os.fsync(one.file.fileno())
        one.file.close()

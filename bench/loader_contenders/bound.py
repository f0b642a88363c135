"""The limit of preparing: decode straight into a row group's buffer, and write it with one write.

Writes only. It has no hashes, checksums, index, near-duplicates or sync, all of which ours has.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from loader_contenders.contract import BATCH, Job, Setting

PACKAGE = None
WRITER = "bound"
LINES = ()
WRITE_SETTINGS = ({"workers": 2},)


def write(job: Job, setting: Setting) -> None:

    from stepladder.config.choices import Fit
    from stepladder.data.decode import decode_content

    folder = job.place("bound")
    folder.mkdir(parents=True, exist_ok=True)
    row_bytes = 3 * job.size * job.size
    with (folder / "flat.bin").open("wb") as file:
        blocks = threading.local()

        def write_group(start: int) -> None:
            ids = range(start, min(start + BATCH, job.num_pictures))
            if not hasattr(blocks, "block"):  # fresh memory each time would cost page faults
                blocks.block = np.empty((BATCH, job.size, job.size, 3), dtype=np.uint8)
            group = blocks.block[: len(ids)]
            group[:] = 255
            for row, idx in zip(group, ids, strict=True):
                data = job.photo(idx).read_bytes()
                content = decode_content(data, size=job.size, fit=Fit.PAD)
                height, width = content.shape[:2]
                top, left = (job.size - height) // 2, (job.size - width) // 2
                row[top : top + height, left : left + width] = content
            os.pwrite(file.fileno(), group.data, start * row_bytes)

        with ThreadPoolExecutor(setting["workers"]) as pool:
            list(pool.map(write_group, range(0, job.num_pictures, BATCH)))

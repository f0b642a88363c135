"""Measure how fast a store is read from disk, without the page cache."""

from __future__ import annotations

import os
import time
from typing import Final

from stepladder.data.store.store import Store
from stepladder.task.contract import Task

MAX_BYTES: Final = 1 << 26
"""Maximum bytes to read; each piece is evicted right before, so that all is cached afterwards."""
_LEAST_BYTES: Final = 1 << 20
"""With fewer bytes, opening and the first seek would dominate."""
_PIECE: Final = 1 << 22  # larger than the read-ahead
_LOOK_S: Final = 0.5


def measure_disk(task: Task) -> float | None:
    """Read a part of the store's largest file with its pages evicted; return bytes per second.

    Reads sequentially: random access to single images is slower on a hard disk. None if there is no
    store, it is tiny, or the system cannot evict pages.
    """
    store = getattr(task, "store", None)
    if not isinstance(store, Store) or not hasattr(os, "posix_fadvise"):
        return None
    paths = [store.path / info.name for info in store.manifest.shards]
    try:
        path = max(paths, key=lambda one: one.stat().st_size, default=None)
        return None if path is None else _rate(os.open(path, os.O_RDONLY))
    except OSError:
        return None


def _rate(handle: int) -> float | None:
    buffer = bytearray(_PIECE)
    try:
        num_bytes = min(MAX_BYTES, os.fstat(handle).st_size)
        if num_bytes < _LEAST_BYTES:
            return None
        num_read = 0
        started = time.perf_counter()
        while num_read < num_bytes:
            os.posix_fadvise(handle, num_read, _PIECE, os.POSIX_FADV_DONTNEED)
            got = os.preadv(handle, [buffer], num_read)
            num_read += got
            if got == 0 or time.perf_counter() - started > _LOOK_S:
                break
        return num_read / max(time.perf_counter() - started, 1e-9)
    finally:
        os.close(handle)

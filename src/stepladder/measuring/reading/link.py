"""Measure how fast the files of a store are read from an object store."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from functools import partial
from typing import Final

from stepladder.data.remote.objects import ObjectStore
from stepladder.data.remote.parallel import run_all
from stepladder.data.remote.places import ObjectPlace, object_place
from stepladder.data.remote.s3 import S3Objects
from stepladder.data.store.store import Store
from stepladder.errors import StepladderError
from stepladder.task.contract import Task

_MAX_BYTES: Final = 1 << 27
_LOOK_S: Final = 1.0
_CONNECTIONS: Final = 16  # about as many as a reader uses; a single one rarely saturates a link


def measure_link(task: Task) -> float | None:
    """Read a part of the store's largest file without the cache; return bytes per second.

    None if the store is local, or the object store does not answer: the reader reports its errors.
    """
    store = getattr(task, "store", None)
    place = object_place(store.path) if isinstance(store, Store) else None
    if place is None or not isinstance(store, Store):
        return None
    info = max(store.manifest.shards, key=lambda one: one.size_bytes, default=None)
    if info is None:
        return None
    try:
        with closing(S3Objects(connections=_CONNECTIONS)) as objects:
            return link_rate(objects, place.join(info.name), info.size_bytes)
    except StepladderError:
        return None


def link_rate(objects: ObjectStore, place: ObjectPlace, size_bytes: int) -> float | None:
    """Read an object with several connections for at most a second; return bytes per second."""
    wanted = min(size_bytes, _MAX_BYTES)
    step = max(1, -(-wanted // _CONNECTIONS))
    objects.info(place)  # the first request also creates the client, which is slow
    lock = threading.Lock()
    num_read = 0
    started = time.perf_counter()

    def take(start: int) -> None:
        nonlocal num_read
        for chunk in objects.stream(place, start, min(start + step, wanted)):
            with lock:
                num_read += len(chunk)
            if time.perf_counter() - started > _LOOK_S:
                return

    run_all((partial(take, start) for start in range(0, wanted, step)), num_threads=_CONNECTIONS)
    return num_read / max(time.perf_counter() - started, 1e-9) if num_read else None

"""How fast the files of a store come from the object store in which they lie."""

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
_CONNECTIONS: Final = 16  # about as many as a reader keeps busy; one alone is rarely all of a link


def measure_link(task: Task) -> float | None:
    """Read a part of the store's largest file, past the cache; gives bytes a second.

    None where the store lies on this machine, or the object store does not answer: what it says
    is told by the reader.
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
    """Read an object by several connections, for a second at the most; gives bytes a second."""
    wanted = min(size_bytes, _MAX_BYTES)
    step = max(1, -(-wanted // _CONNECTIONS))
    objects.info(place)  # the first request also makes the client, which takes its time
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

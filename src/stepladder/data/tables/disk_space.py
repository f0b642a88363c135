"""Check the disk space for a DataFrame before Spark writes it and while it writes."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.data.sizes import say_size
from stepladder.errors import ResourceError
from stepladder.machine import disk_free_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEPT_FREE_FRAC = 0.01
_LOOK_S = 1.0
_ENDING_S = 10.0
_SETTLING_S = 0.2
_MAX_LOOK_FRAC = 0.05  # maximum fraction of the time spent on checking a slow folder
_CURE = "Select fewer columns or rows, use a cache_dir on a larger disk, or raise max_bytes."


@dataclass(frozen=True)
class Room:
    """The available disk space.

    Attributes:
        cache: the folder.
        num_bytes: maximum size of the files.
        whose: words after the size that name the limit, such as "are free".
    """

    cache: Path
    num_bytes: int
    whose: str

    def require(self, need_bytes: int) -> None:
        """Check an estimated size before anything is written.

        Raises:
            ResourceError: if it exceeds the available space.
        """
        if need_bytes > self.num_bytes:
            raise ResourceError(
                f"the DataFrame needs about {say_size(need_bytes)}, but {say_size(self.num_bytes)} "
                f"{self.whose}",
                where=str(self.cache),
                why="Nothing was written.",
                fix=_CURE,
            )

    @contextlib.contextmanager
    def kept(self, frame: DataFrame, folder: Path) -> Iterator[None]:
        """Cancel the Spark job of the block if the folder that it writes exceeds the limit.

        Raises:
            ResourceError: if it did.
        """
        watch = _Watch(frame, folder, self.num_bytes)
        try:
            with watch.looking():
                yield
        except Exception:
            if not watch.is_over:
                raise
        if watch.is_over or folder_bytes(folder) > self.num_bytes:
            raise ResourceError(
                f"the DataFrame needs more than the {say_size(self.num_bytes)} that {self.whose}",
                where=str(self.cache),
                why="Its size was estimated from the first rows, and later rows are larger. "
                "The partial output was removed.",
                fix=_CURE,
            )


def find_room(cache: Path, max_bytes: int | None) -> Room:
    """Return the space that may be used: max_bytes, or the free space if that is less.

    Args:
        max_bytes: limit set by the user; None: the free space.
    """
    free = int(disk_free_bytes(cache) / (1 + _KEPT_FREE_FRAC))
    if max_bytes is not None and max_bytes < free:
        return Room(cache, max_bytes, "are allowed")
    return Room(cache, free, "are free")


class _Watch:
    """Watches the size of a folder while Spark writes to it.

    Attributes:
        is_over: whether it exceeded the limit and the write was cancelled.
    """

    def __init__(self, frame: DataFrame, folder: Path, max_bytes: int) -> None:
        self.is_over = False
        self._context = frame.sparkSession.sparkContext
        self._folder = folder
        self._max_bytes = max_bytes
        self._tag = f"stepladder-{uuid.uuid4().hex}"
        self._done = threading.Event()

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Watch the folder in a thread during the block."""
        thread = threading.Thread(target=self._look, name="stepladder-room", daemon=True)
        self._context.addJobTag(self._tag)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()
            self._context.removeJobTag(self._tag)

    def _look(self) -> None:
        pause_s = _LOOK_S
        while not self._done.wait(pause_s):
            began_s = time.monotonic()
            if folder_bytes(self._folder) > self._max_bytes:
                self.is_over = True
                self._context.cancelJobsWithTag(self._tag)
                return
            pause_s = max(_LOOK_S, (time.monotonic() - began_s) / _MAX_LOOK_FRAC)


def remove_written(folder: Path) -> None:
    """Remove a folder that Spark was writing to.

    Cancelled tasks may run a moment longer, write to the folder and create it again.
    """
    until_s = time.monotonic() + _ENDING_S
    while time.monotonic() < until_s:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_SETTLING_S)
        if not folder.exists():
            return


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files in a folder, including subfolders."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # renamed or removed in the meantime
                total += (Path(parent) / name).stat().st_size
    return total

"""Room for what is written of a DataFrame: compared before, and watched while Spark writes."""

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
_MAX_LOOK_FRAC = 0.05  # of the time goes into looking, however slow the folder is
_CURE = "Select fewer columns or rows, give a cache_dir on a larger disk, or a larger max_bytes."


@dataclass(frozen=True)
class Room:
    """What may be taken.

    Attributes:
        cache: folder that it is in.
        num_bytes: of files.
        whose: what sets this limit, as words.
    """

    cache: Path
    num_bytes: int
    whose: str

    def require(self, need_bytes: int) -> None:
        """Compare a forecast, before anything is written.

        Raises:
            ResourceError: if it is more.
        """
        if need_bytes > self.num_bytes:
            raise ResourceError(
                f"the DataFrame takes about {say_size(need_bytes)}, and {say_size(self.num_bytes)} "
                f"{self.whose}",
                where=str(self.cache),
                why="Nothing was written.",
                fix=_CURE,
            )

    @contextlib.contextmanager
    def kept(self, frame: DataFrame, folder: Path) -> Iterator[None]:
        """Cancel what Spark writes into a folder within the block where it gets too large.

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
                f"the DataFrame takes more than the {say_size(self.num_bytes)} that {self.whose}",
                where=str(self.cache),
                why="Other rows are larger than the first ones, from which its size was forecast. "
                "What was written of it was removed.",
                fix=_CURE,
            )


def find_room(cache: Path, max_bytes: int | None) -> Room:
    """Return what may be taken: what the user allows, or less where less is free.

    Args:
        max_bytes: None: what is free.
    """
    free = int(disk_free_bytes(cache) / (1 + _KEPT_FREE_FRAC))
    if max_bytes is not None and max_bytes < free:
        return Room(cache, max_bytes, "are allowed")
    return Room(cache, free, "are free")


class _Watch:
    """Looks at the size of a folder while Spark writes into it.

    Attributes:
        is_over: whether it got too large, and the write was cancelled.
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
        """Look within the block, from a thread."""
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
    """Remove a folder that Spark wrote to until just now.

    Tasks that were cancelled end a moment later, and until then may write to it and make it anew.
    """
    until_s = time.monotonic() + _ENDING_S
    while time.monotonic() < until_s:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_SETTLING_S)
        if not folder.exists():
            return


def folder_bytes(folder: Path) -> int:
    """Add up the files of a folder and of those below, as they are now."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # renamed or removed meanwhile
                total += (Path(parent) / name).stat().st_size
    return total

"""Whether a cluster gives a job anything to run on."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from stepladder.data.spark.session import is_of_spark
from stepladder.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from pyspark import SparkStageInfo, StatusTracker
else:
    SparkStageInfo = StatusTracker = Any

SLOT_WAIT = "STEPLADDER_SLOT_WAIT_S"
_SLOT_WAIT_S = 60.0


class Slots:
    """Looks whether any task runs, or has run, since a job began.

    Args:
        tracker: of the context that runs the job.
        wait_s: how long nothing may run.
    """

    def __init__(self, tracker: StatusTracker, wait_s: float) -> None:
        self._tracker, self._wait_s = tracker, wait_s
        self._began_s = time.monotonic()
        self._has_run = False

    def require(self) -> None:
        """Be sure that a task has run in time; a job without a slot would wait for ever.

        To be called from the start: a stage that has ended is no longer seen.

        Raises:
            ResourceError: if none has.
        """
        if self._has_run:
            return
        stages = self._stages()
        self._has_run = any(info.numActiveTasks + info.numCompletedTasks for info in stages)
        is_late = time.monotonic() - self._began_s >= self._wait_s
        if stages and is_late and not self._has_run:
            raise ResourceError(
                f"no executor took a task in {self._wait_s:.0f} s: 1 slot is needed, and the "
                "cluster gives none",
                where="spark",
                fix="Ask for executors that it has (spark.executor.cores, spark.executor.memory), "
                f"wait longer for them ({SLOT_WAIT}=600), or use --engine local.",
            )

    def _stages(self) -> list[SparkStageInfo]:
        try:
            found = map(self._tracker.getStageInfo, self._tracker.getActiveStageIds())
            return [info for info in found if info is not None]
        except Exception as error:
            if not is_of_spark(error) and not isinstance(error, OSError):
                raise
            return []  # a JVM that is gone ends the job, and the job says why


def slot_wait_s() -> float:
    """Give how long a job may wait for its first task.

    Raises:
        UsageError: if the environment names no number of seconds.
    """
    text = os.environ.get(SLOT_WAIT)
    if not text:
        return _SLOT_WAIT_S
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = 0.0
    if not wait_s > 0:
        raise UsageError(
            f"{text!r} is no number of seconds", where=SLOT_WAIT, fix=f"Type: {SLOT_WAIT}=600"
        )
    return wait_s

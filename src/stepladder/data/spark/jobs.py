"""Run work on executors: watched from here, stopped from here, and what goes wrong in words."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stepladder.data.spark.session import is_of_spark, quiet_pandas
from stepladder.errors import ResourceError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkStageInfo, StatusTracker
    from pyspark.sql import DataFrame, SparkSession

    Batches = Iterator[pa.RecordBatch]
else:
    DataFrame = SparkSession = Batches = SparkStageInfo = StatusTracker = Any

SCHEMA = "task long, answer string"
_POLL_S = 0.2
_STOP_S = 30.0
_BEFORE_JAVA = r"^(: |Caused by: )"  # the name of a class that Java threw
_GO_ON = "The same command goes on from what is finished."

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
    """Return how long a job may wait for its first task.

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


def run_tasks(
    spark: SparkSession,
    num_tasks: int,
    work: Callable[[int], str | None],
    *,
    on_poll: Callable[[], None] = lambda: None,
) -> dict[int, str | None]:
    """Call work(number) on the executors for each number, and give the answers.

    Args:
        spark: a classic session.
        num_tasks: how many; each is a task of Spark, retried by it where its executor is lost.
        work: called there; a module-level function, or one bound with `functools.partial`.
        on_poll: called here, again and again meanwhile; what it raises ends the work.

    Raises:
        ResourceError: if Spark gives up, or has no slot for too long.
    """

    def call(batches: Batches) -> Batches:
        import pyarrow as pa

        for batch in batches:
            tasks = batch.column(0).to_pylist()
            answers = [work(task) for task in tasks]
            columns = [pa.array(tasks, pa.int64()), pa.array(answers, pa.string())]
            yield pa.RecordBatch.from_arrays(columns, ["task", "answer"])

    if num_tasks == 0:
        return {}
    with quiet_pandas():
        frame = spark.range(0, num_tasks, 1, num_tasks).mapInArrow(call, SCHEMA)
    table = collect(spark, frame, on_poll=on_poll)
    return dict(zip(*(table.column(name).to_pylist() for name in ("task", "answer")), strict=True))


def collect(
    spark: SparkSession, frame: DataFrame, *, on_poll: Callable[[], None] = lambda: None
) -> pa.Table:
    """Return the rows of a frame; `on_poll` is called meanwhile, and what it raises ends the job.

    Raises:
        ResourceError: if Spark gives up, or has no slot for too long.
    """
    from pyspark import InheritableThread

    tag = f"stepladder-{uuid.uuid4().hex}"
    tables: list[pa.Table] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            spark.sparkContext.addJobTag(tag)
            tables.append(frame.toArrow())
        except Exception as error:
            errors.append(error)

    thread = InheritableThread(target=work, daemon=True, session=spark)
    slots = Slots(spark.sparkContext.statusTracker(), slot_wait_s())
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            on_poll()
            slots.require()
    except BaseException:
        with contextlib.suppress(Exception):  # a JVM that is gone stops by itself
            spark.sparkContext.cancelJobsWithTag(tag)
        thread.join(_STOP_S)
        raise
    if errors:
        raise explain(errors[0], master=spark.sparkContext.master) from errors[0]
    on_poll()
    return tables[0]


def explain(error: Exception, *, master: str | None = None) -> ResourceError:
    """Say in one line why Spark gave up, and what to do.

    Args:
        error: as Spark raised it.
        master: of the session; executors of a local one can run the Python that this is.
    """
    text = str(error)
    if re.search(r"No module named '(stepladder|torch|simplejpeg|pyarrow|numpy)", text):
        missing = re.findall(r"No module named '([\w.]+)'", text)[-1]
        if master is not None and master.startswith("local"):
            return _other_python(f"Spark runs another Python than this, which lacks {missing}")
        return ResourceError(
            f"the executors' Python lacks {missing}",
            where="spark",
            fix="Install stepladder there (pip install stepladder), or name a Python that has it: "
            "PYSPARK_PYTHON, or --archives of spark-submit.",
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return _other_python("the executors' Python is of another version than this")
    if "ExecutorLostFailure" in text:
        why = "An executor was lost again and again: killed from outside, or out of memory."
        fix = f"Give executors more memory (spark.executor.memoryOverhead). {_GO_ON}"
        return ResourceError("Spark gave up", where="spark", why=why, fix=fix)
    stripped = (re.sub(_BEFORE_JAVA, "", line.strip()) for line in text.splitlines())
    lines = [line for line in stripped if line]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    told = (named or lines or [type(error).__name__])[-1]
    return ResourceError("Spark gave up", where="spark", why=told[:300], fix=_GO_ON)


def _other_python(what: str) -> ResourceError:
    return ResourceError(
        what,
        where="spark",
        why="Spark takes python3 as the PATH has it, unless it is told another.",
        fix="Name one before the session begins, and begin anew: "
        f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}",
    )

"""Run functions on executors, monitor and cancel the job, and explain its errors."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

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
_BEFORE_JAVA = r"^(: |Caused by: )"  # before the class name of a Java exception
_GO_ON = "Then run the same command again to resume."

_Result = TypeVar("_Result")
_HERE: Final = "work without Spark: --engine local"

SLOT_WAIT = "STEPLADDER_SLOT_WAIT_S"
_SLOT_WAIT_S = 60.0


class _Refusal(NamedTuple):
    """Why Spark or TorchDistributor does not start processes together.

    Attributes:
        word: in the text of their error.
    """

    word: str
    what: str
    why: str
    fix: str


_REFUSALS: Final = (
    _Refusal(
        "SPARK-24819",
        "Spark has fewer free slots than there are processes, which have to start together",
        "An executor was lost, or has not come.",
        "Use fewer devices, or give Spark more cores or executors.",
    ),
    _Refusal(
        "SPARK-24942",
        "this Spark session allocates its executors dynamically, which a barrier stage cannot use",
        "Processes that start together need executors that are there.",
        "Start the session with spark.dynamicAllocation.enabled=false.",
    ),
    _Refusal(
        "TLS encryption",
        "this Spark cluster encrypts its connections, but the processes of a run do not",
        "Gradients and other tensors would be sent in clear text.",
        "If its network is private, start Spark with pytorch.spark.distributor.ignoreSsl=true.",
    ),
)


class Slots:
    """Checks whether any task of a job has started.

    Args:
        tracker: status tracker of the context that runs the job.
        wait_s: maximum time to wait for the first task.
        instead: what to do if there is no slot.

    Attributes:
        has_run: a task has started.
    """

    def __init__(self, tracker: StatusTracker, wait_s: float, instead: str = _HERE) -> None:
        self._tracker, self._wait_s, self._instead = tracker, wait_s, instead
        self._began_s = time.monotonic()
        self.has_run = False

    def require(self) -> None:
        """Check that a task started in time; a job without a slot would wait forever.

        Call it from the start of the job: finished stages are no longer listed.

        Raises:
            ResourceError: if no task has started.
        """
        if self.has_run:
            return
        stages = self._stages()
        self.has_run = any(info.numActiveTasks + info.numCompletedTasks for info in stages)
        is_late = time.monotonic() - self._began_s >= self._wait_s
        if stages and is_late and not self.has_run:
            raise ResourceError(
                f"Spark started no task within {self._wait_s:.0f} s: the cluster provided "
                "no executor with a free core",
                where="spark",
                fix="Request smaller executors (spark.executor.cores, spark.executor.memory), wait "
                f"up to 600 s (export {SLOT_WAIT}=600), or {self._instead}",
            )

    def _stages(self) -> list[SparkStageInfo]:
        try:
            found = map(self._tracker.getStageInfo, self._tracker.getActiveStageIds())
            return [info for info in found if info is not None]
        except Exception as error:
            if not is_of_spark(error) and not isinstance(error, OSError):
                raise
            return []  # if the JVM has exited, the job ends with an error


def slot_wait_s() -> float:
    """Return how long a job may wait for its first task.

    Raises:
        UsageError: if the environment variable is not a number of seconds.
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
            f"{text!r} is not a number of seconds above 0; this environment variable sets how long "
            "to wait for Spark",
            where=SLOT_WAIT,
            fix=f"Set it to a number of seconds: export {SLOT_WAIT}=600",
        )
    return wait_s


def run_tasks(
    spark: SparkSession,
    num_tasks: int,
    work: Callable[[int], str | None],
    *,
    on_poll: Callable[[], None] = lambda: None,
) -> dict[int, str | None]:
    """Call work(number) on the executors for each number, and return the results.

    Args:
        spark: a classic session.
        num_tasks: number of Spark tasks; Spark retries a task if its executor is lost.
        work: called on executors; a module-level function or a `functools.partial` of one.
        on_poll: called repeatedly on the driver; an exception in it cancels the job.

    Raises:
        ResourceError: if the Spark job fails, or no task starts in time.
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
    """Return the rows of a DataFrame; `on_poll` is called meanwhile and can cancel the job.

    Raises:
        ResourceError: if the Spark job fails, or no task starts in time.
    """
    table = run_job(spark, frame.toArrow, on_poll=lambda _: on_poll())
    on_poll()
    return table


def run_job(
    spark: SparkSession,
    call: Callable[[], _Result],
    *,
    on_poll: Callable[[Slots], None],
    instead: str = _HERE,
) -> _Result:
    """Call a function that runs a Spark job, in a thread; return its result.

    Args:
        spark: a classic session.
        call: the function.
        on_poll: called repeatedly meanwhile; an exception in it cancels the job.
        instead: what to do if the cluster has no slot.

    Raises:
        ResourceError: if the job fails, or no task starts in time.
    """
    from pyspark import InheritableThread

    tag = f"stepladder-{uuid.uuid4().hex}"
    results: list[_Result] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            spark.sparkContext.addJobTag(tag)
            results.append(call())
        except Exception as error:
            errors.append(error)

    thread = InheritableThread(target=work, daemon=True, session=spark)
    slots = Slots(spark.sparkContext.statusTracker(), slot_wait_s(), instead)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            on_poll(slots)
            slots.require()
    except BaseException:
        with contextlib.suppress(Exception):  # the JVM may have exited
            spark.sparkContext.cancelJobsWithTag(tag)
        thread.join(_STOP_S)
        raise
    if errors:
        raise explain(errors[0], master=spark.sparkContext.master) from errors[0]
    return results[0]


def explain(error: Exception, *, master: str | None = None) -> ResourceError:
    """Return an error that explains in one line why the Spark job failed and what to do.

    Args:
        error: the error that Spark raised.
        master: master of the session; executors of a local master can use this Python.
    """
    text = str(error)
    if re.search(r"No module named '(stepladder|torch|simplejpeg|pyarrow|numpy)", text):
        missing = re.findall(r"No module named '([\w.]+)'", text)[-1]
        if master is not None and master.startswith("local"):
            return _other_python(
                f"Spark uses a different Python, in which {missing} is not installed"
            )
        return ResourceError(
            f"{missing} is not installed in the executors' Python",
            where="spark",
            fix="Install stepladder on the executors (pip install stepladder), or choose a Python "
            "that has it: PYSPARK_PYTHON, or --archives of spark-submit.",
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return _other_python("the executors use a different Python version than the driver")
    if (refusal := next((found for found in _REFUSALS if found.word in text), None)) is not None:
        return ResourceError(refusal.what, where="spark", why=refusal.why, fix=refusal.fix)
    if "ExecutorLostFailure" in text:
        why = "Executors were lost repeatedly: killed, or out of memory."
        fix = f"Increase the executors' memory (spark.executor.memoryOverhead). {_GO_ON}"
        return ResourceError("the Spark job failed", where="spark", why=why, fix=fix)
    stripped = (re.sub(_BEFORE_JAVA, "", line.strip()) for line in text.splitlines())
    lines = [line for line in stripped if line]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    told = (named or lines or [type(error).__name__])[-1]
    return ResourceError(
        "the Spark job failed",
        where="spark",
        why=f"Spark reports: {told[:300]}",
        fix=f"Correct what Spark reports. {_GO_ON}",
    )


def _other_python(what: str) -> ResourceError:
    return ResourceError(
        what,
        where="spark",
        why="By default Spark uses the first python3 on the PATH.",
        fix="Make Spark use the Python of this process, then start it again: "
        f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}",
    )

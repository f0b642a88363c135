"""Start a run's processes on Spark executors, in barrier mode, by pyspark's TorchDistributor."""

from __future__ import annotations

import io
import logging
import os
import runpy
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stepladder.data.spark.jobs import Slots, run_job
from stepladder.data.spark.session import quiet_pandas, spark_session
from stepladder.data.spark.slots import (
    BARRIER_OPTIONS,
    TASK_GPUS,
    gpus_per_task,
    is_local,
    local_gpus,
    num_slots,
    refuse_dynamic,
    slots_now,
)
from stepladder.errors import InterruptedRun, ResourceError
from stepladder.parallel.failures import (
    LAUNCHED,
    LOGS,
    RESTARTS,
    Failure,
    clear_failures,
    died,
    first_failure,
    log_file,
    silent,
    stalled_error,
)
from stepladder.parallel.launch.stopping import asked_to_stop, passed_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
else:
    SparkSession = Any

_END_S: Final = 30.0  # for processes that save their state after a signal
_RETURN_S: Final = 30.0  # for an executor in place of one that was lost
_RECORD_S: Final = 3.0  # for the record of a rank that has failed a moment ago
_SIGNALS: Final = 128  # exit codes above are those of signals
_LEAVE_S: Final = 3.0  # for processes of a lost executor, which still have the run folder
_LOOK_S: Final = 1.0  # between looks into the run folder, or at the executors


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the tasks run.

    Attributes:
        run_id: of this launch.
        words: arguments of `stepladder`.
        paths: of the driver, to import from.
        folder: of the run, which all executors see.
        attempt: how often all of them have been started before.
    """

    run_id: str
    words: tuple[str, ...]
    paths: tuple[str, ...]
    folder: Path
    attempt: int = 0

    @property
    def token(self) -> Path:
        """The file that is there as long as the driver waits for this run."""
        return self.folder / LOGS / "spark.id"

    @property
    def stop(self) -> Path:
        """The file that asks for the end of the run: the number of the signal."""
        return self.folder / LOGS / "spark.stop"

    @property
    def started(self) -> Path:
        """The file that is there once a rank has started."""
        return self.folder / LOGS / "spark.started"


def run_on_spark(
    num: int, words: Sequence[str], *, folder: Path, uses_gpus: bool | None, restarts: int
) -> None:
    """Run a command of stepladder in tasks of one barrier stage, and wait for them.

    If a task dies, Spark ends all of them; they are then started again, and resume from the last
    checkpoint. An error that would happen again ends the run.

    Args:
        num: of processes.
        words: arguments of `stepladder`.
        folder: of the run, which all executors see.
        uses_gpus: each process gets a GPU; None: if Spark assigns them to tasks.
        restarts: how often all may be started again.

    Raises:
        InterruptedRun: after a signal.
        RankLost: with the message of another rank than 0 that failed.
        ResourceError: if Spark has too few slots or GPUs, or a task died too often.
        SystemExit: with the code of the error that rank 0 has printed.
        UsageError: if PySpark is not installed.
    """
    with spark_session(BARRIER_OPTIONS) as spark:
        refuse_dynamic(spark, num)
        gpus = gpus_of_tasks(spark, num, uses_gpus)
        clear_failures(folder)
        for attempt in range(restarts + 1):
            tasks = require_slots(spark, num, gpus)  # waits for an executor in place of a lost one
            order = Order(
                run_id=uuid.uuid4().hex,
                words=tuple(words),
                paths=tuple(path for path in sys.path if path),
                folder=folder.absolute(),
                attempt=attempt,
            )
            error = _error_of(spark, order, num, tasks, uses_gpus=gpus > 0)
            if error is None:
                return
            if not isinstance(error, _TaskLost) or attempt == restarts:
                raise error
            first = str(error).partition("\n")[0].rstrip(":;")
            sys.stderr.write(f"{first}; starting all again from the last checkpoint\n")
            time.sleep(_LEAVE_S)


class _TaskLost(ResourceError):  # noqa: N818  (the task is gone)
    """A task died, so that starting all again may help."""

    def brief(self) -> str:
        """Return the whole message: it has the last lines of the rank that was lost."""
        return str(self)


def _error_of(
    spark: SparkSession, order: Order, num: int, tasks: int, *, uses_gpus: bool
) -> BaseException | None:
    """Run all processes once; return the error that ends the run, or None."""
    with quiet_pandas():
        from pyspark.ml.torch.distributor import TorchDistributor

    distributor = TorchDistributor(num_processes=num, local_mode=False, use_gpu=uses_gpus)
    with _files(order), passed_on(order.stop) as signals, _quiet():
        try:
            code = run_job(
                spark,
                lambda: int(distributor.run(_train, order) or 0),
                on_poll=Watch(spark, tasks, signals),
                instead="train on this machine: --launch processes",
            )
        except ResourceError as error:
            ended = _ended(order, signals, error)
            ended.__cause__ = error if ended is not error else None
            return ended
        return _ended(order, signals, None) if code or final_failure(order) else None


def gpus_of_tasks(spark: SparkSession, num: int, uses_gpus: bool | None) -> int:
    """Return how many GPUs each task has, one for each of its processes; 0: all train on CPUs.

    Raises:
        ResourceError: if GPUs were requested and Spark assigns none, or the processes cannot be
            divided among tasks of several GPUs.
    """
    if uses_gpus is False:
        return 0
    gpus, why = gpus_per_task(spark)
    fix = (
        f"Start Spark with {TASK_GPUS}=1, spark.executor.resource.gpu.amount and its discovery "
        "script"
    )
    if uses_gpus and not gpus:
        raise ResourceError(
            "GPUs were requested, but Spark assigns none to its tasks",
            where="device.kind",
            why=f"{why}.",
            fix=f"{fix}. Or train on CPUs: --device.kind cpu",
        )
    if gpus and num % gpus:
        more = -(-num // gpus) * gpus
        raise ResourceError(
            f"{num} devices cannot be divided among Spark's tasks, each of which has {gpus} GPUs",
            where="run.launch",
            why=f"{TASK_GPUS} is {gpus}.",
            fix=f"Type --devices {more}, or start Spark with {TASK_GPUS}=1.",
        )
    what = "each on a GPU of its own" if gpus else f"on CPUs, because {why}"
    sys.stderr.write(f"{num} process{'' if num == 1 else 'es'} on Spark, {what}\n")
    return gpus


def require_slots(spark: SparkSession, num: int, gpus: int) -> int:
    """Return the number of tasks, after Spark has slots for all of them.

    Args:
        num: of processes.
        gpus: of each task, which has a process for each; 0: one process, on CPUs.

    Raises:
        ResourceError: if it has too few.
    """
    each = max(1, gpus)
    tasks = num // each
    slots = num_slots(spark, tasks)
    if gpus and is_local(spark):
        slots = min(slots, local_gpus(spark))
    if slots < tasks:
        raise _too_few(num, slots, each, is_local=is_local(spark))
    return tasks


def _too_few(num: int, slots: int, each: int, *, is_local: bool) -> ResourceError:
    """Return the error for too few slots.

    Args:
        num: of processes.
        slots: number of tasks that can run at once.
        each: number of processes of a task.
    """
    plural = "" if slots == 1 else "s"
    tasks = f"{num // each} of {each} processes each" if each > 1 else f"{num}"
    fewer = f"Type --devices {slots * each}, or give" if slots else "Give"
    more = f"cores, such as with SPARK_MASTER=local[{num}]" if is_local else "cores or executors"
    return ResourceError(
        f"Spark can run {slots} task{plural} at once, but a run on {num} devices needs {tasks}",
        where="run.launch",
        why="All processes of a run have to start at the same time.",
        fix=f"{fewer} Spark more {more}.",
    )


class Watch:
    """Ends the job if its executors are gone, or the run does not end after a signal."""

    def __init__(self, spark: SparkSession, tasks: int, signals: Sequence[int]) -> None:
        self._spark, self._tasks, self._signals = spark, tasks, signals
        self._looked_s = 0.0
        self._until_s: float | None = None
        self._short_s: float | None = None

    def __call__(self, slots: Slots) -> None:
        """Check once a second.

        Raises:
            InterruptedRun: if the processes have not ended in time after a signal.
            ResourceError: if there are too few executors. Spark itself would try again for ten
                minutes in a session that others have started.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        if self._signals:
            self._until_s = self._until_s or now_s + _END_S
            if now_s > self._until_s:
                raise _interrupted(self._signals[0])
        with suppress(Exception):  # if the JVM has exited, the job ends with an error
            is_short = slots_now(self._spark) < self._tasks
            self._short_s = (self._short_s or now_s) if is_short else None
        if self._short_s is not None and (not slots.has_run or now_s - self._short_s > _RETURN_S):
            raise ResourceError(
                "Spark has lost executors, and has no others for all processes of the run",
                where="run.launch",
                why="All processes of a run have to start at the same time. If nobody stopped "
                "them, their machines probably ran out of memory, which their logs show.",
                fix="Once Spark has enough executors, type the same command to resume.",
            )


def _train(order: Order) -> int:
    """Run the command as one rank; called in a process of its own, on an executor.

    A failure that is recorded in the run folder ends all ranks without an error here, because Spark
    and torchrun would print a hundred lines of their own about it, and start all again: the driver
    reads the record. If a rank was killed, nothing is recorded, and the others, also rank 0, raise:
    torchrun would take a returned code for a success, and wait five minutes for the tasks that
    failed.

    Returns:
        0; below: the signal of the driver that came before the start.
    """
    for path in order.paths:
        if path not in sys.path:
            sys.path.append(path)
    if not _is_wanted(order):
        raise RuntimeError("the run that this task belongs to has ended")
    order.started.touch()
    if (number := asked_to_stop(order.stop)) is not None:
        return -number
    _heed(order)
    os.environ[LAUNCHED] = "1"
    os.environ[RESTARTS] = str(order.attempt)
    sys.argv = ["stepladder", *order.words]
    try:
        runpy.run_module("stepladder", run_name="__main__")  # as `python -m stepladder` does
    except SystemExit as end:
        if end.code and final_failure(order, wait_s=_RECORD_S) is None:
            raise
    return 0


def _is_wanted(order: Order) -> bool:
    try:
        return order.token.read_text(encoding="utf-8") == order.run_id
    except OSError:
        return False


def _heed(order: Order) -> None:
    """Send this process the signal that the driver gets; the run is then saved.

    If the driver no longer waits for this attempt, the process ends as well.
    """

    def watch() -> None:
        while (number := asked_to_stop(order.stop)) is None and _is_wanted(order):
            time.sleep(_LOOK_S)
        os.kill(os.getpid(), number or signal.SIGTERM)

    threading.Thread(target=watch, name="stepladder-signals", daemon=True).start()


@contextmanager
def _files(order: Order) -> Iterator[None]:
    """Write the files through which the driver and the tasks talk, and remove them."""

    def remove() -> None:
        for path in (order.token, order.stop, order.started):
            path.unlink(missing_ok=True)

    remove()
    order.token.parent.mkdir(parents=True, exist_ok=True)
    order.token.write_text(order.run_id, encoding="utf-8")
    try:
        yield
    finally:
        with suppress(OSError):
            remove()


@contextmanager
def _quiet():  # type: ignore[no-untyped-def]
    """Drop what pyspark prints about starting its tasks; what rank 0 prints still comes."""
    logger = logging.getLogger("TorchDistributor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with redirect_stderr(_Filtered(sys.stderr)):
            yield
    finally:
        logger.setLevel(level)


class _Filtered(io.TextIOBase):
    """A stream without the lines of pyspark's log."""

    def __init__(self, stream) -> None:  # type: ignore[no-untyped-def]
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, unless it is pyspark's."""
        if "TorchDistributor" not in text:
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


def final_failure(order: Order, *, wait_s: float = 0.0) -> Failure | None:
    """Return the first failure in an attempt that ends the run, or None.

    If a rank ended by a signal that the driver did not get, its executor was lost: Spark ends what
    an executor leaves behind. The run is saved then, and resumes once all are started again.
    """
    found = first_failure(order.folder, attempt=order.attempt, wait_s=wait_s)
    is_signal = found is not None and found.exit_code > _SIGNALS
    return None if is_signal and not order.stop.exists() else found


def _interrupted(number: int) -> InterruptedRun:
    return InterruptedRun(
        f"{signal.Signals(number).name} ended the run; its last checkpoint is kept",
        signal_number=number,
        fix="To resume, type the same command.",
    )


def _ended(order: Order, signals: Sequence[int], error: ResourceError | None) -> BaseException:
    """Return the error that ends the run; what rank 0 failed with, it has printed itself.

    Args:
        signals: that the driver got.
        error: what Spark reported; the user's message is not in it.
    """
    found = final_failure(order)
    if found is not None:
        return SystemExit(found.exit_code) if found.rank == 0 else found.error(order.folder)
    if signals:
        return _interrupted(signals[0])
    if error is not None and not order.started.exists():
        return error  # no rank has started
    if (hung := stalled_error(order.folder, attempt=order.attempt)) is not None:
        return _TaskLost(hung.what, fix=hung.fix)
    if (one := silent(order.folder, attempt=order.attempt)) is not None:
        lost = died(order.folder, *one, "died on its executor")
        return _TaskLost(lost.what, why=lost.why, fix=lost.fix)
    return _TaskLost(
        "the run ended because one of its processes, a Spark task, died on its executor",
        why="If nobody killed it, the executor's machine probably ran out of memory, which the "
        "log of the executor shows.",
        fix=f"Read the logs in {log_file(order.folder, 0).parent}, then type the same command to "
        "resume.",
    )

"""Start a run's processes on Spark executors, in barrier mode, by pyspark's TorchDistributor."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from stepladder.data.spark.session import num_slots, quiet_pandas, spark_session
from stepladder.errors import ResourceError
from stepladder.parallel.failures import (
    LAUNCHED,
    clear_failures,
    died,
    first_failure,
    log_file,
    silent,
)

_BARRIER_CHECKS = {
    # by default, Spark looks for free slots for ten minutes before it gives up
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
}


def run_on_spark(num: int, words: Sequence[str], *, folder: Path, uses_gpus: bool) -> None:
    """Run a command of stepladder in tasks of one barrier stage, and wait for them.

    Spark restarts no single task of a barrier stage, so a run that has lost one ends; the same
    command resumes it.

    Args:
        num: of tasks, each with one process.
        words: arguments of `stepladder`.
        folder: of the run, which all executors see.
        uses_gpus: Spark assigns a GPU to each task.

    Raises:
        ResourceError: if Spark has too few slots, or a task died.
        RankLost: with the message of another rank than 0 that failed.
        SystemExit: with the code of the error that rank 0 has printed.
        UsageError: if PySpark is not installed.
    """
    with spark_session(_BARRIER_CHECKS) as spark:
        slots = num_slots(spark)
        if slots < num:
            plural = "" if slots == 1 else "s"
            fewer = f"Type --devices {slots}, or give" if slots else "Give"
            raise ResourceError(
                f"Spark can run {slots} task{plural} at once, but a run on {num} devices needs "
                f"{num}",
                where="run.launch",
                why="All processes of a run have to start at the same time.",
                fix=f"{fewer} Spark more cores, such as with SPARK_MASTER=local[{num}].",
            )
        with quiet_pandas():
            from pyspark.ml.torch.distributor import TorchDistributor

        clear_failures(folder)
        distributor = TorchDistributor(num_processes=num, local_mode=False, use_gpu=uses_gpus)
        with _quiet():
            try:
                distributor.run(_train, list(words), sys.path[:], str(folder.absolute()))
            except Exception as error:  # of Spark or of py4j: the user's message is not in it
                raise _ended(folder) from error
        if first_failure(folder, attempt=0, wait_s=0.0) is not None:
            raise _ended(folder)


def _train(words: list[str], paths: list[str], folder: str) -> int:
    """Run the command as one rank; called in a process of its own, on an executor.

    A failure that is recorded in the run folder ends all ranks without an error here, because Spark
    and torchrun would print a hundred lines of their own about it: the driver reads the record. If
    a rank was killed, nothing is recorded, and the others, also rank 0, raise: torchrun would take
    a returned code for a success, and wait five minutes for the tasks that failed.

    Returns:
        0.
    """
    for path in paths:
        if path not in sys.path:
            sys.path.append(path)
    os.environ[LAUNCHED] = "1"
    sys.argv = ["stepladder", *words]
    try:
        runpy.run_module("stepladder", run_name="__main__")  # as `python -m stepladder` does
    except SystemExit as end:
        if end.code and first_failure(Path(folder), attempt=0) is None:
            raise
    return 0


@contextlib.contextmanager
def _quiet():  # type: ignore[no-untyped-def]
    """Drop what pyspark prints about starting its tasks; what rank 0 prints still comes."""
    import logging

    logger = logging.getLogger("TorchDistributor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(_Filtered(sys.stderr)):
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


def _ended(folder: Path) -> BaseException:
    """Return the error that ends the run; what rank 0 failed with, it has printed itself."""
    found = first_failure(folder, attempt=0)
    if found is not None:
        return SystemExit(found.exit_code) if found.rank == 0 else found.error(folder)
    if (one := silent(folder, attempt=0)) is not None:
        error = died(folder, *one, "died on its executor")
        error.exit_code = ResourceError.exit_code  # type: ignore[misc]
        return error
    return ResourceError(
        "the run ended because one of its processes, a Spark task, died on its executor",
        why="If nobody killed it, the executor's machine probably ran out of memory, which the "
        "log of the executor shows.",
        fix=f"Read the logs in {log_file(folder, 0).parent}, then type the same command to resume.",
    )

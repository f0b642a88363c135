"""Count the tasks that a Spark session can run at once, and wait for executors that start."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from stepladder.data.spark.session import is_of_spark
from stepladder.errors import ResourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
else:
    SparkSession = Any

BARRIER_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # by default, Spark looks for free slots for ten minutes before it gives up; a new executor
        # in place of a lost one needs some seconds
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "30",
        "spark.dynamicAllocation.enabled": "false",  # a barrier stage cannot use it
    }
)
"""Options of a session that is started for a barrier stage; it reads them only at its start."""
DYNAMIC: Final = "spark.dynamicAllocation.enabled"
TASK_GPUS: Final = "spark.task.resource.gpu.amount"
_TASK_CPUS: Final = "spark.task.cpus"
_FIRST_S: Final = 30.0  # for the first executor
_NEXT_S: Final = 10.0  # for another one
_POLL_S: Final = 0.2
_TOLD_S: Final = 1.0  # after which the wait is worth a line


def num_slots(spark: SparkSession, wanted: int = 1) -> int:
    """Return the number of tasks that can run at the same time; 0 if there is no executor.

    Executors of a new session may still be starting, so this waits until there are `wanted` slots,
    or no other executor has come for some seconds.

    Args:
        spark: a classic session.
        wanted: number of slots that are enough.
    """
    slots = slots_now(spark)
    if is_local(spark) or is_dynamic(spark):
        return slots
    began_s = latest_s = time.monotonic()
    is_told = False
    while slots < wanted:
        now_s = time.monotonic()
        if now_s - latest_s > (_NEXT_S if slots else _FIRST_S):
            break
        if not is_told and now_s - began_s > _TOLD_S:
            sys.stderr.write(
                f"waiting for Spark's executors: slots for {slots} of {wanted} tasks so far …\n"
            )
            is_told = True
        time.sleep(_POLL_S)
        if (found := slots_now(spark)) != slots:
            slots, latest_s = found, time.monotonic()
    return slots


def slots_now(spark: SparkSession) -> int:
    """Return the number of tasks that the registered executors can run at the same time.

    This is the number that Spark itself compares a barrier stage with: it counts the cores and
    GPUs of each executor by what a task needs. `defaultParallelism` would not do: it is at least 2
    before an executor has registered, and any number if spark.default.parallelism is set.
    """
    context = spark.sparkContext
    try:
        scala = context._jsc.sc()
        profile = scala.resourceProfileManager().defaultResourceProfile()
        return int(scala.maxNumConcurrentTasks(profile))
    except Exception as error:  # a platform may not allow the call
        if not is_of_spark(error):
            raise
        return int(context.defaultParallelism) // max(1, int(_option(spark, _TASK_CPUS) or 1))


def is_local(spark: SparkSession) -> bool:
    """Return True if the tasks of a session run in this driver, so that their number is fixed."""
    master = str(spark.sparkContext.master)
    return master == "local" or master.startswith("local[")


def is_dynamic(spark: SparkSession) -> bool:
    """Return True if executors come only once there are tasks for them."""
    return not is_local(spark) and _option(spark, DYNAMIC).lower() == "true"


def refuse_dynamic(spark: SparkSession, num: int) -> None:
    """Check that a barrier stage can run in a session.

    Raises:
        ResourceError: if its executors are allocated dynamically.
    """
    if is_dynamic(spark):
        raise ResourceError(
            "this Spark session allocates its executors dynamically, but processes that start "
            "together need executors that are there",
            where=DYNAMIC,
            fix=f"Start the session with {DYNAMIC}=false and executors for {num} tasks, such as "
            f"spark.executor.instances={num}.",
        )


def gpus_per_task(spark: SparkSession) -> tuple[int, str]:
    """Return how many GPUs Spark assigns to each task, and, if it assigns none, why.

    A part of a GPU counts as none, since a process needs a whole one.
    """
    amount = _option(spark, TASK_GPUS)
    try:
        gpus = float(amount or 0)
    except ValueError:
        gpus = 0.0
    if not gpus:
        return 0, f"{TASK_GPUS} is not set"
    if gpus != int(gpus):
        return 0, f"{TASK_GPUS} is {amount}, but a process needs a whole GPU"
    if is_local(spark) and (gpus > 1 or not local_gpus(spark)):
        return 0, "local Spark assigns one GPU to each task if spark.driver.resource.gpu is set"
    return int(gpus), ""


def local_gpus(spark: SparkSession) -> int:
    """Return the number of GPUs of the driver, which local tasks share."""
    found = spark.sparkContext.resources.get("gpu")
    return len(found.addresses) if found is not None else 0


def _option(spark: SparkSession, name: str) -> str:
    return str(spark.sparkContext.getConf().get(name, "") or "")

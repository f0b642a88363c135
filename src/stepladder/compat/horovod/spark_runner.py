"""Run a function on Spark executors, in the tasks of one barrier stage."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from stepladder.compat.horovod.rank_process import Outcome, Spot, own_spot, result_of, run_rank
from stepladder.data.spark.jobs import Slots, run_job
from stepladder.data.spark.session import spark_session
from stepladder.data.spark.slots import BARRIER_OPTIONS, num_slots, refuse_dynamic
from stepladder.errors import ResourceError

_FAILED: Final = "failed"


def has_spark() -> bool:
    """Return True if this program has a Spark session."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    return SparkSession.getActiveSession() is not None or context is not None


def run_in_spark(num: int, call: bytes) -> Any:
    """Call a pickled function in `num` tasks at the same time; return the result of rank 0.

    Raises:
        ResourceError: if Spark has too few slots, or a process failed.
    """
    with spark_session(BARRIER_OPTIONS) as spark:
        refuse_dynamic(spark, num)
        slots = num_slots(spark, num)
        if slots < num:
            plural = "" if slots == 1 else "s"
            raise ResourceError(
                f"Spark can run {slots} task{plural} at once, but HorovodRunner(np={num}) needs "
                f"{num}",
                where="np",
                why="All processes have to start at the same time.",
                fix=f"{f'Use np={slots}, give' if slots else 'Give'} Spark more cores, or run on "
                f"this machine: np=-{num}",
            )
        paths = [path for path in sys.path if path]
        tasks = spark.sparkContext.parallelize(range(num), num).barrier()
        is_begun = False

        def look(slots: Slots) -> None:
            nonlocal is_begun
            is_begun = is_begun or slots.has_run

        try:
            rows = run_job(
                spark,
                tasks.mapPartitions(lambda _: _task(call, paths)).collect,
                on_poll=look,
                instead=f"run on this machine: np=-{num}",
            )
        except ResourceError as error:
            if not is_begun:
                raise  # Spark could not start the tasks
            cause = error.__cause__
            raise ResourceError(
                "a Spark task of HorovodRunner died on its executor",
                where="HorovodRunner",
                why=str(cause or error).strip().splitlines()[0][:300],
                fix="Read the executor's log: its machine probably ran out of memory.",
            ) from cause
    ended = sorted(rows, key=lambda row: int(row[0]))
    return result_of([outcome for _, outcome in ended])


def _task(call: bytes, paths: list[str]) -> Iterator[tuple[int, Outcome]]:
    """Run one rank; returns in which position it ended, and what became of it."""
    from pyspark import BarrierTaskContext
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    context = BarrierTaskContext.get()
    rank, infos = context.partitionId(), context.getTaskInfos()
    address = infos[0].address.split(":")[0]
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    gpus = context.resources()["gpu"].addresses if "gpu" in context.resources() else ()
    mine = own_spot(infos[rank].address.split(":")[0], gpus)
    told = {"port": store.port if store else 0, "spot": dataclasses.asdict(mine)}
    all_told = [json.loads(text) for text in context.allGather(json.dumps(told))]
    spots = [Spot(**one["spot"]) for one in all_told]
    if store is None:
        store = TCPStore(address, all_told[0]["port"], is_master=False)
    outcome = run_rank(rank, spots, call, paths, lambda: bool(store.check([_FAILED])))
    if outcome.code:
        store.set(_FAILED, "1")
    position = store.add("ended", 1)
    context.barrier()  # rank 0 has the store: it stays until all have read it
    yield position, outcome

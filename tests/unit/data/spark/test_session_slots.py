"""Slots are those of the executors that have registered, by what a task needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("py4j")

from py4j.protocol import Py4JError

from stepladder.data.spark import slots as module
from stepladder.data.spark.slots import (
    DYNAMIC,
    TASK_GPUS,
    gpus_per_task,
    num_slots,
    refuse_dynamic,
    slots_now,
)
from stepladder.errors import ResourceError


def session(
    *counts: int, master: str = "spark://host:7077", gpus: int = 0, **conf: str
) -> SimpleNamespace:
    """Return a session whose slots are counted one after the other; the last count stays."""
    left = list(counts)

    def count(profile: object) -> int:
        assert profile == "default"
        if not left:
            raise Py4JError("maxNumConcurrentTasks is not allowed")
        return left.pop(0) if len(left) > 1 else left[0]

    scala = SimpleNamespace(
        maxNumConcurrentTasks=count,
        resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: "default"),
    )
    addresses = SimpleNamespace(addresses=[str(gpu) for gpu in range(gpus)])
    context = SimpleNamespace(
        master=master,
        defaultParallelism=200,  # as with spark.default.parallelism=200
        resources={"gpu": addresses} if gpus else {},
        getConf=lambda: {name.replace("_", "."): value for name, value in conf.items()},
        _jsc=SimpleNamespace(sc=lambda: scala),
    )
    return SimpleNamespace(sparkContext=context)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only a wait moves."""
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


def test_executors_that_are_still_starting_are_waited_for(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    spark = session(*[0] * 20, *[1] * 20, 2)
    assert num_slots(spark, 2) == 2
    assert clock[0] - 1000 == pytest.approx(40 * 0.2)
    assert capsys.readouterr().err == (
        "waiting for Spark's executors: slots for 0 of 2 tasks so far …\n"
    )


@pytest.mark.parametrize(("slots", "limit_s"), [(0, 30), (3, 10)])
def test_the_wait_for_executors_that_do_not_come_is_bounded(
    clock: list[float], slots: int, limit_s: float
) -> None:
    assert num_slots(session(slots), 4) == slots
    assert clock[0] - 1000 == pytest.approx(limit_s, abs=0.5)


def test_a_local_session_has_its_slots_at_once(clock: list[float]) -> None:
    assert num_slots(session(2, master="local[2,4]"), 3) == 2
    assert num_slots(session(0, spark_dynamicAllocation_enabled="true"), 3) == 0
    assert clock == [1000.0]


def test_an_executor_that_is_lost_counts_no_more() -> None:
    spark = session(2, 1)
    assert [slots_now(spark), slots_now(spark)] == [2, 1]


def test_where_spark_does_not_answer_cores_are_divided_by_those_of_a_task() -> None:
    assert slots_now(session()) == 200
    assert slots_now(session(spark_task_cpus="4")) == 50


def test_a_session_that_allocates_dynamically_cannot_run_a_barrier_stage() -> None:
    refuse_dynamic(session(2), 2)
    refuse_dynamic(session(2, master="local[2]", spark_dynamicAllocation_enabled="true"), 2)
    with pytest.raises(ResourceError, match="allocates its executors dynamically") as caught:
        refuse_dynamic(session(2, spark_dynamicAllocation_enabled="true"), 2)
    assert f"{DYNAMIC}=false" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("amount", "gpus", "why"),
    [
        ("1", 1, ""),
        ("2", 2, ""),
        ("", 0, "is not set"),
        ("0", 0, "is not set"),
        ("0.25", 0, "is 0.25, but a process needs a whole GPU"),
    ],
)
def test_only_whole_gpus_of_a_task_count(amount: str, gpus: int, why: str) -> None:
    found = gpus_per_task(session(1, spark_task_resource_gpu_amount=amount))
    assert found == (gpus, f"{TASK_GPUS} {why}" if why else "")


def test_local_tasks_share_the_gpus_of_the_driver() -> None:
    conf: dict[str, Any] = {"spark_task_resource_gpu_amount": "1", "master": "local[4]"}
    assert gpus_per_task(session(4, gpus=2, **conf)) == (1, "")
    assert gpus_per_task(session(4, **conf))[0] == 0

"""`--launch spark` uses GPUs where Spark assigns them, and says which devices it uses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepladder.errors import ResourceError
from stepladder.parallel.failures import Failure, record_failure
from stepladder.parallel.launch import spark as module

SPARK: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077"))
NONE = (0, "spark.task.resource.gpu.amount is not set")


@pytest.mark.parametrize(
    ("assigned", "uses_gpus", "gpus", "said"),
    [
        ((1, ""), None, 1, "4 processes on Spark, each on a GPU of its own\n"),
        ((2, ""), True, 2, "4 processes on Spark, each on a GPU of its own\n"),
        (NONE, None, 0, f"4 processes on Spark, on CPUs, because {NONE[1]}\n"),
        ((1, ""), False, 0, ""),
    ],
)
def test_processes_use_the_gpus_of_their_tasks(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    assigned: tuple[int, str],
    uses_gpus: bool | None,
    gpus: int,
    said: str,
) -> None:
    monkeypatch.setattr(module, "gpus_per_task", lambda _: assigned)
    assert module.gpus_of_tasks(SPARK, 4, uses_gpus) == gpus
    assert capsys.readouterr().err == said


def test_gpus_that_spark_does_not_assign_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gpus_per_task", lambda _: NONE)
    with pytest.raises(ResourceError, match="Spark assigns none to its tasks") as caught:
        module.gpus_of_tasks(SPARK, 4, True)
    assert "spark.task.resource.gpu.amount=1" in (caught.value.fix or "")
    assert caught.value.where == "device.kind"


def test_tasks_of_two_gpus_have_two_processes_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gpus_per_task", lambda _: (2, ""))
    monkeypatch.setattr(module, "num_slots", lambda *_: 1)
    with pytest.raises(ResourceError, match="cannot be divided") as caught:
        module.gpus_of_tasks(SPARK, 3, None)
    assert "--devices 4" in (caught.value.fix or "")
    assert module.require_slots(SPARK, 2, 2) == 1
    with pytest.raises(ResourceError, match="Spark can run 1 task at once") as caught:
        module.require_slots(SPARK, 4, 2)
    assert "--devices 2" in (caught.value.fix or "")


def test_local_tasks_are_at_most_the_gpus_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    local: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[8]"))
    monkeypatch.setattr(module, "num_slots", lambda *_: 8)
    monkeypatch.setattr(module, "local_gpus", lambda _: 2)
    assert module.require_slots(local, 8, 0) == 8
    with pytest.raises(ResourceError, match="Spark can run 2 tasks at once"):
        module.require_slots(local, 4, 1)


def test_a_run_in_a_session_of_others_ends_once_executors_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark's own check would look for slots for ten minutes."""
    slots: Any = SimpleNamespace(has_run=False)
    monkeypatch.setattr(module, "slots_now", lambda _: 1)
    with pytest.raises(ResourceError, match="Spark has lost executors"):
        module.Watch(SPARK, 2, [])(slots)
    slots.has_run = True  # another executor may come in its place
    module.Watch(SPARK, 2, [])(slots)


@pytest.mark.parametrize(
    ("exit_code", "is_asked", "is_final"),
    [(5, False, True), (143, False, False), (143, True, True)],
)
def test_a_rank_that_ends_with_its_executor_does_not_end_the_run(
    tmp_path: Path, exit_code: int, is_asked: bool, is_final: bool
) -> None:
    """Spark sends SIGTERM to what a lost executor leaves behind; only the driver ends a run."""
    order = module.Order(run_id="1", words=(), paths=(), folder=tmp_path, attempt=2)
    failure = Failure(
        rank=1,
        host="host-b",
        at=1.0,
        attempt=2,
        exit_code=exit_code,
        is_final=True,
        lines=("why",),
    )
    record_failure(tmp_path, failure)
    if is_asked:
        order.stop.write_text("15")
    assert module.final_failure(order) == (failure if is_final else None)

"""A job without a slot ends; one that had a slot is not ended, however long it takes."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkStageInfo

from stepladder.data.spark.jobs import SLOT_WAIT, Slots, slot_wait_s
from stepladder.errors import ResourceError, UsageError

WAIT_S = 0.02


class Tracker:
    """A status tracker with given answers."""

    def __init__(self) -> None:
        self.stages: list[SparkStageInfo] = []

    def getActiveStageIds(self) -> list[int]:
        return list(range(len(self.stages)))

    def getStageInfo(self, stage: int) -> SparkStageInfo:
        return self.stages[stage]


def stage(*, running: int) -> SparkStageInfo:
    return SparkStageInfo(0, 0, "stage", 4, running, 0, 0)


def test_a_stage_that_waits_too_long_is_reported_with_what_to_set() -> None:
    tracker = Tracker()
    slots = Slots(tracker, WAIT_S)
    tracker.stages = [stage(running=0)]
    slots.require()
    time.sleep(WAIT_S)
    with pytest.raises(ResourceError, match="no executor with a free core") as caught:
        slots.require()
    assert f"{SLOT_WAIT}=600" in str(caught.value)


def test_a_stage_that_waits_behind_one_that_ran_is_left_alone() -> None:
    tracker = Tracker()
    slots = Slots(tracker, WAIT_S)
    tracker.stages = [stage(running=1)]
    slots.require()
    tracker.stages = [stage(running=0)]
    time.sleep(WAIT_S)
    slots.require()


def test_the_wait_is_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SLOT_WAIT, raising=False)
    assert slot_wait_s() == 60
    monkeypatch.setenv(SLOT_WAIT, "600")
    assert slot_wait_s() == 600
    for text in ("ten minutes", "0", "nan"):
        monkeypatch.setenv(SLOT_WAIT, text)
        with pytest.raises(UsageError, match="not a number of seconds"):
            slot_wait_s()

"""Jobs to plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepladder.planning.hardware.ranges import Range
from stepladder.planning.hardware.speed import Rates
from stepladder.planning.job import MemoryLine, PlannedJob, evenly
from stepladder.records.plan import Bounds
from stepladder.records.profile import Provenance


def exactly(value: float) -> Range:
    return Range.exact(value, Provenance.MEASURED, "a test")


JOB = PlannedJob(
    name="job",
    device_name="Tesla V100-SXM2-16GB",
    device="cuda",
    rates=Rates(name="Tesla V100-SXM2-16GB"),
    fixed_s=exactly(0.01),
    per_example_s=exactly(0.001),
    gradients=evenly(100_000_000),
    batch=64,
    num_train=64_000,
    epochs=Bounds(best=10.0, likely=10.0, worst=10.0),
    start_s=0.0,
    spread=exactly(0.0),
    memory=MemoryLine(fixed_bytes=1e9, example_bytes=1e8),
    memory_bytes=16e9,
)


@pytest.fixture
def make_job() -> Callable[..., PlannedJob]:
    """Return a job of 74 ms a step on a V100, with changes."""

    def make(**changes: Any) -> PlannedJob:
        return replace(JOB, **changes)

    return make

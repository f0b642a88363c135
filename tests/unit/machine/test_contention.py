"""CPU use of other processes is distinguished from that of this process."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from stepladder.machine.contention import Usage, cores_missing, cores_missing_since


def usage(wall_s: float, busy_s: float, own_s: float) -> Usage:
    return Usage(wall_s=wall_s, busy_s=busy_s, own_s=own_s)


@pytest.mark.parametrize(
    ("busy_s", "own_s", "usable", "total", "missing"),
    [
        (20.0, 20.0, 2, 2, 0.0),  # alone on both cores
        (20.0, 12.0, 2, 2, 0.8),  # others used 8 of 20 core seconds
        (20.0, 0.0, 2, 2, 2.0),
        (25.0, 20.0, 2, 8, 0.0),  # others have their own cores
        (75.0, 5.0, 2, 8, 1.0),
        (5.0, 9.0, 2, 2, 0.0),  # counters have different ticks
    ],
)
def test_others_count_where_cores_run_short(
    busy_s: float, own_s: float, usable: int, total: int, missing: float
) -> None:
    start, end = usage(100.0, 50.0, 7.0), usage(110.0, 50.0 + busy_s, 7.0 + own_s)
    assert cores_missing(start, end, usable=usable, total=total) == pytest.approx(missing)


def test_no_time_is_not_contention() -> None:
    now = Usage.now()
    assert cores_missing(now, now, usable=2, total=2) == 0.0


def test_children_are_ones_own_and_counters_rise() -> None:
    start = Usage.now()
    code = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    end = Usage.now()
    assert end.own_s - start.own_s >= 0.3
    assert end.busy_s > start.busy_s
    assert 0.0 <= cores_missing_since(start) <= (psutil.cpu_count() or 1)


def test_waiting_uses_nothing() -> None:
    start = Usage.now()
    time.sleep(0.2)
    assert Usage.now().own_s - start.own_s < 0.15

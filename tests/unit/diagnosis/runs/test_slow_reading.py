"""What helps against a wait for data, by what the reading threads were busy with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepladder.diagnosis.runs.machine_use import judge_machine
from stepladder.diagnosis.runs.run_curves import RunFiles

PHASES = {"data_wait": 60.0, "forward": 20.0, "backward": 20.0}
READ = {"event": "reader", "attempt": 1, "num_read": 100, "read_bytes": 2e8}


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        ({"fetch_s": 1.0, "decode_s": 9.0}, "decoding is 90.0 % of the reading threads' work"),
        ({"fetch_s": 9.0, "decode_s": 1.0}, "work, at 22 MB/s a thread"),
        ({"fetch_s": 9.0, "cache_hits": 1, "cache_misses": 3}, "--data.max-cache-bytes"),
        ({"fetch_s": 1.0, "decode_s": 9.0, "cache_hits": 95, "cache_misses": 5}, "decode-once"),
        ({"read_bytes": 0, "fetch_s": 9.0}, "more reading threads (--loader.threads)"),
    ],
)
def test_what_helps_is_what_reading_spends_its_time_on(counted: dict[str, Any], said: str) -> None:
    summary = {"phases_s": PHASES, "data_wait_frac": 0.6}
    events = (READ | counted,)
    files = RunFiles(path=Path("run"), events=events, summary=summary, env={}, job=None)
    found = judge_machine(files)
    assert found.held_by == "data wait"
    assert said in " ".join(found.said)

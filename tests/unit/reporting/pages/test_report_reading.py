"""The report's table of reader statistics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepladder.reporting.pages.report_page import reading_rows, write_report
from stepladder.reporting.tables import RunRecords

LOCAL = {
    "attempt": 1,
    "num_read": 2000,
    "read_bytes": 400_000_000,
    "fetch_s": 0.5,
    "decode_s": 6.0,
    "wait_s": 3.0,
    "num_threads": 4,
}
REMOTE = {
    "num_requests": 1234,
    "num_retries": 2,
    "received_bytes": 398_000_000,
    "cache_hits": 9,
    "cache_misses": 3,
}


def rows(*events: dict[str, Any], **summary: Any) -> dict[str, tuple[str, str]]:
    records = RunRecords(name="run", summary=summary, events={"reader": events})
    return {row.name: (row.value, row.note) for row in reading_rows(records)}


def test_a_local_store() -> None:
    assert rows(LOCAL, data_wait_frac=0.03) == {
        "examples read": ("2,000", "400 MB in the store"),
        "time to read one, per thread": ("0.25 ms", "0.5 s in total, on 4 threads"),
        "time to decode one, per thread": ("3 ms", "6.0 s in total, on 4 threads"),
        "read bandwidth per thread": ("800 MB/s", ""),
        "waiting for batches": ("3.0 s", "3.0 % of the time of the steps"),
    }


def test_a_remote_store_reports_its_cache() -> None:
    found = rows(LOCAL | REMOTE)
    assert found["downloaded from the object store"] == ("398 MB", "1,234 requests, 2 retries")
    assert found["hit rate of the file cache"] == ("75.0 %", "9 of 12 files")


def test_what_was_not_read_has_no_table(build_run: Callable[..., Path], tmp_path: Path) -> None:
    assert rows() == {}
    page = write_report(build_run(tmp_path / "run")).read_text()
    assert "<h2>Reading of data</h2>" not in page


def test_steps_that_learn_from_features_read_nothing() -> None:
    found = rows(phases_s={"features": 8.2, "forward": 1.0})
    value, note = found["examples read during training"]
    assert value == "none"
    assert note.endswith("computing or loading them took 8.2 s")
    assert rows(phases_s={"features": "<b>"}) == {}


def test_the_page_shows_it(build_run: Callable[..., Path], tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    evil = {"event": "reader", "num_read": "<script>", "attempt": "<script>"}
    with (run / "events.jsonl").open("a") as file:
        for event in ({"event": "reader"} | LOCAL | REMOTE, evil):
            file.write(json.dumps(event) + "\n")
    page = write_report(run).read_text()
    assert "<h2>Reading of data</h2>" in page
    assert "1,234 requests, 2 retries" in page
    assert page.count("<script>") == 1  # its own

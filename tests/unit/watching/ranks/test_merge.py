from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.ranks import RankReport, first_dead
from stepladder.records.watch import WatchReport
from stepladder.reporting.pages.watch_page import render_watch, watch_text
from stepladder.watching.ranks.files import (
    clear,
    rank_report,
    read_ranks,
    read_starts,
    write_rank,
    write_start,
)
from stepladder.watching.ranks.merge import merged
from stepladder.watching.ranks.place import LAUNCHED, RankPlace, place_in
from stepladder.watching.ranks.seen import RankRecord, RankSeen

LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:42209"
CLEARED = Finding(check="missing_zero_grad", outcome=Outcome.PASSED, evidence="cleared")
KEPT = Finding(
    check="missing_zero_grad", outcome=Outcome.FAILED, fault="missing_zero_grad", evidence="kept"
)


def place(rank: int, size: int = 2, run: str = "a") -> RankPlace:
    return RankPlace(rank=rank, local_rank=rank, size=size, run=run)


def one(rank: int, **changes: Any) -> tuple[WatchReport, RankRecord]:
    size = changes.pop("size", 2)
    number = changes.pop("signal_number", 0)
    report = WatchReport(script="train.py", is_complete=True, **{"exit_code": 0, **changes})
    seen = RankSeen(rank=rank, size=size, run="a")
    its = rank_report(report, seen, signal_number=number, is_complete=True)
    return report, RankRecord(report=its, seen=seen)


def dead(rank: int, *, at: float = 1.0, **changes: Any) -> RankReport:
    return RankReport(rank=rank, pid=1, is_complete=True, ended_at=at, **changes)


def test_the_first_rank_that_failed_by_itself_is_the_dead_one() -> None:
    lost = dead(0, at=1.0, exit_code=1, crash=LOST)
    own = dead(1, at=2.0, exit_code=1, crash="ValueError: a bad batch")
    ended = dead(2, at=3.0, exit_code=143, signal_number=15)
    found = first_dead([lost, own, ended])
    assert found is own


def test_a_rank_without_a_report_is_the_dead_one_if_the_others_lost_it() -> None:
    lost = dead(0, exit_code=1, crash=LOST)
    found = first_dead([lost, RankReport(rank=1)])
    assert found is not None
    assert found.rank == 1


def test_no_rank_is_dead_after_a_signal_to_all_or_a_sound_end() -> None:
    both = [dead(n, exit_code=143, signal_number=15) for n in range(2)]
    assert first_dead(both) is None
    assert first_dead([dead(0, exit_code=0), dead(1, exit_code=0)]) is None


@pytest.mark.parametrize(
    ("findings", "evidence"),
    [
        ((KEPT, KEPT, KEPT, KEPT), "kept"),
        ((CLEARED, KEPT, KEPT, CLEARED), "on 2 of 4 ranks: kept"),
        ((CLEARED, CLEARED, CLEARED, KEPT), "on rank 3: kept"),
        ((CLEARED, CLEARED, CLEARED, CLEARED), "cleared"),
    ],
)
def test_findings_of_all_ranks_are_merged(findings: tuple[Finding, ...], evidence: str) -> None:
    found = {n: one(n, findings=(finding,), size=4) for n, finding in enumerate(findings)}
    report = merged(found, {}, 4)
    (merged_one,) = [f for f in report.findings if f.check == "missing_zero_grad"]
    assert merged_one.evidence == evidence
    assert len(report.ranks) == 4


def test_a_dead_rank_is_the_first_line_and_its_exit_code_counts() -> None:
    found = {
        0: one(0, exit_code=1, crash=LOST, ending="it raised RuntimeError"),
        1: one(1, exit_code=3, crash="ValueError: a bad batch", crashed_at="train.py:12"),
    }
    report = merged(found, {}, 2, exit_code=1)
    assert report.dead_rank == 1
    assert report.exit_code == 3
    first = watch_text(report).splitlines()[0]
    assert first.startswith("stepladder watch: rank 1 of 2 on ")
    assert first.endswith(" crashed at train.py:12: ValueError: a bad batch")
    assert "Rank 1 died" in render_watch(report)


def test_a_rank_that_left_no_report_is_named() -> None:
    report = merged({0: one(0)}, {1: RankReport(rank=1, host="far", pid=7)}, 2)
    assert report.ranks[1].host == "far"
    assert not report.is_complete
    assert report.dead_rank is None
    assert any(text.startswith("Rank 1: no report") for text in report.not_seen)


def test_reports_of_another_run_are_neither_read_nor_kept(tmp_path: Path) -> None:
    report, record = one(0)
    for rank in (0, 1, 5):
        write_rank(tmp_path / f"rank-{rank}", report, record)
    (tmp_path / "rank-5" / "mine.txt").write_text("kept")
    assert set(read_ranks(tmp_path, run="a")) == {0, 1, 5}
    assert not read_ranks(tmp_path, run="b")
    clear(tmp_path, place(0))
    assert set(read_ranks(tmp_path, run="a")) == {1}
    assert (tmp_path / "rank-5" / "mine.txt").exists()


def test_a_rank_that_has_only_started_is_known(tmp_path: Path) -> None:
    (tmp_path / "rank-1").mkdir()
    write_start(tmp_path / "rank-1", place(1))
    assert not read_ranks(tmp_path, run="a")
    assert read_starts(tmp_path, run="a")[1].pid is not None


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "3", "WORLD_SIZE": "2"},
        {"WORLD_SIZE": "4"},
        {"RANK": "x", "WORLD_SIZE": "4"},
    ],
)
def test_one_process_has_no_place(environ: dict[str, str]) -> None:
    assert place_in(environ) is None


def test_one_process_that_stepladder_has_started_has_a_place() -> None:
    found = place_in({"RANK": "0", "WORLD_SIZE": "1", LAUNCHED: "1"})
    assert found is not None
    assert found.is_launched


def test_a_restart_is_another_run() -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    first, again = (
        place_in({**environ, "TORCHELASTIC_RESTART_COUNT": count}) for count in ("0", "1")
    )
    assert first is not None
    assert again is not None
    assert (first.rank, first.local_rank, first.size) == (1, 1, 2)
    assert first.run != again.run

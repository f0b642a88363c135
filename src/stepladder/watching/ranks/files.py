"""rank.json and watch.json of a rank: written at its end, read by the process that merges them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import time

from stepladder.errors import DataError
from stepladder.records.files import write_json, write_unsynced
from stepladder.records.from_json import read_record
from stepladder.records.ranks import RANK_FILE, RankReport
from stepladder.records.watch import WATCH_FILE, WatchReport
from stepladder.watching.ranks.place import RankPlace, rank_folder
from stepladder.watching.ranks.seen import RankRecord, RankSeen

MAX_RANKS = 10_000


def clear(folder: Path, place: RankPlace) -> None:
    """Remove what an earlier run left in the folder of this rank; rank 0: of those beyond the last.

    Only files that `stepladder watch` writes are removed.
    """
    ranks = [place.rank]
    if place.rank == 0:
        ranks += [rank for rank in _numbers(folder) if rank >= place.size]
    for rank in ranks:
        for name in (RANK_FILE, WATCH_FILE):
            with suppress(OSError):
                (rank_folder(folder, rank) / name).unlink(missing_ok=True)
    if place.rank == 0:
        for rank in ranks[1:]:
            with suppress(OSError):
                rank_folder(folder, rank).rmdir()


def write_start(folder: Path, place: RankPlace) -> None:
    """Write where a rank runs, in case it is killed before it can report anything."""
    seen = RankSeen(rank=place.rank, size=place.size, run=place.run)
    its = RankReport(rank=place.rank, host=socket.gethostname(), pid=os.getpid())
    write_unsynced(folder / RANK_FILE, RankRecord(report=its, seen=seen))


def read_starts(folder: Path, *, run: str) -> dict[int, RankReport]:
    """Return what is known of the ranks of a run that have started."""
    found = {}
    for rank in _numbers(folder):
        with suppress(DataError, OSError):
            record = read_record(RankRecord, rank_folder(folder, rank) / RANK_FILE)
            if record.seen.run == run:
                found[rank] = record.report
    return found


def _numbers(folder: Path) -> list[int]:
    names = (path.name.removeprefix("rank-") for path in folder.glob("rank-*"))
    return sorted(int(name) for name in names if name.isdigit() and int(name) < MAX_RANKS)


def rank_report(
    report: WatchReport, seen: RankSeen, *, signal_number: int = 0, is_complete: bool
) -> RankReport:
    """Return what the merged report says of a rank."""
    return RankReport(
        rank=seen.rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        is_complete=is_complete,
        ending=report.ending,
        exit_code=report.exit_code,
        ended_at=time() if is_complete else None,
        signal_number=signal_number,
        crash=report.crash,
        crashed_at=report.crashed_at,
        num_steps=report.num_steps,
        step_s=report.step_s,
        phase_s=_by_step(report),
        exposed_s=median(seen.waits.values()) if seen.waits else None,
        exposed_inside_s=median(seen.inside.values()) if seen.inside else 0.0,
        overhead_s=report.overhead_s,
    )


def _by_step(report: WatchReport) -> Mapping[str, float]:
    if not report.step_s or not report.watched_s:
        return {}
    num_steps = report.watched_s / report.step_s
    return {time.name: time.total_s / num_steps for time in report.times}


def write_rank(folder: Path, report: WatchReport, record: RankRecord) -> None:
    """Write the files of a rank into its folder; watch.json is the last one."""
    write = write_json if record.report.is_complete else write_unsynced
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / RANK_FILE, record)
    write(folder / WATCH_FILE, report)


def read_ranks(folder: Path, *, run: str | None) -> dict[int, tuple[WatchReport, RankRecord]]:
    """Return what the ranks of a run have left so far.

    Args:
        run: of the place; None: whichever run the first rank has.
    """
    found = {}
    for rank in _numbers(folder):
        its = rank_folder(folder, rank)
        try:
            record = read_record(RankRecord, its / RANK_FILE)
            report = read_record(WatchReport, its / WATCH_FILE)
        except (DataError, OSError):
            continue
        run = record.seen.run if run is None else run
        if record.seen.run == run:
            found[rank] = (report, record)
    return found

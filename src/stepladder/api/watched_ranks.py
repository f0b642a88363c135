"""Watch a script of several processes: start them, and merge their reports into one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from stepladder.errors import UsageError
from stepladder.records.watch import WatchReport
from stepladder.watching.ranks.files import clear, read_ranks, read_starts, write_start
from stepladder.watching.ranks.place import RankPlace

if TYPE_CHECKING:
    from stepladder.watching.script.script import Ending

_WAIT_S: Final = 15.0  # for the other ranks, after rank 0 has ended
_WAIT_FAILED_S: Final = 1.0  # they are only ended after it
_WAIT_OTHERS_S: Final = 4.0  # they fail or are ended at the same time
_POLL_S: Final = 0.05
Show = Callable[[WatchReport], None]


def begin(folder: Path, place: RankPlace) -> Path:
    """Create the folder of a rank, without what an earlier run left there, and return it."""
    clear(folder, place)
    its = place.folder(folder)
    its.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        write_start(its, place)
    return its


def publish_rank(
    report: WatchReport, folder: Path, place: RankPlace, *, show: Show, save: Show
) -> WatchReport:
    """Merge the reports of all ranks, once this one has written its own.

    Rank 0 waits a short time for the others, and shows the merged report. A rank that ends after
    that, or fails before it, only saves it. If stepladder has started the ranks, none does.

    Args:
        report: of this rank.
        show: writes and prints the merged report.
        save: writes it.

    Returns:
        The merged report, or that of this rank.
    """
    if place.is_launched:
        return report
    found = read_ranks(folder, run=place.run)
    its = found[place.rank][1].report if place.rank in found else None
    has_failed = its is not None and its.has_failed
    if place.rank == 0:
        wait_s = _WAIT_S
        if report.exit_code:
            is_first = has_failed and its is not None and not its.has_lost_another
            wait_s = _WAIT_FAILED_S if is_first else _WAIT_OTHERS_S
        _wait_for_others(folder, place, wait_s)
        return _merge(folder, place, show) or report
    is_late = 0 in found and found[0][1].report.is_complete
    if is_late or has_failed:
        _merge(folder, place, save)
    return report


def _merge(folder: Path, place: RankPlace, then: Show) -> WatchReport | None:
    from stepladder.watching.ranks.merge import merged

    with _alone(folder):
        found = read_ranks(folder, run=place.run)
        if not found:
            return None
        report = merged(found, read_starts(folder, run=place.run), place.size)
        then(report)
        return report


def _wait_for_others(folder: Path, place: RankPlace, wait_s: float) -> None:
    """Wait until all ranks have ended, not much longer if one of them has failed."""
    until = monotonic() + wait_s
    is_short = False
    while (now := monotonic()) < until:
        reports = [record.report for _, record in read_ranks(folder, run=place.run).values()]
        if sum(one.is_complete for one in reports) == place.size:
            return
        if not is_short and any(one.has_failed for one in reports):
            is_short, until = True, min(until, now + _WAIT_OTHERS_S)
        sleep(_POLL_S)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one rank at a time read all reports and write the merged one."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def watch_ranks(num: int, words: Sequence[str], folder: Path, show: Show) -> Ending:
    """Run a script in several processes of this machine, and report on all of them.

    Args:
        num: of processes, 1 or more.
        words: arguments of `stepladder` that watch it in one process.
        folder: of the report.
        show: writes and prints the merged report.

    Returns:
        How the script ended: as the rank that failed first, if one did.

    Raises:
        UsageError: if no rank has started.
    """
    from stepladder.watching.ranks.launch import launch
    from stepladder.watching.ranks.merge import merged
    from stepladder.watching.script.script import Ending

    for rank in range(num):
        clear(folder, RankPlace(rank=rank, local_rank=rank, size=num, run=""))

    def has_failed() -> bool:
        found = read_ranks(folder, run=None)
        return any(record.report.has_failed for _, record in found.values())

    code = launch(num, words, has_failed=has_failed)
    found = read_ranks(folder, run=None)
    if not found:
        if code > 128:
            return Ending(exit_code=code, words=f"signal {code - 128} ended it")
        raise UsageError(
            "no rank has left a report",
            where=f"--nproc-per-node {num}",
            why=f"torchrun ended with exit code {code} before the script began.",
            fix="See its message above.",
        )
    run = next(iter(found.values()))[1].seen.run
    report = merged(found, read_starts(folder, run=run), num, exit_code=code)
    show(report)
    return Ending(exit_code=report.exit_code or code, words=report.ending, crash=report.crash)

"""The ranks of a watched script, for its page and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stepladder.records.ranks import RankReport
from stepladder.records.watch import WatchReport

_MAX_LINES: Final = 8


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One rank in the table of the page, in words."""

    rank: int
    host: str
    steps: str
    data: str
    compute: str
    exposed: str
    other: str
    ending: str


def dead_words(dead: RankReport, num: int) -> str:
    """Return which rank died first, where and of what."""
    on = f" on {dead.host}" if dead.host else ""
    who = f"rank {dead.rank} of {num}{on}"
    if dead.crash is not None:
        at = f" at {dead.crashed_at}" if dead.crashed_at is not None else ""
        return f"{who} crashed{at}: {dead.crash}"
    if dead.is_complete:
        return f"{who} did not run to completion: {dead.ending}"
    return f"{who} was killed, without an exception in Python: see the log of the system for memory"


def rank_lines(report: WatchReport) -> list[str]:
    """Return a line for each rank, with its times per step."""
    rows = rank_rows(report.ranks)
    lines = []
    for row in rows[:_MAX_LINES]:
        times = f"data {row.data}, compute {row.compute}, communication alone {row.exposed}"
        text = times if row.data else row.ending
        lines.append(f"  rank {row.rank}: {text}")
    if len(rows) > _MAX_LINES:
        lines.append(f"  … and {len(rows) - _MAX_LINES} more ranks, in the report")
    return lines


def rank_rows(ranks: Sequence[RankReport]) -> list[RankRow]:
    """Return the rows of the table of ranks."""
    return [_row(one) for one in ranks]


def _row(one: RankReport) -> RankRow:
    at = f" at {one.crashed_at}" if one.crashed_at is not None else ""
    ending = one.ending if one.crash is None else f"it crashed{at}: {one.crash}"
    if one.crash is not None and one.has_lost_another:
        ending = f"it lost the connection to another rank{at}"
    if one.step_s is None:
        times = dict.fromkeys(("data", "compute", "exposed", "other"), "")
    else:
        times = {
            "data": _ms(one.wait_s),
            "compute": _ms(one.compute_s),
            "exposed": "not measured" if one.exposed_s is None else _ms(one.exposed_s),
            "other": _ms(one.other_s),
        }
    return RankRow(rank=one.rank, host=one.host, steps=f"{one.num_steps:,}", ending=ending, **times)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"

"""Read the climb of a run folder from trials.jsonl and climb.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.errors import DataError
from stepladder.records import read_json, read_jsonl, to_json
from stepladder.records.climb import ClimbSummary
from stepladder.records.from_json import from_json
from stepladder.records.ladder import Decision, Trial
from stepladder.records.ledger_file import CLIMB_FILE, LEDGER_FILE
from stepladder.records.profile import Profile

TRIED = frozenset({Decision.KEPT, Decision.DROPPED, Decision.UNDECIDED})


@dataclass(frozen=True, kw_only=True)
class ClimbRecords:
    """The climb of a run folder; if there were several attempts, the one to show.

    Attributes:
        summary: climb.json; empty if the climb has not ended.
        trials: rungs that were tried, oldest first; each trial once, with its last verdict.
        untried: the last verdict of every other rung, in the order of the ladder.
        profiles: oldest first.
        is_summary_damaged: climb.json exists but cannot be read.
        num_elsewhere: number of trials in the ledger that belong only to other attempts.
    """

    summary: ClimbSummary
    trials: tuple[Trial, ...]
    untried: tuple[Trial, ...]
    profiles: tuple[Profile, ...]
    is_summary_damaged: bool = False
    num_elsewhere: int = 0

    @property
    def kept(self) -> tuple[Trial, ...]:
        """The last kept trial of each rung that was kept."""
        kept = [trial for trial in self.trials if trial.verdict.decision is Decision.KEPT]
        return tuple({trial.rung: trial for trial in kept}.values())


@dataclass(kw_only=True)
class _Way:
    """One attempt of a climb, starting from the original job.

    Attributes:
        spent_s: its time, and the times of attempts that were stopped before their first trial;
            empty if it has not ended, or was killed.
    """

    trials: list[Trial] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    spent_s: list[float] = field(default_factory=list)

    @property
    def tried(self) -> list[Trial]:
        """The trials of rungs that were tried, in file order."""
        return [trial for trial in self.trials if trial.verdict.decision in TRIED]


def read_climb(run: Path, missing: list[str]) -> ClimbRecords | None:
    """Read the climb of a folder; None if there is no climb.

    Args:
        missing: list to append a sentence to for everything that cannot be read.
    """
    path = run / LEDGER_FILE
    try:
        if not path.is_file():
            return None
        num_lines = sum(1 for line in path.read_bytes().splitlines() if line.strip())
        lines = list(read_jsonl(path))
    except OSError as error:
        missing.append(f"{LEDGER_FILE}: {error.strerror}.")
        return None
    ways = [_Way()]
    num_damaged = num_lines - len(lines)
    for line in lines:
        try:
            _read_line(line, ways)
        except DataError:
            num_damaged += 1
    if num_damaged:
        plural = "" if num_damaged == 1 else "s"
        missing.append(f"{LEDGER_FILE}: {num_damaged} line{plural} could not be read.")
    summary = _summary(run / CLIMB_FILE, missing)
    way = _shown_way(ways, climb_s=summary.climb_s if summary is not None else None)
    tried = _once(way.tried)
    return ClimbRecords(
        summary=summary if summary is not None else ClimbSummary(),
        is_summary_damaged=summary is None,
        trials=tried,
        untried=_last_words(way.trials, {trial.rung for trial in tried}),
        profiles=tuple(way.profiles),
        num_elsewhere=_num_elsewhere(ways, way),
    )


def positive(value: float | None) -> float | None:
    """Return a time or ratio that can be drawn on a logarithmic axis; else None."""
    if value is None or not math.isfinite(value):
        return None
    return value if 1e-12 < value < 1e12 else None


def _summary(path: Path, missing: list[str]) -> ClimbSummary | None:
    """Read climb.json; empty if it does not exist, None if it is damaged."""
    if not path.exists():
        missing.append(f"{CLIMB_FILE} is missing: the climb has not ended.")
        return ClimbSummary()
    try:
        return from_json(ClimbSummary, read_json(path))
    except (DataError, OSError) as error:
        missing.append(f"{CLIMB_FILE}: {error}.")
        return None


def _read_line(line: Mapping[str, Any], ways: list[_Way]) -> None:
    """Add a line of the ledger to the last attempt, or to a new attempt that it starts.

    Raises:
        DataError: if the line is damaged.
    """
    kind = line.get("kind")
    if kind == "profile":
        if line.get("is_first") is True or ways[-1].spent_s:  # older ledgers have no is_first
            ways.append(_Way())
        ways[-1].profiles.append(from_json(Profile, line.get("profile")))
    elif kind == "trial":
        ways[-1].trials.append(from_json(Trial, line.get("trial")))
    elif kind == "spent":
        seconds = line.get("seconds")
        ways[-1].spent_s.append(seconds if isinstance(seconds, (int, float)) else 0.0)


def _shown_way(ways: Sequence[_Way], *, climb_s: float | None) -> _Way:
    """Return the attempt that climb.json describes; without it, the last one that got furthest.

    A resumed climb may keep a rung that was undecided before, and then tries all later rungs again.
    The trials of two attempts therefore do not form one ladder.

    Args:
        climb_s: from climb.json: the total time of all attempts so far.
    """
    total_s = 0.0
    for way in ways:
        for seconds in way.spent_s:
            total_s += seconds
            if climb_s is not None and math.isclose(total_s, climb_s):
                return way
    return max(reversed(ways), key=lambda way: len({trial.rung for trial in way.trials}))


def _num_elsewhere(ways: Sequence[_Way], shown: _Way) -> int:
    """Return the number of distinct trials that are not part of the shown attempt."""
    listed = {str(to_json(trial)) for trial in shown.tried}
    every = {str(to_json(t)) for way in ways for t in way.tried if not t.is_undone}
    return len(every - listed)


def _once(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return each trial once, with its last verdict, at the position of its first line.

    A resumed climb writes its trials again, and a trial may be undone later.
    """
    found: dict[str, Trial] = {}
    kept: dict[tuple[str, str], str] = {}
    for trial in trials:
        key, rung = str(to_json(trial)), (trial.rung, trial.recipe)
        if trial.is_undone and rung in kept:
            found[kept[rung]] = trial
            continue
        found[key] = trial
        kept[rung] = key
    return tuple(found.values())


def _last_words(trials: Sequence[Trial], tried: set[str]) -> tuple[Trial, ...]:
    last = {trial.rung: trial for trial in trials if trial.rung not in tried}
    return tuple(sorted(last.values(), key=lambda trial: trial.level))

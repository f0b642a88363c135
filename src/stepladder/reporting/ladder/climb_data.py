"""The climb of a run folder as data: whatever can be read of trials.jsonl and climb.json."""

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
    """What a run folder holds of a climb: of one way up, where climbs set out more than once.

    Attributes:
        summary: climb.json; empty where the climb did not end.
        trials: rungs that were tried, oldest first, each trial once, with the last word on it.
        untried: the last word on every other rung, in the order of the ladder.
        profiles: oldest first.
        is_summary_damaged: climb.json is there but cannot be read.
        num_elsewhere: trials of the ledger that only other climbs made.
    """

    summary: ClimbSummary
    trials: tuple[Trial, ...]
    untried: tuple[Trial, ...]
    profiles: tuple[Profile, ...]
    is_summary_damaged: bool = False
    num_elsewhere: int = 0

    @property
    def kept(self) -> tuple[Trial, ...]:
        """The trials whose rungs were kept, each rung once: its last one that was."""
        kept = [trial for trial in self.trials if trial.verdict.decision is Decision.KEPT]
        return tuple({trial.rung: trial for trial in kept}.values())


@dataclass(kw_only=True)
class _Way:
    """What a climb wrote on its way up from the job as written.

    Attributes:
        spent_s: what it took, and what climbs took that were stopped before they set out; empty
            where it has not ended, or was killed.
    """

    trials: list[Trial] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    spent_s: list[float] = field(default_factory=list)

    @property
    def tried(self) -> list[Trial]:
        """The trials of rungs that were tried, as they were written."""
        return [trial for trial in self.trials if trial.verdict.decision in TRIED]


def read_climb(run: Path, missing: list[str]) -> ClimbRecords | None:
    """Read a folder's climb; None if it holds none.

    Args:
        missing: gets a sentence for each thing that cannot be read.
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
    """Return a time or a ratio that can be drawn on a logarithmic axis, or None."""
    if value is None or not math.isfinite(value):
        return None
    return value if 1e-12 < value < 1e12 else None


def _summary(path: Path, missing: list[str]) -> ClimbSummary | None:
    """Read climb.json: empty where there is none, None where it is damaged."""
    if not path.exists():
        missing.append(f"{CLIMB_FILE} is missing: the climb did not end, or has not yet.")
        return ClimbSummary()
    try:
        return from_json(ClimbSummary, read_json(path))
    except (DataError, OSError) as error:
        missing.append(f"{CLIMB_FILE}: {error}.")
        return None


def _read_line(line: Mapping[str, Any], ways: list[_Way]) -> None:
    """Put what a line of the ledger says to the last way, or to a new one that it begins.

    Raises:
        DataError: if it is damaged.
    """
    kind = line.get("kind")
    if kind == "profile":
        if line.get("is_first") is True or ways[-1].spent_s:  # older ledgers mark none
            ways.append(_Way())
        ways[-1].profiles.append(from_json(Profile, line.get("profile")))
    elif kind == "trial":
        ways[-1].trials.append(from_json(Trial, line.get("trial")))
    elif kind == "spent":
        seconds = line.get("seconds")
        ways[-1].spent_s.append(seconds if isinstance(seconds, (int, float)) else 0.0)


def _shown_way(ways: Sequence[_Way], *, climb_s: float | None) -> _Way:
    """Return the way that climb.json tells of; without one the last that came as far as any.

    A climb that goes on finds another way where it keeps what was undecided before, as each later
    rung is tried anew then; the rows of two ways are no ladder.

    Args:
        climb_s: of climb.json: what all climbs had taken by then.
    """
    total_s = 0.0
    for way in ways:
        for seconds in way.spent_s:
            total_s += seconds
            if climb_s is not None and math.isclose(total_s, climb_s):
                return way
    return max(reversed(ways), key=lambda way: len({trial.rung for trial in way.trials}))


def _num_elsewhere(ways: Sequence[_Way], shown: _Way) -> int:
    """Count the trials, each once, that the way which is shown does not tell of."""
    told = {str(to_json(trial)) for trial in shown.tried}
    all_told = {str(to_json(t)) for way in ways for t in way.tried if not t.is_undone}
    return len(all_told - told)


def _once(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return each trial once, as a climb that went on writes it again; one that was undone as that.

    What is said last of a trial stands at the place of the first line.
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

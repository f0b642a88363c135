"""The climb of a run folder as data: whatever can be read of trials.jsonl and climb.json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """What a run folder holds of a climb.

    Attributes:
        summary: climb.json; empty where the climb did not end.
        trials: rungs that were tried, oldest first, each trial once, with the last word on it.
        untried: the last word on every other rung, in the order of the ladder.
        profiles: oldest first.
        is_summary_damaged: climb.json is there but cannot be read.
    """

    summary: ClimbSummary
    trials: tuple[Trial, ...]
    untried: tuple[Trial, ...]
    profiles: tuple[Profile, ...]
    is_summary_damaged: bool = False

    @property
    def kept(self) -> tuple[Trial, ...]:
        """The trials whose rungs were kept, each rung once: its last word."""
        last = {trial.rung: trial for trial in self.trials}
        return tuple(t for t in last.values() if t.verdict.decision is Decision.KEPT)


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
    trials: list[Trial] = []
    profiles: list[Profile] = []
    num_damaged = num_lines - len(lines)
    for line in lines:
        try:
            if line.get("kind") == "trial":
                trials.append(from_json(Trial, line.get("trial")))
            elif line.get("kind") == "profile":
                profiles.append(from_json(Profile, line.get("profile")))
        except DataError:
            num_damaged += 1
    if num_damaged:
        plural = "" if num_damaged == 1 else "s"
        missing.append(f"{LEDGER_FILE}: {num_damaged} line{plural} could not be read.")
    tried = _once([trial for trial in trials if trial.verdict.decision in TRIED])
    summary = _summary(run / CLIMB_FILE, missing)
    return ClimbRecords(
        summary=summary if summary is not None else ClimbSummary(),
        is_summary_damaged=summary is None,
        trials=tried,
        untried=_last_words(trials, {trial.rung for trial in tried}),
        profiles=tuple(profiles),
    )


def positive(value: float | None) -> float | None:
    """Give a time or a ratio that can be drawn on a logarithmic axis, or None."""
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


def _once(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Give each trial once, as a climb that went on writes it again; one that was undone as that.

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

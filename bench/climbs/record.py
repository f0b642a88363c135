"""Plain records of a climb, read from its folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stepladder.ladder.ledger import LEDGER_FILE, trials_of
from stepladder.records import read_json, to_json
from stepladder.records.climb import Baseline, Result
from stepladder.records.ladder import Decision, Trial
from stepladder.reporting.ladder.climb_data import read_climb

ENVIRONMENT_FILE = "env.json"


def climb_record(run: Path) -> dict[str, Any]:
    """Return the seconds of a finished climb, its verdicts in order, and the kept rungs."""
    climb = read_climb(run, missing=[])
    assert climb is not None, f"{run} holds a climb"
    trials = list(trials_of(run / LEDGER_FILE))
    summary = climb.summary
    record = {
        "climb_s": summary.climb_s,
        "as_written": _end(summary.baseline),
        "kept": _end(summary.result),
        "speedup": summary.speedup,
        "test_change": summary.test_change,
        "kept_change": kept_change(trials),
        "verdicts": verdicts(trials),
        "commit": (environment_of(run).get("git") or {}).get("commit"),
    }
    return dict(to_json(record))


def environment_of(run: Path) -> dict[str, Any]:
    """Return the machine and versions recorded in a run's folder."""
    return dict(read_json(run / ENVIRONMENT_FILE))


def verdicts(trials: Iterable[Trial]) -> list[dict[str, Any]]:
    """Return all verdicts in order; a rung that was tried again appears twice."""
    return [
        {
            "rung": trial.rung,
            "decision": trial.verdict.decision,
            "reason": trial.verdict.reason,
            "gain": trial.verdict.speed,
            "accuracy": trial.verdict.accuracy,
            "num_blocks": len(trial.before_s),
            "took_s": trial.took_s,
        }
        for trial in trials
    ]


def kept_change(trials: Sequence[Trial]) -> dict[str, list[Any]]:
    """Return the options that the kept rungs changed, as {option: [original, kept]}."""
    last = {trial.rung: trial for trial in trials}
    change: dict[str, list[Any]] = {}
    for trial in trials:
        if trial is last[trial.rung] and trial.verdict.decision is Decision.KEPT:
            for option, (before, after) in trial.change.items():
                change[option] = [change.get(option, [before])[0], after]
    return change


def _end(end: Baseline | Result | None) -> dict[str, Any] | None:
    if end is None:
        return None
    names = ("total_s", "epochs", "val_accuracy", "test_accuracy")
    return {name: getattr(end, name) for name in names}

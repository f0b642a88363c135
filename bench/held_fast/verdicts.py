"""Compare verdicts on recorded and random evidence, and bounds of block times."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.held_fast.checkout import Checkout, at_most

NUM_RANDOM = 20_000
NUM_TIMES = 3_000
SAME_TO = 1e-12
AIMS = ("time", "memory", "accuracy")
EXACTNESSES = ("bitwise", "rounding", "statistical")


def compare_verdicts(
    old: Checkout, new: Checkout, folder: Path, *, runs: Sequence[Path]
) -> tuple[list[str], list[str]]:
    """Judge all recorded trials and 20,000 random ones with each.

    Args:
        runs: folders that are searched for trials.jsonl.

    Returns:
        (differences, notes).
    """
    tables = {checkout.name: checkout.probe("rungs", {}, cwd=folder) for checkout in (old, new)}
    found = [] if tables["old"] == tables["new"] else ["aim or exactness of rungs differ"]
    recorded, decisions, times = _recorded(runs, tables["old"])
    source = random.Random(29)
    evidences = recorded + [_random_evidence(source) for _ in range(NUM_RANDOM)]
    times += [_random_times(source) for _ in range(NUM_TIMES)]
    given = {"evidences": evidences, "times": times}
    before, after = (checkout.probe("judge", given, cwd=folder) for checkout in (old, new))
    wrong = [
        f"evidence {idx}: {one}, now {other}: {json.dumps(evidences[idx])}"
        for idx, (one, other) in enumerate(zip(before["verdicts"], after["verdicts"], strict=True))
        if one != other
    ]
    wrong += [
        f"times {idx}: {one}, now {other}"
        for idx, (one, other) in enumerate(zip(before["speeds"], after["speeds"], strict=True))
        if not _is_same(one, other)
    ]
    pairs = zip(decisions, after["verdicts"], strict=False)
    num_as_recorded = sum(1 for decision, verdict in pairs if decision == verdict[0])
    counts = {
        decision: sum(1 for verdict in after["verdicts"] if verdict[0] == decision)
        for decision in ("kept", "dropped", "undecided")
    }
    notes = [
        f"{len(recorded)} recorded trials ({num_as_recorded} with the recorded decision; "
        f"records do not contain all evidence), {NUM_RANDOM:,} random ones: {counts}",
        f"{len(times):,} bounds of block times",
    ]
    return found + at_most(wrong), notes


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    pairs = zip(one, other, strict=True)
    return all(math.isclose(a, b, rel_tol=SAME_TO, abs_tol=0) or a == b for a, b in pairs)


def _recorded(
    folders: Sequence[Path], rungs: dict[str, list[str]]
) -> tuple[list[dict[str, Any]], list[str], list[dict[str, Any]]]:
    """Read trials from ledgers: their evidence as far as it is recorded, decisions, and times."""
    evidences, decisions, times = [], [], []
    files = [path for folder in folders for path in sorted(folder.rglob("trials*.jsonl"))]
    for path in files:
        for line in path.read_text().splitlines():
            if '"kind": "trial"' not in line:
                continue
            trial = json.loads(line)["trial"]
            verdict = trial["verdict"]
            if trial["rung"] not in rungs or verdict["decision"] not in (
                "kept",
                "dropped",
                "undecided",
            ):
                continue
            aim, exactness = rungs[trial["rung"]]
            evidence = {"aim": aim, "exactness": exactness, "found": verdict["exactness"]}
            evidence |= {name: verdict[name] for name in ("speed", "accuracy", "loss")}
            evidence |= {"num_epochs": verdict["num_epochs"], "num_held_out": 100}
            options = {"aim": "accuracy"} if aim == "accuracy" else {}
            evidences.append({"evidence": evidence, "options": options})
            decisions.append(verdict["decision"])
            blocks = [trial["before_s"], trial["after_s"]]
            seeds = [trial["before_epochs"], trial["after_epochs"]]
            by_seed = seeds if len(seeds[0]) == len(seeds[1]) >= 2 else None
            for confidence in (0.95, 0.975):
                if blocks[0]:
                    shared = {"confidence": confidence, "blocks": blocks}
                    times.append({"kind": "blocks", **shared})
                    times.append({"kind": "combined", "seeds": by_seed, **shared})
    return evidences, decisions, times


def _random_evidence(source: random.Random) -> dict[str, Any]:
    """Draw evidence near the thresholds of every rule, with parts missing."""

    def interval(centre: float, spread: float) -> dict[str, float] | None:
        if source.random() < 0.15:
            return None
        estimate = source.gauss(centre, spread)
        low, high = (abs(source.gauss(0, spread)) for _ in range(2))
        if source.random() < 0.1:
            low = high = 0.0
        return {
            "estimate": estimate,
            "low": estimate - low,
            "high": estimate + high,
            "confidence": source.choice((0.9, 0.95, 0.975)),
        }

    speed = interval(0.1, 0.3)
    if speed is not None:
        speed |= {key: math.exp(speed[key]) for key in ("estimate", "low", "high")}
    evidence = {
        "aim": source.choice(AIMS),
        "exactness": source.choice(EXACTNESSES),
        "found": source.choice(("", "equal", "same to 1e-5")),
        "speed": speed,
        "cut_short": source.choice((None, None, None, "the budget ended")),
        "is_too_little": source.random() < 0.1,
        "accuracy": interval(0.0, 0.02),
        "loss": interval(0.0, 0.02),
        "loss_before": source.choice((None, 0.0, source.uniform(-1, 3), source.uniform(0, 3))),
        "num_held_out": source.choice((0, 1, 12, 140, 5000)),
        "why_no_outcomes": source.choice((None, None, None, None, "diverged")),
        "memory_frac": source.choice((None, 0.001, 0.9, source.random() * 1.3)),
        "num_epochs": source.choice((None, source.uniform(1, 60))),
        "is_replayed": source.random() < 0.5,
        "num_trainings": source.choice((0, 2, 5)),
    }
    options = {
        "aim": source.choice(("time", "accuracy", "fit")),
        "min_gain": source.choice((0.0, 0.03, 0.1)),
        "max_accuracy_loss": source.choice((0.0, 0.01, 0.05)),
        "time_per_point": source.choice((1.0, 1.5, 4.0)),
    }
    return {"evidence": evidence, "options": options}


def _random_times(source: random.Random) -> dict[str, Any]:
    """Draw block times and epochs from a seed; sometimes too few, or all equal."""

    def pair(count: int, spread: float) -> list[list[float]]:
        ratio = math.exp(source.gauss(0, 0.4))
        before = [math.exp(source.gauss(0, spread)) for _ in range(count)]
        return [before, [ratio * value * math.exp(source.gauss(0, spread)) for value in before]]

    spread = source.choice((0.0, 0.01, 0.1, 0.5))
    blocks = pair(source.choice((2, 5, 8, 9, 12, 30, 100)), spread)
    seeds = source.choice((None, pair(source.choice((2, 3, 5, 10)), source.choice((0.0, 0.2)))))
    kind = source.choice(("blocks", "combined"))
    confidence = source.choice((0.8, 0.9, 0.95, 0.975, 0.995))
    return {"kind": kind, "blocks": blocks, "seeds": seeds, "confidence": confidence}

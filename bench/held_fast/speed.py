"""Compare speed: pairs in rotated order, each measurement in a process of its own."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bench.held_fast.checkout import Checkout
from bench.held_fast.pictures import TRUNK, write_plain, write_trunk

NUM_PICTURES = 256
SLOWER = 1.03
"""Ratio above which the new one is slower, if its whole interval is above 1 as well."""
_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16)
_T_LARGE = 2.1
UNSOUND = 6
"""Exit code of `check` if a check failed."""
CLIMB = (
    *("--try-all", "--budget=1h", "--data.fraction=0.25", "--schedule.max-epochs=2"),
    *("--ladder.block-s=0.05", "--ladder.num-seeds=2"),
)
"""Each rung to its verdict: where a budget ends a climb, its time is the budget's."""


def compare_speed(
    old: Checkout,
    new: Checkout,
    folder: Path,
    *,
    store: Path | None,
    pairs: int,
    climb_pairs: int,
) -> tuple[list[str], list[str]]:
    """Time both in pairs, and bound new / old by Student's t on log ratios.

    Args:
        store: of the demo, for `check`; None: skipped.
        pairs: number of pairs of each measurement, after one that is dropped.
        climb_pairs: number of pairs of complete climbs; 0: none.

    Returns:
        (differences, notes): significant slowdowns, and all ratios.
    """
    write_plain(folder / "pictures", NUM_PICTURES, size=(320, 240))
    for encoding in ("pixels", "jpeg"):
        options = ("--quiet", "--size", "128", "--encoding", encoding)
        old.require("prepare", "pictures", "--out", encoding, *options, cwd=folder)
    write_trunk(folder, "test_resnet")

    def probe(kind: str, **arguments: object) -> Callable[[Checkout], float]:
        def once(checkout: Checkout) -> float:
            out = folder / f"out-{checkout.name}"
            shutil.rmtree(out, ignore_errors=True)
            given = {"kind": kind, "out": str(out), **arguments}
            return float(checkout.probe("timing", given, cwd=folder))

        return once

    def command(*words: str) -> Callable[[Checkout], float]:
        return lambda checkout: _time_command(checkout, folder, words)

    kinds = {
        "tiny steps": probe("tiny steps", epochs=8),
        "reader pixels": probe("reader pixels", store=str(folder / "pixels"), epochs=20),
        "reader jpeg": probe("reader jpeg", store=str(folder / "jpeg"), epochs=5),
        "prepare": probe("prepare", source=str(folder / "pictures")),
        "--help": command("--help"),
        "train --help": command("train", "--help"),
    }
    if store is not None:
        kinds["check"] = command(
            "check", f"--data.store={store}", "--run.dir=out-command", "--fresh", "--quiet"
        )
    found, notes = [], []
    counts = dict.fromkeys(kinds, pairs)
    if climb_pairs:
        tiny = ("--model.name=test_resnet", f"--model.weights={TRUNK}", "--run.checks=off")
        kinds["climb"] = command(
            "climb", "--data.store=pixels", "--run.dir=out-command", "--quiet", *tiny, *CLIMB
        )
        counts["climb"] = climb_pairs
    for name, once in kinds.items():
        if not counts[name]:
            continue
        line, is_slower = _measure(name, once, (old, new), counts[name])
        notes.append(line)
        found += [f"slower: {line}"] if is_slower else []
    return found, notes


def _time_command(checkout: Checkout, folder: Path, words: tuple[str, ...]) -> float:
    for left in (folder / "out-command", folder / "pixels.features"):
        shutil.rmtree(left, ignore_errors=True)
    started = time.perf_counter()
    done = checkout.command(*words, cwd=folder)
    seconds = time.perf_counter() - started
    if done.returncode not in (0, UNSOUND):
        raise RuntimeError(f"{checkout.name}: {' '.join(words)}: {done.stderr[-1000:]}")
    return seconds


def _measure(
    name: str, once: Callable[[Checkout], float], both: tuple[Checkout, Checkout], pairs: int
) -> tuple[str, bool]:
    """Measure pairs in alternating order; the first pair warms caches and is dropped.

    Returns:
        (summary of the ratios, True if the new one is significantly slower).
    """
    times: dict[str, list[float]] = {"old": [], "new": []}
    for turn in range(pairs + 1):
        for checkout in both if turn % 2 else both[::-1]:
            seconds = once(checkout)
            if turn:
                times[checkout.name].append(seconds)
    ratios = [new_s / old_s for old_s, new_s in zip(times["old"], times["new"], strict=True)]
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    sem = statistics.stdev(logs) / math.sqrt(pairs) if pairs > 1 else math.inf
    half = (_T[pairs - 2] if 2 <= pairs < len(_T) + 2 else _T_LARGE) * sem
    low, high = (math.exp(mean - half), math.exp(mean + half)) if pairs > 1 else (0.0, math.inf)
    line = (
        f"{name}: new / old {statistics.median(ratios):.3f} (mean {math.exp(mean):.3f}, "
        f"95 % {low:.3f} to {high:.3f}, range {min(ratios):.3f} to {max(ratios):.3f}, n = {pairs}, "
        f"old {statistics.median(times['old']):.4g} s)"
    )
    return line, low > 1 and math.exp(mean) > SLOWER

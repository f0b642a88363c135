"""Test whether a climb's headline and verdicts hold while other programs use the machine.

Goals: of ten climbs beside a program that loads every core during random parts, the headline of
nine lies within a factor of 1.25 of the quiet one, and their verdicts differ from the quiet ones no
more than quiet climbs differ among themselves.

    python -m bench.climbs.loaded [--climbs 10] [--quiet 4] [--workload frozen_batch_2]
        [--runs FOLDER] [--quick]

Quiet and loaded climbs of one job, with one seed, take turns. The load is one process per core,
which computes for 5 to 40 s and then sleeps for 5 to 40 s, by its own random numbers. The headline
is the ratio that the page and the terminal quote. With the same --runs, finished climbs are not
repeated.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from bench.climbs.record import climb_record, environment_of
from bench.climbs.repeated import Climbed, climb, decisions, majorities
from bench.climbs.workloads import WORKLOADS
from bench.rows import markdown, write_rows

GOAL_FACTOR = 1.25
PART_S = (5.0, 40.0)
"""Shortest and longest part with or without load."""
IS_LOAD = "--load"


@dataclass(frozen=True)
class Kind:
    """Whether other programs run during a climb.

    Attributes:
        name: shown in the table.
        first: number of its first climb, so that no two climbs share a folder.
    """

    name: str
    first: int


QUIET, LOADED = Kind("quiet", 100), Kind("loaded", 0)
SEED = 0


def load(seed: int) -> None:
    """Use one core during random parts, until the process that started this one has ended."""
    numbers, parent = random.Random(seed), os.getppid()
    while os.getppid() == parent:
        until = time.monotonic() + numbers.uniform(*PART_S)
        while time.monotonic() < until and os.getppid() == parent:
            sum(range(100_000))
        until = time.monotonic() + numbers.uniform(*PART_S)
        while time.monotonic() < until and os.getppid() == parent:
            time.sleep(0.2)


@contextmanager
def loading(seed: int) -> Iterator[None]:
    """Load every core for as long as the block runs; all cores are loaded in the same parts."""
    command = [sys.executable, "-m", "bench.climbs.loaded", IS_LOAD, str(seed)]
    running = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def turns(num_quiet: int, num_loaded: int) -> list[tuple[Kind, int]]:
    """Return the climbs in an order that spreads the quiet ones evenly."""
    every = [(at / max(num_quiet, 1), QUIET, at) for at in range(num_quiet)]
    every += [((at + 0.5) / max(num_loaded, 1), LOADED, at) for at in range(num_loaded)]
    return [(kind, kind.first + at) for _, kind, at in sorted(every, key=lambda one: one[0])]


def num_between(one: Climbed, other: Climbed) -> int:
    """Count the rungs on which two climbs decide differently."""
    rungs = dict.fromkeys([*one, *other])
    return sum(
        rung not in one
        or rung not in other
        or one[rung].verdict.decision != other[rung].verdict.decision
        for rung in rungs
    )


def kind_row(
    kind: Kind, rounds: Sequence[dict[str, Any]], quiet: float, among: Sequence[int]
) -> dict[str, Any]:
    """Return one row of the table: headlines of a kind, and how its verdicts differ.

    Args:
        kind: of climbs.
        rounds: its climbs.
        quiet: median headline of the quiet climbs.
        among: rungs that differ, of each pair of one of its climbs with a quiet one.
    """
    ratios = [one["speedup"] for one in rounds]
    within = [abs(math.log(ratio / quiet)) <= math.log(GOAL_FACTOR) for ratio in ratios]
    return {
        "climbs": kind.name,
        "num": len(rounds),
        "headline_median": statistics.median(ratios),
        "headline_min": min(ratios),
        "headline_max": max(ratios),
        "within_1.25_of_quiet": f"{sum(within)} of {len(within)}",
        "rungs_differing_mean": statistics.mean(among) if among else "-",
        "rungs_differing_max": max(among, default=0),
        "climb_s_median": statistics.median(one["climb_s"] for one in rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--climbs", type=int, default=10, help="number of loaded climbs")
    parser.add_argument("--quiet", type=int, default=4, help="number of quiet climbs")
    parser.add_argument("--workload", choices=names, default=names[0], metavar="NAME")
    parser.add_argument("--runs", type=Path, help="folder of the climbs; default: a temporary one")
    parser.add_argument("--quick", action="store_true", help="tiny smoke test")
    parser.add_argument(IS_LOAD, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load is not None:
        load(options.load)
        return
    climbs: dict[Kind, list[Climbed]] = {QUIET: [], LOADED: []}
    rounds: dict[Kind, list[dict[str, Any]]] = {QUIET: [], LOADED: []}
    place = None
    with tempfile.TemporaryDirectory() as temporary:
        runs = options.runs or Path(temporary)
        for kind, idx in turns(options.quiet, options.climbs):
            if kind is LOADED:
                with loading(idx):
                    run = climb(idx, options, runs, seed=SEED)
            else:
                run = climb(idx, options, runs, seed=SEED)
            climbs[kind].append(decisions(run))
            record = climb_record(run)
            rounds[kind].append({"climbs": kind.name, "idx": idx, **record})
            place = environment_of(run)
            shown = f"{record['speedup']:.0f}×, {record['climb_s']:.0f} s"
            print(f"{kind.name} {idx}: {shown}", flush=True)
    quiet = statistics.median(one["speedup"] for one in rounds[QUIET])
    among = {
        QUIET: [num_between(*pair) for pair in combinations(climbs[QUIET], 2)],
        LOADED: [num_between(one, other) for one in climbs[LOADED] for other in climbs[QUIET]],
    }
    rows = [kind_row(kind, rounds[kind], quiet, among[kind]) for kind in rounds if rounds[kind]]
    majority = majorities(climbs[QUIET])
    differing = [
        ", ".join(
            rung
            for rung, wanted in majority.items()
            if rung not in one or one[rung].verdict.decision != wanted
        )
        or "none"
        for one in climbs[LOADED]
    ]
    note = (
        f"{len(climbs[QUIET])} quiet climbs of {options.workload} and {len(climbs[LOADED])} beside "
        "one process per core that computes during random parts of 5 to 40 s, in turn. Headlines "
        "are compared with the median of the quiet ones (goal: 9 of 10 within a factor of 1.25); "
        "rungs_differing counts the rungs that two climbs decide differently, of pairs of quiet "
        "climbs, and of pairs of a loaded and a quiet one (goal: no more). Rungs on which a loaded "
        f"climb differs from the majority of the quiet ones: {'; '.join(differing)}."
    )
    if options.quick:
        print(note, markdown(rows), sep="\n\n")
    else:
        write_rows(
            "loaded_climbs", rows, note=note, rounds=[*rounds[QUIET], *rounds[LOADED]], place=place
        )


if __name__ == "__main__":
    main()

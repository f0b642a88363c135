"""Compare a climb with a greedy search over all rungs, to judge the order of the rungs.

The search tries every rung in each round and takes the one that gained most, until none is kept:
the best result of single steps in any order. Goals: the climb's final recipe takes at most 10 %
more time than the search's, and the rung that was advised first was kept in at least 90 % of the
workloads.

    python -m bench.climbs.advice [--workloads NAME ...] [--repeats 5] [--log FILE] [--quick]

Both use the same ledger, so a trial is never repeated on the same recipe. Both final recipes are
then trained in turn from a cold start, each time in a process of its own (cold_training.py), and
the medians are compared. If they are the same recipe, there is nothing to compare. The search is
slow: each of its rounds tries all rungs. Each finished workload is a line in --log; with the same
file, an interrupted benchmark resumes, and a complete one only writes its results again.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.climbs.cold_training import train_cold
from bench.climbs.record import verdicts
from bench.climbs.workloads import (
    WORKLOADS,
    Workload,
    by_name,
    job_of,
    quick_settings,
    store_of,
    use_cores,
)
from bench.log import Log
from bench.rows import markdown, write_rows
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.ladder.advise import advise_on
from stepladder.ladder.climb import Climb
from stepladder.ladder.lab import Lab
from stepladder.ladder.ledger import LEDGER_FILE, Ledger, trials_of
from stepladder.ladder.limits.guard import TrialFailed
from stepladder.ladder.trial import change_between
from stepladder.machine import keep_freed_memory
from stepladder.records import to_json
from stepladder.records.ladder import Decision
from stepladder.rungs import RUNGS, Rung
from stepladder.task.load import BUILT_IN, load_task
from stepladder.training.output.display import Display
from stepladder.training.setup.build import open_device, open_sources, resolve_auto

ROUNDS = "rounds"
"""Key of the rounds that a row of the log summarizes; they are written next to the rows."""


def greedy(climbing: Climb) -> tuple[Recipe, list[str]]:
    """Take the rung that gains most until none is kept; return the final recipe and the order."""
    order: list[str] = []
    climbing.measure()
    while True:
        kept: list[tuple[float, Rung, Recipe]] = []
        for rung in RUNGS:
            try:
                trial, after = climbing.consider(rung)
            except TrialFailed:  # the rung failed: no gain
                continue
            if trial.verdict.decision is Decision.KEPT and trial.verdict.speed is not None:
                kept.append((trial.verdict.speed.estimate, rung, after))
        if not kept:
            return climbing.recipe, order
        gain, rung, after = max(kept, key=lambda one: one[0])
        order.append(f"{rung.name} {gain:.2f}x")
        climbing.recipe = after
        climbing.measure()


def climb_of(lab: Lab, folder: Path) -> Climb:
    """Return a climb of the lab's job that reads and writes the ledger in a folder."""
    return Climb(
        lab=lab,
        ledger=Ledger(folder),
        display=Display(io.StringIO()),
        show=lambda _: None,
        job="advice",
        machine="this",
        recipe=lab.job.recipe,
        rungs=RUNGS,
    )


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Results of a climb and a search.

    Attributes:
        advised: the rung that is advised for the original job, or None.
        advised_was: the climb's first decision on it; empty if nothing was advised.
        order: the rungs that the search took, in order.
        verdicts: of the climb, then of the search, in order.
    """

    climbed: Recipe
    found: Recipe
    advised: str | None
    advised_was: str
    order: tuple[str, ...]
    verdicts: tuple[dict[str, Any], ...]


def climb_and_search(job: JobConfig, workload: Workload, folder: Path) -> Ends:
    """Climb a job, then run the greedy search from the same start."""
    task = load_task(workload.task or BUILT_IN, store=job.recipe.data.store, recipe=job.recipe)
    sources = open_sources(task)
    job = resolve_auto(job, sources)
    device = open_device(job.recipe)
    keep_freed_memory()
    folder.mkdir(parents=True)
    with Lab(
        job=job,
        task=task,
        sources=sources,
        device=device,
        cache=folder / "cache",
        seed=job.recipe.seed,
    ) as lab:
        climbing = climb_of(lab, folder)
        climbed = climbing.run()
        tried = tuple(trials_of(folder / LEDGER_FILE))
        advice = advise_on(climbing.profiles[0], job.recipe, job.ladder, rungs=RUNGS)
        advised = advice.next.rung if advice.next else None
        was = next((str(one.verdict.decision) for one in tried if one.rung == advised), "")
        found, order = greedy(climb_of(lab, folder))
        decided = tuple(verdicts(trials_of(folder / LEDGER_FILE)))
    return Ends(
        climbed=climbed,
        found=found,
        advised=advised,
        advised_was=was,
        order=tuple(order),
        verdicts=decided,
    )


def train_ends(
    job: JobConfig, ends: Ends, workload: Workload, options: argparse.Namespace, work: Path
) -> list[dict[str, Any]]:
    """Train both final recipes from a cold start, in turn; return a record of each training."""
    trainings = []
    store = store_of(workload, options.stores)
    for at in range(options.repeats):
        both = [("climb", ends.climbed), ("search", ends.found)]
        for label, recipe in both[:: -1 if at % 2 else 1]:
            run = replace(job.run, dir=work / f"{label}{at}")
            trained = train_cold(
                replace(job, recipe=recipe, run=run),
                task=workload.task,
                store=store,
                num_cores=workload.num_cores,
            )
            trainings.append({"end": label, "round": at, **trained})
    return trainings


def measure(name: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Climb and search in this process and compare the results; return a row with its rounds."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a trunk without weights is kept
    workload = by_name(name)
    use_cores(workload.num_cores)
    job = job_of(workload, work=options.stores, out=work / "run", more={})
    if options.quick:
        more = quick_settings(job.recipe)
        job = job_of(workload, work=options.stores, out=work / "run", more=more)
    ends = climb_and_search(job, workload, work / "search")
    is_same = ends.climbed == ends.found
    trainings = [] if is_same else train_ends(job, ends, workload, options, work)
    times = {
        end: [one["seconds"] for one in trainings if one["end"] == end]
        for end in ("climb", "search")
    }
    climb_s, search_s = (statistics.median(times[at] or [1.0]) for at in ("climb", "search"))
    change = change_between(ends.climbed, ends.found)
    return {
        "workload": name,
        "advised": ends.advised or "nothing",
        "advised_was": ends.advised_was or "-",
        "climb_s": "-" if is_same else climb_s,
        "search_s": "-" if is_same else search_s,
        "climb_over_search": climb_s / search_s,
        "n": len(times["climb"]),
        "search_order": ", ".join(ends.order) or "-",
        "same_recipe": is_same,
        "differs_in": ", ".join(change) or "-",
        ROUNDS: to_json(
            {"trainings": trainings, "verdicts": ends.verdicts, "from_climb_to_search": change}
        ),
    }


def in_own_process(name: str, options: argparse.Namespace, stores: Path) -> dict[str, Any] | None:
    """Measure one workload in a fresh process; return None if it failed."""
    command = [sys.executable, "-m", "bench.climbs.advice", "--one", name, "--stores", str(stores)]
    command += ["--repeats", str(options.repeats)]
    done = subprocess.run(
        [*command, *(["--quick"] if options.quick else [])],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"{name} failed:\n{done.stderr[-2000:]}", flush=True)
        return None
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--workloads", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument(
        "--repeats", type=int, default=5, help="number of trainings of each final recipe"
    )
    parser.add_argument("--log", type=Path, help="log of finished workloads; default: in /tmp")
    parser.add_argument("--quick", action="store_true", help="tiny smoke test")
    parser.add_argument("--one", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--stores", type=Path, help="folder of the stores; default: temporary")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        if options.one:
            print(json.dumps(measure(options.one, options, work)))
            return
        log = Log(options.log or work / "log.jsonl")
        for name in options.workloads:
            if log.find(workload=name):
                continue
            print(f"climbing and searching {name}", flush=True)
            row = in_own_process(name, options, options.stores or work / "stores")
            if row is not None:
                log.add(row)
                print({key: value for key, value in row.items() if key != ROUNDS}, flush=True)
        found = [row for name in options.workloads if (row := log.find(workload=name))]
        rounds = [{"workload": row["workload"], **row.pop(ROUNDS, {})} for row in found]
        rows = found
    if not rows:
        raise SystemExit("no workload ended")
    kept = [row["advised_was"] == "kept" for row in rows if row["advised"] != "nothing"]
    near = sum(row["climb_over_search"] <= 1.1 for row in rows)
    note = (
        f"{len(rows)} of {len(options.workloads)} workloads. The climb's final recipe takes at "
        f"most 1.1 times the time of the greedy search's in {near} (goal: all). The rung advised "
        f"first was kept in {sum(kept)} of {len(kept)} (goal: 90 %). Seconds to a trained model, "
        "medians of n trainings from a cold start, in turn, each in a process of its own, from "
        "before the call to its return, without the last evaluation; n = 0: both ended with the "
        "same recipe."
    )
    if options.quick:
        print(note, markdown(rows), sep="\n\n")
    else:
        write_rows("advice", rows, note=note, rounds=rounds, place=log.environment)


if __name__ == "__main__":
    main()

"""Is the order of the rungs good enough? A climb beside a greedy search over all rungs.

The search tries every rung in each round and takes the one that gained most, until none is kept:
the best that single steps in any order reach. Goals: the climb's end state takes at most 10 % more
time than the search's, and the rung that was advised first was kept in at least 90 % of the
workloads.

    python bench/advice.py [--workloads NAME ...] [--budget 300] [--repeats 3] [--quick]

Both end states are then trained from cold, in turn, and the medians compared. The search is slow:
as many trials as there are rungs, in each of its rounds.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from rows import markdown, write_rows
from workloads import (
    WORKLOADS,
    Workload,
    by_name,
    forget_artefacts,
    job_of,
    quick_settings,
    use_cores,
)

import stepladder
from stepladder.config.load import load_job
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.config.show import dump_job
from stepladder.ladder.climb import Climb
from stepladder.ladder.lab import Lab
from stepladder.ladder.ledger import LEDGER_FILE, Ledger, trials_of
from stepladder.machine import keep_freed_memory
from stepladder.records.ladder import Decision, Trial
from stepladder.rungs import RUNGS, Rung
from stepladder.task.load import BUILT_IN, load_task
from stepladder.train.build import choose_device, open_sources, resolve_auto
from stepladder.train.display import Display

TRIED = (Decision.KEPT, Decision.DROPPED, Decision.UNDECIDED)


def greedy(climbing: Climb) -> tuple[Recipe, list[str]]:
    """Take the rung that gains most, again and again; give the end state and the order."""
    order: list[str] = []
    climbing.measure()
    while True:
        kept: list[tuple[float, Rung, Recipe]] = []
        for rung in RUNGS:
            trial, after = climbing.consider(rung)
            if trial.verdict.decision is Decision.KEPT and trial.verdict.speed is not None:
                kept.append((trial.verdict.speed.estimate, rung, after))
        if not kept:
            return climbing.recipe, order
        gain, rung, after = max(kept, key=lambda one: one[0])
        order.append(f"{rung.name} {gain:.2f}x")
        climbing.recipe = after
        climbing.measure()


def search(job: JobConfig, workload: Workload, folder: Path) -> tuple[Recipe, list[str]]:
    """Run the greedy search on a job."""
    task = load_task(workload.task or BUILT_IN, store=job.recipe.data.store, recipe=job.recipe)
    sources = open_sources(task)
    job = resolve_auto(job, sources)
    device = choose_device(job.recipe.device.kind)
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
        climbing = Climb(
            lab=lab,
            ledger=Ledger(folder),
            display=Display(io.StringIO()),
            show=lambda _: None,
            job="greedy",
            machine="this",
            recipe=job.recipe,
            rungs=RUNGS,
            reads_ledger=False,
        )
        return greedy(climbing)


def first_tried(run: Path) -> Trial | None:
    """Give the climb's first trial: what was advised."""
    trials = trials_of(run / LEDGER_FILE)
    return next((trial for trial in trials if trial.verdict.decision in TRIED), None)


def train_s(job: JobConfig, recipe: Recipe, workload: Workload, folder: Path) -> float:
    """Train by a recipe from cold; give seconds to the trained model."""
    forget_artefacts(recipe.data.store)
    run = stepladder.train(
        config=replace(job, recipe=recipe, run=replace(job.run, dir=folder)),
        task=workload.task,
        display=Display(io.StringIO()),
    )
    return float(run.summary["train_s"])


def measure(name: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Climb, search, and compare the two ends, in this process."""
    workload = by_name(name)
    use_cores(workload.num_cores)
    more: dict[str, object] = {"ladder.budget_s": options.budget}
    job = job_of(workload, work=options.stores, out=work / "climb", more=more)
    if options.quick:
        more |= quick_settings(job.recipe)
        job = job_of(workload, work=options.stores, out=work / "climb", more=more)
    run = stepladder.climb(
        config=job, task=workload.task, fresh=True, display=Display(io.StringIO())
    )
    climbed = load_job(run.path / "config.yaml").recipe
    unbounded = replace(job, ladder=replace(job.ladder, budget_s=None))
    found, order = search(unbounded, workload, work / "search")
    times: dict[str, list[float]] = {"climb": [], "search": []}
    for at in range(options.repeats):
        ends = [("climb", climbed), ("search", found)]
        for label, recipe in ends[:: -1 if at % 2 else 1]:
            times[label].append(train_s(job, recipe, workload, work / f"{label}{at}"))
    advised = first_tried(run.path)
    climb_s, search_s = (statistics.median(times[label]) for label in ("climb", "search"))
    (work / "search.yaml").write_text(dump_job(replace(job, recipe=found)))
    return {
        "workload": name,
        "advised": advised.rung if advised else "nothing",
        "advised_was": str(advised.verdict.decision) if advised else "-",
        "climb_s": climb_s,
        "search_s": search_s,
        "climb_over_search": climb_s / search_s,
        "n": options.repeats,
        "search_order": ", ".join(order) or "-",
        "same_recipe": climbed == found,
    }


def in_own_process(name: str, options: argparse.Namespace, stores: Path) -> dict[str, Any] | None:
    """Measure one workload in a fresh process; None if it failed."""
    command = [sys.executable, __file__, "--one", name, "--stores", str(stores)]
    command += ["--budget", str(options.budget), "--repeats", str(options.repeats)]
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
    parser.add_argument("--budget", type=float, default=300, help="seconds for each climb")
    parser.add_argument("--repeats", type=int, default=3, help="trainings of each end state")
    parser.add_argument("--quick", action="store_true", help="tiny: does it run?")
    parser.add_argument("--one", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--stores", type=Path, help="folder of the stores; default: temporary")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        if options.one:
            print(json.dumps(measure(options.one, options, work)))
            return
        stores = options.stores or work / "stores"
        rows = []
        for name in options.workloads:
            print(f"climbing and searching {name}", flush=True)
            row = in_own_process(name, options, stores)
            if row is not None:
                print(row, flush=True)
                rows.append(row)
    if not rows:
        raise SystemExit("no workload ended")
    kept = [row["advised_was"] == "kept" for row in rows if row["advised"] != "nothing"]
    near = sum(row["climb_over_search"] <= 1.1 for row in rows)
    note = (
        f"{len(rows)} of {len(options.workloads)} workloads. The climb's end state takes at most "
        f"1.1 times the time of the greedy search's in {near} (goal: all). What was advised first "
        f"was kept in {sum(kept)} of {len(kept)} (goal: 90 %). Seconds to a trained model, medians "
        "of n trainings from cold, in turn."
    )
    if options.quick:
        print(note, markdown(rows), sep="\n\n")
    else:
        write_rows("advice", rows, note=note)


if __name__ == "__main__":
    main()

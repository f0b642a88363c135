"""stepladder's reader and writer against other libraries, on the same photographs.

    python -m bench.loaders.compare --group GROUP (--caltech TAR | --photos FOLDER)
        [--folder runs/loaders] [--rounds 10] [--venv NAME=PYTHON ...] [--only NAME ...]

Groups: pixels (globally shuffled), pixels-shards (shuffled by shard and buffer), jpeg, presized,
prepare, limits, object-store, spark. A group takes minutes. Its data are created once and kept in
--folder, so that groups can be run separately and repeated.

Each contender runs in a process of its own, with its own Python if --venv NAME=PATH (or the
variable LOADERS_PYTHON_NAME) is set; NAME is a module of loaders/contenders, or `peers` for all
that need a package. Those that are not installed are listed. Several settings of each contender are
tried, and the fastest one is measured: --tune only does that, and keeps the choice in --folder.

All contenders read whole epochs in batches of 64 uint8 pictures on two cores, with warm data, and
every batch is touched once per 4 KB. A trial reads epochs for at least 0.8 s. Rounds are in rotated
order; all processes stay alive, and one works at a time.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.loaders import limits, object_store, spark_prepare
from bench.loaders.child import MODULES, Pythons, module
from bench.loaders.contract import Job, Kind, Shuffle
from bench.loaders.photographs import make_photographs
from bench.loaders.preparing import (
    OURS,
    WRITERS,
    choose_writers,
    measure_writers,
    prepare_plan,
)
from bench.loaders.reading import (
    Choices,
    Plan,
    choose_settings,
    compare,
    make_formats,
    measure,
)
from bench.measure import environment
from bench.pictures import caltech_rows
from bench.rows import write_rows

NUM_CORES = 2
READING: dict[str, tuple[Kind, tuple[Shuffle, ...]]] = {
    "pixels": (Kind.PIXELS, (Shuffle.GLOBAL,)),
    "pixels-shards": (Kind.PIXELS, (Shuffle.SHARDS,)),
    "jpeg": (Kind.JPEG, (Shuffle.GLOBAL, Shuffle.SHARDS)),
    "presized": (Kind.PRESIZED, (Shuffle.GLOBAL, Shuffle.SHARDS)),
}
OTHER: dict[str, Callable[[argparse.Namespace, Plan], None]] = {
    "limits": limits.run,
    "object-store": object_store.run,
    "spark": spark_prepare.run,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--group", required=True, choices=(*READING, "prepare", *OTHER))
    parser.add_argument("--caltech", type=Path, help="tar file of the Caltech-101 subset")
    parser.add_argument("--photos", type=Path, help="folder of JPEGs, searched recursively")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/loaders"), help="folder for the data"
    )
    parser.add_argument(
        "--out", type=Path, help="folder for the output of `prepare`; default: --folder"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pictures", type=int, default=3072, help="pictures per epoch")
    parser.add_argument("--prepare-pictures", type=int, default=2048)
    parser.add_argument("--size", type=int, default=299)
    parser.add_argument("--min-s", type=float, default=0.8, help="minimum seconds of a trial")
    parser.add_argument("--large-bytes", type=int, default=limits.LARGE_BYTES, help="for limits")
    parser.add_argument("--venv", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--only", nargs="*", default=[], choices=MODULES)
    parser.add_argument("--tune", action="store_true", help="only choose settings")
    parser.add_argument("--results", help="name of the results; default: loaders_GROUP")
    return parser.parse_args()


def photographs(args: argparse.Namespace) -> None:
    if args.photos:
        sources = sorted(args.photos.rglob("*.jp*g"))
    elif args.caltech:
        sources = [path for path, _, _ in caltech_rows(args.caltech, args.folder / "caltech")]
    else:
        raise SystemExit("pass --caltech TAR or --photos FOLDER")
    make_photographs(sorted(sources), args.folder, count=args.pictures, size=args.size)


def measure_reading(args: argparse.Namespace, plan: Plan) -> None:
    missing = not_installed(plan, {line.name: name for name, line in plan.lines()})
    make_formats(plan, missing=missing)
    choices = Choices(args.folder / f"settings-{plan.job.kind}.json")
    choose_settings(plan, choices, missing)
    if args.tune:
        print("\n".join(f"not measured: {name}: {why}" for name, why in missing.items()))
        return
    found = compare(measure(plan, choices, missing))
    tried = {
        line.name: {**choices.by_line[plan.key(line)], "shuffle": line.shuffle}
        for _, line in plan.lines()
        if plan.key(line) in choices.by_line
    }
    note = (
        f"{plan.job.num_pictures} photographs per epoch, batches of 64 at {plan.job.size} pixels, "
        f"{NUM_CORES} cores, data warm, n = {args.rounds} rounds in rotated order."
    )
    publish(args, found, tried, missing, note=note, plan=plan)


def measure_prepare(args: argparse.Namespace, plan: Plan) -> None:
    plan = prepare_plan(plan, (args.out or args.folder) / "prepare", args.prepare_pictures)
    missing = not_installed(plan, {line: name for name, line in WRITERS.items()})
    choices = Choices(args.folder / "settings-prepare.json")
    choose_writers(plan, choices, missing)
    if args.tune:
        return
    found = compare(measure_writers(plan, choices, missing), ours=OURS)
    note = (
        f"{plan.job.num_pictures} JPEG files of about 400 x 300 to pixels at {plan.job.size}, "
        f"{NUM_CORES} cores, n = {args.rounds} rounds in rotated order."
    )
    publish(args, found, {}, missing, note=note, plan=plan, choices=choices.by_line)


def not_installed(plan: Plan, modules: dict[str, str]) -> dict[str, str]:
    """Return the lines whose package is missing, each with a message."""
    return {
        line: f"{module(name).PACKAGE} is not installed"
        for line, name in modules.items()
        if plan.pythons.version(name) is None
    }


def publish(
    args: argparse.Namespace,
    found: dict[str, dict[str, Any]],
    tried: dict[str, Any],
    missing: dict[str, str],
    *,
    note: str,
    plan: Plan,
    choices: Any = None,
) -> None:
    """Write the table, the rounds, all settings that were tried, and why contenders are missing."""
    rows = []
    for name, entry in sorted(found.items(), key=lambda item: -item[1]["per_s"]["median"]):
        per_s, ratio = entry["per_s"], entry.get("ours_faster_by")
        row = {"": name}
        if tried:
            row["shuffle"] = tried[name]["shuffle"]
            is_loader = tried[name]["shuffle"] is not Shuffle.NONE
            row["each once"] = is_each_once(tried[name]["check"]) if is_loader else ""
        row["pictures/s"] = f"{per_s['median']:,.0f}"
        row["min to max"] = f"{per_s['min']:,.0f} to {per_s['max']:,.0f}"
        row["ours is faster by"] = f"{ratio['median']:.2f}" if ratio else ""
        row["at least (95 %)"] = f"{entry['lower_95']:.2f}" if "lower_95" in entry else ""
        rows.append(row)
    absent = "".join(f"- not measured: {name}: {reason}\n" for name, reason in missing.items())
    versions = {name: version for name in MODULES if (version := plan.pythons.version(name))}
    rounds = {"lines": found, "settings": tried or choices, "missing": missing}
    write_rows(
        args.results or f"loaders_{args.group.replace('-', '_')}",
        rows,
        note=note + (f"\n\n{absent}" if absent else ""),
        rounds=[rounds],
        place={**environment(), "contenders": versions},
    )


def is_each_once(check: dict[str, Any] | None) -> str:
    """Return True if an epoch held each photograph exactly once."""
    if check is None:
        return "not checked"
    return "yes" if check["each_once"] else f"no, {check['missing']} missing"


def main() -> None:
    args = parse()
    if hasattr(os, "sched_setaffinity"):  # inherited by every contender
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_CORES])
    args.folder.mkdir(parents=True, exist_ok=True)
    kind, shuffles = READING.get(args.group, (Kind.PIXELS, ()))
    job = Job(folder=args.folder.resolve(), kind=kind, num_pictures=args.pictures, size=args.size)
    plan = Plan(
        job=job,
        shuffles=shuffles,
        rounds=args.rounds,
        min_s=args.min_s,
        only=tuple(args.only),
        pythons=Pythons(args.venv),
    )
    if args.group != "limits":
        photographs(args)
    if args.group in OTHER:
        OTHER[args.group](args, plan)
        return
    (measure_prepare if args.group == "prepare" else measure_reading)(args, plan)


if __name__ == "__main__":
    main()

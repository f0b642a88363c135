"""Time from pictures to the best checkpoint: ours against recipes that people write.

(a) the published original recipe, extrapolated from three epochs; (b) PyTorch Lightning; (b2) an
expert's script; (c) ours with the recipe that a climb kept; (d) ours, with the climb included; and
the floor, which decodes each picture once and runs it once through the trunk.

Goals for (c): at least 100 times as fast as (a) and 25 times as fast as (b), at most 1.1 times the
time of (b2) and 1.25 times the floor, with no loss of accuracy.

    python -m bench.accuracy.time_to_accuracy [--rounds 5] [--caltech TAR] [--only demo] [--quick]

All use the same weights and pictures. Each contender is a script in contenders/, run in a fresh
process with an empty folder and the pictures dropped from the page cache. Its clock runs from the
end of its imports until its best weights are on disk. It includes prepare, and excludes the
evaluation on test pictures.

Each finished contender is a line in --log; with the same file, an interrupted benchmark resumes,
and a complete one only writes its results again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.log import Log
from bench.measure import ROOT, cold_caches
from bench.pictures import Row, caltech_rows, demo_rows, forget_pages, take_few, write_table
from bench.rows import markdown, write_rows

DEMO = ROOT / "demo_data" / "groceries"
SPAWNED = "CONTENDER_SPAWNED_AT"  # as in contenders/contest.py
JOB = ROOT / "examples" / "demo" / "demo.yaml"
OURS = "c ours, kept recipe"
LIGHTNING = "b lightning"
SCRIPTS = {
    "a published": ["published"],
    LIGHTNING: ["lightning_frozen"],
    "b2 expert": ["expert"],
    OURS: ["ours"],
    "d ours, with the climb": ["ours", "--climb"],
    "floor": ["floor"],
}


def run_contender(words: Sequence[str], *, table: Path, seed: int, more: Sequence[str]) -> Any:
    """Run a script in a fresh process and an empty folder, from cold; return its last line."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as caches:
        name, *flags = words
        command = [sys.executable, "-m", f"bench.accuracy.contenders.{name}", *flags, *more]
        command += ["--pictures", str(table), "--out", folder, "--seed", str(seed)]
        environment = os.environ | cold_caches(Path(caches)) | {SPAWNED: str(time.time())}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
        result = json.loads(done.stdout.splitlines()[-1])
        kept = result.pop("kept", None)
        if kept is not None:
            result["kept_config"] = Path(kept).read_text().replace(folder, "FOLDER")
        return result


def kept_recipe(log: Log, dataset: str, table: Path, more: Sequence[str], folder: Path) -> Path:
    """Climb once, outside of the rounds, and return the kept config."""
    key = {"dataset": dataset, "contender": "choosing climb", "round": -1}
    line = log.find(**key)
    if line is None:
        words = [*SCRIPTS["d ours, with the climb"], "--config", str(JOB)]
        line = {**key, **run_contender(words, table=table, seed=0, more=more)}
        log.add(line)
    path = folder / f"{dataset}_kept.yaml"
    path.write_text(line["kept_config"])
    return path


def rounds_of(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield all contenders in each round, in rotated order."""
    for idx in range(rounds):
        turn = idx % len(names)
        for name in [*names[turn:], *names[:turn]]:
            yield idx, name


def measure(
    dataset: str, rows: Sequence[Row], options: argparse.Namespace, log: Log, folder: Path
) -> None:
    """Run the contenders that are missing in the log on a set of pictures."""
    table = write_table(rows, folder / f"{dataset}.csv")
    more = ["--size", "64", "--max-epochs", "3"] if options.quick else []
    names = options.contenders or list(SCRIPTS)
    todo = [
        (idx, name)
        for idx, name in rounds_of(names, options.rounds)
        if not log.find(dataset=dataset, contender=name, round=idx)
    ]
    kept = options.kept
    if kept is None and OURS in (name for _, name in todo):
        kept = kept_recipe(log, dataset, table, more, folder)
    for idx, name in todo:
        words = list(SCRIPTS[name])
        if words[0] == "ours.py":
            words += ["--config", str(kept if name == OURS else JOB)]
        if name == LIGHTNING and options.lightning_epochs:
            words += ["--timed-epochs", str(options.lightning_epochs)]
        if name == "floor" and not options.quick and shutil.which("g++"):
            words += ["--compile"]
        forget_pages(path for path, _, _ in rows)
        result = run_contender(words, table=table, seed=idx, more=more)
        shown = {key: value for key, value in result.items() if key != "kept_config"}
        print(dataset, idx, name, shown, flush=True)
        log.add({"dataset": dataset, "contender": name, "round": idx, **result})


def table_rows(dataset: str, log: Log, rounds: int) -> list[dict[str, Any]]:
    """Summarize the rounds: a row per contender, times as multiples of (c) in the same round."""
    by_name: dict[str, dict[int, dict[str, Any]]] = {}
    for line in log.records:
        if line["dataset"] == dataset and 0 <= line["round"] < rounds:
            by_name.setdefault(line["contender"], {})[line["round"]] = line
    ours = by_name.get(OURS, {})
    rows = []
    for name in SCRIPTS:
        found = by_name.get(name)
        if not found:
            continue
        seconds = [line["seconds"] for line in found.values()]
        ratios = [line["seconds"] / ours[at]["seconds"] for at, line in found.items() if at in ours]
        rights = [line["test_accuracy"] for line in found.values()]
        known = [value for value in rights if value is not None]
        rows.append(
            {
                "pictures": dataset,
                "contender": name,
                "n": len(seconds),
                "seconds_median": statistics.median(seconds),
                "seconds_min": min(seconds),
                "seconds_max": max(seconds),
                "over_c_median": statistics.median(ratios) if ratios else "-",
                "over_c_min": min(ratios) if ratios else "-",
                "over_c_max": max(ratios) if ratios else "-",
                "epochs": statistics.median(line["epochs"] for line in found.values()),
                "test_accuracy_mean": statistics.mean(known) if known else "-",
                "test_accuracy_min": min(known) if known else "-",
                "test_accuracy_max": max(known) if known else "-",
                "start_s": statistics.median(line["start_s"] for line in found.values()),
            }
        )
    return rows


def shortened(log: Log) -> str:
    """Return a note on the data sets for which the time of Lightning is extrapolated."""
    lines = [line for line in log.records if line["contender"] == LIGHTNING]
    found = {(line["dataset"], line["timed_epochs"]) for line in lines if "timed_epochs" in line}
    return "".join(f"; so is (b) on {dataset}, from {num} epochs" for dataset, num in sorted(found))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--caltech", type=Path, help="tar file of the Caltech-101 subset")
    parser.add_argument("--only", choices=("demo", "caltech"))
    parser.add_argument("--contenders", nargs="+", choices=SCRIPTS, help="default: all")
    parser.add_argument(
        "--kept", type=Path, help="config of a kept recipe; default: climb once to find it"
    )
    parser.add_argument("--lightning-epochs", type=int, help="epochs of (b) to time; default: all")
    parser.add_argument("--log", type=Path, help="log of finished contenders; default: in /tmp")
    parser.add_argument("--quick", action="store_true", help="tiny smoke test")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        log = Log(options.log or folder / "log.jsonl")
        sets = {}
        if options.only != "caltech":
            sets["demo"] = demo_rows(DEMO)
        if options.caltech and options.only != "demo":
            sets["caltech"] = caltech_rows(options.caltech, folder)
        summary, counts = [], []
        for dataset, rows in sets.items():
            chosen = take_few(rows, num_classes=4, count=8) if options.quick else rows
            splits = [split for _, _, split in chosen]
            parts = [f"{splits.count(name):,}" for name in ("train", "val", "test")]
            counts.append(f"{dataset} {', '.join(parts)}")
            measure(dataset, chosen, options, log, folder)
            summary += table_rows(dataset, log, options.rounds)
    if not summary:
        raise SystemExit("nothing to measure: pass --caltech TAR, or remove --only")
    note = (
        "Seconds from after the imports to the committed best weights; prepare included, test "
        "evaluation excluded; each in a fresh process on a cold folder, pictures dropped from the "
        "page cache; order rotated by round, seed = round. over_c: time divided by that of (c) in "
        "the same round. Goals for (c): a ≥ 100, b ≥ 25, b2 ≥ 1/1.1, floor ≥ 1/1.25. (a) is "
        f"extrapolated from three epochs, its accuracy measured on features"
        f"{shortened(log)}. start_s: from the start of the process to the end of its imports, "
        f"not in the clock. Training, validation and test pictures: {'; '.join(counts)}."
    )
    if options.quick:
        print(markdown(summary))
    else:
        name = "time_to_accuracy_caltech" if options.only == "caltech" else "time_to_accuracy"
        write_rows(name, summary, note=note, rounds=log.lines, place=log.environment)


if __name__ == "__main__":
    main()

"""The published job at full size on a GPU, and a full fine-tune, before and after a climb.

The job: 30,607 pictures of 299 x 299 in a pixel store (generated, with class structure),
`legacy_xception` without weights, frozen, 257 classes. Goals: from the store to a trained head in
under 20 s on one current data-center GPU, with less than 5 % of it waiting for data. Published: 42
min on one T4, 5.7 min on eight. The published recipe is timed on the same GPU, to separate the
effect of the method from that of the hardware. Both are trained in turn, each time from a cold
start in a process of its own (cold_training.py); of the published recipe only a few epochs are
timed and the total is extrapolated.

    bench/gpu/run.sh [WHEELS]                or, where the packages are installed:
    python -m bench.gpu.climb [--work FOLDER] [--log FILE] [--budget 240] [--repeats 5] [--quick]

With the same --work and --log, an interrupted benchmark resumes, and a complete one only writes its
results again. Without a GPU it prints a message and exits; --quick --cpu runs a tiny version on a
CPU.
"""

from __future__ import annotations

import argparse
import io
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import stepladder
from bench.climbs.cold_training import train_cold
from bench.climbs.record import climb_record
from bench.climbs.workloads import quick_settings
from bench.gpu.pictures import make_store
from bench.log import Log
from bench.measure import ROOT, ratio
from bench.rows import markdown, write_rows
from stepladder.config.load import load_job
from stepladder.config.options import JobConfig
from stepladder.config.resolve import resolve, settings_of_call
from stepladder.records import read_jsonl
from stepladder.training.output.display import Display

STEP4 = ROOT / "examples" / "six_steps" / "step4.yaml"
NUM_ROWS = {"train": 27_546, "val": 3_061}  # 30,607 pictures, nine tenths of them for training
NUM_CLASSES = 257
SIZE = 299
PUBLISHED_S = {"one T4": 42 * 60.0, "eight T4s": 5.7 * 60}
PUBLISHED_EPOCHS = 12  # 42 min of 208 s
FULL = {
    "train": "all",
    "batch.lr": 0.001,
    "stopping.early": False,
    "stopping.restore_best": False,
    "schedule.max_epochs": 3,
    "data.fraction": 0.2,
}


Row = dict[str, Any]


def quiet() -> Display:
    return Display(io.StringIO())


def job_for(store: Path, run: Path, quick: bool, **more: object) -> JobConfig:
    """Return the published recipe on all of the data, with some options changed."""
    settings = {"data.store": store, "run.dir": run, "model.weights": "none", **more}
    job = resolve(settings_of_call(settings), base=load_job(STEP4)).job
    if not quick:
        return job
    tiny = {**settings, **quick_settings(job.recipe), "data.fraction": 1.0}
    return resolve(settings_of_call(tiny), base=load_job(STEP4)).job


def climbed(job: JobConfig) -> Path:
    """Climb a job, unless its folder holds a finished climb; return the folder."""
    if not (job.run.dir / "climb.json").exists():
        stepladder.climb(config=job, display=quiet(), fresh=True)
        torch.cuda.empty_cache()  # each training is a process of its own, on the same GPU
    return job.run.dir


def train_rounds(
    jobs: Mapping[str, JobConfig], store: Path, work: Path, *, repeats: int, log: Log
) -> None:
    """Train each job from a cold start in each round, in rotated order."""
    names = list(jobs)
    for at in range(repeats):
        turn = at % len(names)
        for name in [*names[turn:], *names[:turn]]:
            if log.find(training=name, round=at):
                continue
            run = replace(jobs[name].run, dir=work / f"{name}{at}")
            trained = train_cold(replace(jobs[name], run=run), store=store)
            log.add({"training": name, "round": at, **trained})
            print(name, at, trained, flush=True)


def extrapolated_s(training: Mapping[str, Any]) -> float:
    """Extrapolate a training of a few epochs to all published epochs, in seconds."""
    once_s = training["seconds"] - training["train_s"]
    return float(once_s + PUBLISHED_EPOCHS * training["train_s"] / training["epochs"])


def end_row(what: str, trainings: Sequence[Mapping[str, Any]], seconds: list[float]) -> Row:
    """Summarize the rounds of a recipe; values other than times are those of the median round."""
    middle = trainings[seconds.index(statistics.median_low(seconds))]
    return {
        "what": what,
        "seconds": statistics.median(seconds),
        "epochs": middle["epochs"],
        "val_accuracy": middle["val_accuracy"],
        "data_wait_frac": middle["data_wait_frac"],
        "n": len(seconds),
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
    }


def frozen(store: Path, work: Path, options: argparse.Namespace, log: Log) -> tuple[list[Row], str]:
    """Climb, then train with the published recipe and with the kept one; return rows and notes.

    The times of one round are paired.
    """
    limits = {"schedule.max_epochs": options.published_epochs, "stopping.early": False}
    as_published = job_for(store, work / "published", options.quick, **limits)
    job = job_for(store, work / "climb", options.quick, **{"ladder.budget_s": options.budget})
    run = climbed(job)
    shutil.copy(run / "trials.jsonl", work / "trials_frozen.jsonl")
    kept = replace(job, recipe=load_job(run / "config.yaml").recipe)
    jobs = {"published": as_published, "kept": kept}
    train_rounds(jobs, store, work, repeats=options.repeats, log=log)
    of = {
        name: [one for at in range(options.repeats) if (one := log.find(training=name, round=at))]
        for name in jobs
    }
    before_s = [extrapolated_s(training) for training in of["published"]]
    after_s = [float(training["seconds"]) for training in of["kept"]]
    epochs = of["published"][0]["epochs"]
    before = end_row(
        f"published recipe, this device ({epochs} epochs, extrapolated)", of["published"], before_s
    )
    before["epochs"] = PUBLISHED_EPOCHS
    after = end_row("store to trained head, kept recipe, cold", of["kept"], after_s)
    method = ratio(before_s, after_s)
    hardware = PUBLISHED_S["one T4"] / before["seconds"]
    said = (
        f"Speedup of {PUBLISHED_S['one T4'] / after['seconds']:.0f} over the published 42 min on "
        f"one T4: the method {method['median']:.1f} ({method['min']:.1f} to {method['max']:.1f}; "
        f"same GPU, the published recipe), GPU and software {hardware:.1f}. "
    )
    return frozen_rows(before, after), said


def full_fine_tune(store: Path, work: Path, options: argparse.Namespace) -> list[Row]:
    """Climb with all layers trained; return the model FLOPs utilization before and after."""
    more = {**FULL, "ladder.budget_s": options.budget}
    job = job_for(store, work / "full", options.quick, **more)
    records = read_jsonl(climbed(job) / "trials.jsonl")
    profiles = [record["profile"] for record in records if record.get("kind") == "profile"]
    return [
        {
            "full fine-tune": label,
            "mfu": profile["mfu"],
            "step_s": profile["time"]["step_s"],
            "steps_per_epoch": profile["time"]["steps_per_epoch"],
            "one_time_and_steps_s": sum(profile["time"]["one_time_s"].values())
            + profile["time"]["epochs"]
            * profile["time"]["steps_per_epoch"]
            * profile["time"]["step_s"],
            "peak_flops_per_s": profile["peak_flops_per_s"],
        }
        for label, profile in (("original", profiles[0]), ("after the climb", profiles[-1]))
    ]


def frozen_rows(before: Row, after: Row) -> list[Row]:
    """Return rows of published times and ours, with the method's share of the difference."""
    rows = [
        {"what": f"published, {name}", "seconds": seconds, "epochs": "-"}
        for name, seconds in PUBLISHED_S.items()
    ]
    columns = ("what", "seconds", "epochs", "val_accuracy", "data_wait_frac", "n")
    columns += ("seconds_min", "seconds_max")
    rows += [before, after]
    return [
        {
            **{name: row.get(name, "-") for name in columns},
            "times_one_T4": PUBLISHED_S["one T4"] / row["seconds"],
        }
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="folder with 20 GB free; default: temporary")
    parser.add_argument(
        "--budget", type=float, default=240, help="time limit of each climb in seconds"
    )
    parser.add_argument("--published-epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help="number of trainings of each recipe")
    parser.add_argument("--log", type=Path, help="log of finished trainings; default: in --work")
    parser.add_argument("--workers", type=int, default=8, help="processes that draw pictures")
    parser.add_argument("--quick", action="store_true", help="tiny smoke test")
    parser.add_argument("--cpu", action="store_true", help="run without a GPU; for --quick")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.cpu:
        print("No GPU found: the GPU benchmark is skipped.")
        sys.exit(0)
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        store = work / "pictures"
        if not store.exists():
            num_rows = {"train": 96, "val": 24} if options.quick else NUM_ROWS
            classes, size = (4, 96) if options.quick else (NUM_CLASSES, SIZE)
            make_store(store, num_rows, num_classes=classes, size=size, workers=options.workers)
        log = Log(options.log or work / "log.jsonl")
        rows, said = frozen(store, work, options, log)
        print(said, flush=True)
        full = full_fine_tune(store, work, options)
        climbs = [climb_record(work / name) for name in ("climb", "full")]
    note = said + (
        "Goals: under 20 s from the store to the trained head, data_wait_frac under 0.05. "
        "Generated pictures and a trunk without pretrained weights: their "
        "accuracy says nothing about real data."
    )
    if options.quick:
        print(note, markdown(rows), markdown(full), sep="\n\n")
        return
    rounds, place = [*log.lines, {"climb": climbs[0]}], log.environment
    write_rows("gpu_frozen", rows, note=note, rounds=rounds, place=place)
    note = "A full fine-tune of the same model, by profile."
    write_rows("gpu_full_fine_tune", full, note=note, rounds=climbs[1:], place=place)


if __name__ == "__main__":
    main()

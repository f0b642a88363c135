"""How often the range of epochs that `advise` and `climb` print holds the length of the real run.

Goal: the 10th to 90th percentile of replays holds the epochs of at least 16 of 20 jobs.

Twenty small jobs, heads on cached features of the demo's photographs, differ in learning rate,
patience, seed, share of the data, batch size and size of the head; some stop by another rule, or
cannot be replayed many at once. Each is first predicted by the function of `advise`, then trained
to its end by `train`. No job is left out, and the ranges are written before the runs start.

    make demo && python -m bench.climbs.epoch_ranges [--log FILE]

With the same --log, an interrupted benchmark resumes.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import torch

from bench.accuracy.seeds import CONFIG
from bench.log import Log
from bench.rows import share, write_rows
from stepladder.config.load import load_job
from stepladder.config.options import JobConfig
from stepladder.config.resolve import resolve, settings_of_call
from stepladder.ladder.lab import Lab
from stepladder.machine import keep_freed_memory
from stepladder.task.load import BUILT_IN, load_task
from stepladder.training.output.display import Display
from stepladder.training.run import train
from stepladder.training.setup.build import open_device, open_sources

GOAL: Final = 16
LR, PATIENCE, PART, BATCH = (
    "batch.lr",
    "stopping.patience",
    "data.fraction",
    "batch.global_batch_size",
)
HIDDEN, EVERY = "head.hidden", "stopping.validate_every_epochs"

JOBS: Final[tuple[Mapping[str, object], ...]] = (
    {},
    {LR: 3e-4},
    {LR: 3e-3},
    {LR: 1e-2},
    {LR: 3e-2},
    {PATIENCE: 1},
    {PATIENCE: 5},
    {PATIENCE: 8, LR: 3e-3},
    {BATCH: 4},
    {BATCH: 64},
    {BATCH: 64, LR: 1e-2, PATIENCE: 2},
    {HIDDEN: 64},
    {HIDDEN: 256, LR: 3e-3},
    {EVERY: 2},
    {PART: 0.5},
    {PART: 0.25, LR: 3e-3},
    {PART: 0.5, BATCH: 8, PATIENCE: 5},
    {"stopping.allow_noise": False, LR: 3e-3},
    {"stopping.monitor": "val_accuracy"},
    {"optimizer.weight_decay": 0.01, LR: 3e-3},
)
"""Options of each job besides the demo's; its seed is its position."""


def job(idx: int, folder: Path) -> JobConfig:
    """Return one of the jobs, whose run is written to a folder."""
    fixed = {
        "seed": idx,
        "features.cached": True,
        "device.threads": 1,
        "run.dir": folder,
        "run.checks": "off",
    }
    return resolve(settings_of_call({**fixed, **JOBS[idx]}), base=load_job(CONFIG)).job


def predict(lab: Lab, one: JobConfig) -> dict[str, Any]:
    """Return the range of epochs, and the epochs of each replay."""
    lab.job, lab.seed = one, one.recipe.seed  # as if it were opened for this job
    found = lab.epoch_range(one.recipe)
    assert found is not None
    replays = [outcome.epochs for outcome in lab.plain(one.recipe).found]
    return {
        "low": found.low,
        "high": found.high,
        "mean": found.mean,
        "provenance": found.provenance,
        "replays": replays,
    }


def real_epochs(one: JobConfig) -> int:
    """Train a job to its end and return its epochs."""
    task = load_task(BUILT_IN, store=one.recipe.data.store, recipe=one.recipe)
    summary = train(one, task, task_name=BUILT_IN, display=Display(io.StringIO()))
    return int(summary["epochs"])


def measure(log: Log, folder: Path) -> None:
    """Predict every job, then train every job."""
    first = job(0, folder / "first")
    task = load_task(BUILT_IN, store=first.recipe.data.store, recipe=first.recipe)
    with Lab(
        job=first,
        task=task,
        sources=open_sources(task),
        device=open_device(first.recipe),
        cache=folder / "cache",
        seed=0,
    ) as lab:
        for idx in range(len(JOBS)):
            if log.find(job=idx, what="range") is None:
                log.add({"job": idx, "what": "range"} | predict(lab, job(idx, folder / "run")))
                print("predicted", idx, flush=True)
    for idx in range(len(JOBS)):
        if log.find(job=idx, what="run") is None:
            epochs = real_epochs(job(idx, folder / f"run-{idx}"))
            log.add({"job": idx, "what": "run", "epochs": epochs})
            print("trained", idx, epochs, flush=True)


def rows_of(log: Log) -> list[dict[str, Any]]:
    """Return a row for each job."""
    rows = []
    for idx, options in enumerate(JOBS):
        found, run = log.find(job=idx, what="range"), log.find(job=idx, what="run")
        assert found is not None
        assert run is not None
        rows.append(
            {
                "job": ", ".join(f"{key} {value}" for key, value in options.items()) or "the demo",
                "predicted epochs": f"{found['low']:g} to {found['high']:g}",
                "mean": float(found["mean"]),
                "replays": len(found["replays"]),
                "real epochs": run["epochs"],
                "within": found["low"] <= run["epochs"] <= found["high"],
            }
        )
    return rows


def write(log: Log) -> None:
    """Write the results of a log."""
    rows = rows_of(log)
    num = sum(row["within"] for row in rows)
    ratios = [row["real epochs"] / row["mean"] for row in rows]
    note = (
        "Heads on cached features of the demo's photographs: the 10th to 90th percentile of "
        "replays with other seeds, then the real run to its end. Within the range: "
        f"{share(num, len(rows))}, goal at least {GOAL}. The real run took {min(ratios):.2f} to "
        f"{max(ratios):.2f} times the mean of its replays, {fmean(ratios):.2f} on average."
    )
    write_rows("epoch_ranges", rows, note=note, rounds=log.records, place=log.environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        log = Log(options.log or folder / "log.jsonl")
        measure(log, folder)
        write(log)


if __name__ == "__main__":
    main()

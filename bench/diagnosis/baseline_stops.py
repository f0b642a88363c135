"""How often `run.baseline` stops a run that is no worse than its baseline, and one that is.

Goals: stop at most 5 % of the runs that differ from their baseline only by the seed, and at least
90 % of the runs whose learning rate is 30 times too small or too large.

Two jobs, each trained in seconds by `train`: the demo's head on features of its frozen trunk, with
57 validation examples, and a net on points of five classes, with 300. Each run has its own
baseline, trained before it with another seed. Early stopping is off, so that a run can be stopped
in any of its epochs. All runs of a job use the same data, as a user's runs do.

    make demo && python -m bench.diagnosis.baseline_stops [--seeds 40] [--jobs demo points]
        [--log FILE]

With the same --log, an interrupted benchmark resumes.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from bench.accuracy.seeds import demo_on_features
from bench.diagnosis.fit_rules import NUM_CLASSES, NUM_FEATURES, Job, points
from bench.log import Log
from bench.rows import share, write_rows
from stepladder.config.choices import OptimizerName, Split, TrainMode
from stepladder.config.options import JobConfig
from stepladder.config.recipe import (
    BatchConfig,
    DeviceConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.data.batch import Batch
from stepladder.task import Metrics, Task
from stepladder.training.baseline import STOP_REASON
from stepladder.training.output.display import Display
from stepladder.training.run import train

TIMES = 30
SOUND, TOO_SMALL, TOO_LARGE = "sound", f"lr / {TIMES}", f"lr x {TIMES}"
FACTORS = {SOUND: 1.0, TOO_SMALL: 1 / TIMES, TOO_LARGE: float(TIMES)}
GOALS = {SOUND: "at most 5 %", TOO_SMALL: "at least 90 %", TOO_LARGE: "at least 90 %"}
DEMO_EPOCHS, POINTS_EPOCHS = 30, 12
SEED_OF_DATA = 0
BASELINE_SEED = 1000  # from here on: not used as a seed by any run
POINTS = Job(num_train=2000, epochs=POINTS_EPOCHS, lr=3e-3)


class Points(Task):
    """Random points, with classes assigned by a fixed net, to be learned by a net of two layers."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        width = POINTS.width
        return nn.Sequential(
            nn.Linear(NUM_FEATURES, width), nn.ReLU(), nn.Linear(width, NUM_CLASSES)
        )

    def data(self, split: Split) -> TensorDataset | None:
        num = {Split.TRAIN: POINTS.num_train, Split.VAL: POINTS.num_val}.get(split)
        if num is None:
            return None
        return TensorDataset(*points(POINTS, num, seed=SEED_OF_DATA + (split is Split.VAL)))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        logits = model(batch.inputs)
        losses = F.cross_entropy(logits, batch.targets, reduction="none")
        return Metrics(losses=losses, outputs=logits)


@dataclass(frozen=True)
class Subject:
    """A user's job and the task that it trains."""

    job: JobConfig
    task: Task


def demo() -> Subject:
    """Return the demo's head on features, which are computed here."""
    job, task = demo_on_features()
    return Subject(_whole(job, epochs=DEMO_EPOCHS), task)


def on_points() -> Subject:
    """Return the job of the net on points."""
    recipe = Recipe(
        train=TrainMode.ALL,
        batch=BatchConfig(global_batch_size=32, base_batch_size=32, lr=POINTS.lr),
        optimizer=OptimizerConfig(name=OptimizerName.ADAM),
    )
    return Subject(_whole(JobConfig(recipe=recipe), epochs=POINTS_EPOCHS), Points())


JOBS = {"demo": demo, "points": on_points}


def run_once(
    subject: Subject, folder: Path, *, seed: int, factor: float, baseline: Path | None
) -> Mapping[str, Any]:
    """Train once and return the summary.

    Args:
        factor: of the job's learning rate.
        baseline: folder of the earlier run; None: this run is a baseline.
    """
    job = subject.job
    batch = replace(job.recipe.batch, lr=job.recipe.batch.lr * factor)
    job = replace(
        job,
        recipe=replace(job.recipe, seed=seed, batch=batch),
        run=replace(job.run, dir=folder, baseline=baseline),
    )
    return train(job, subject.task, task_name="bench", display=Display(io.StringIO()))


def measure(name: str, subject: Subject, seeds: int, log: Log) -> None:
    """Run every case of a job with every seed, each against a baseline with another seed."""
    done = {(one["job"], one["case"], one["seed"]) for one in log.records}
    for seed in range(seeds):
        missing = [case for case in FACTORS if (name, case, seed) not in done]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            once = partial(run_once, subject)
            before = once(folder / "before", seed=BASELINE_SEED + seed, factor=1.0, baseline=None)
            for case in missing:
                found = once(
                    folder / f"run {case.replace('/', 'by')}",
                    seed=seed,
                    factor=FACTORS[case],
                    baseline=folder / "before",
                )
                key = {"job": name, "case": case, "seed": seed}
                log.add(key | _record(subject, before, found))
        print(name, seed, flush=True)


def rows_of(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each job and case."""
    rows = []
    for job, case in dict.fromkeys((one["job"], one["case"]) for one in records):
        some = [one for one in records if (one["job"], one["case"]) == (job, case)]
        stopped = [one for one in some if one["is_stopped"]]
        at = [one["epochs"] / one["max_epochs"] for one in stopped]
        best = [one["best_loss"] for one in some if one["best_loss"] is not None]
        rows.append(
            {
                "job": job,
                "run": case,
                "stopped (95 %)": share(len(stopped), len(some)),
                "goal": GOALS[case],
                "stopped at, median share of the run": f"{median(at):.0%}" if at else "-",
                "latest": f"{max(at):.0%}" if at else "-",
                "best loss, median": median(best) if best else "-",
                "of the baselines": median(one["baseline_loss"] for one in some),
                "what counts as worse, median": median(one["compared"]["margin"] for one in some),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        log = Log(options.log or Path(folder) / "log.jsonl")
        for name in options.jobs:
            measure(name, JOBS[name](), options.seeds, log)
        write(log)


def write(log: Log) -> None:
    """Write the results of a log."""
    note = (
        "Runs against a baseline of another seed, with the defaults of run.baseline: three "
        "consecutive validations that are worse by more than twice the noise of both plus what "
        "the earlier run gained in its last validation. Early stopping is "
        f"off: {DEMO_EPOCHS} epochs of the demo's head on features, {POINTS_EPOCHS} of a net on "
        "points. The threshold uses paired differences by example, as both runs store the losses "
        "of such small validation splits."
    )
    rows, place = rows_of(log.records), log.environment
    write_rows("baseline_stops", rows, note=note, rounds=log.records, place=place)


def _whole(job: JobConfig, *, epochs: int) -> JobConfig:
    """Return the job with all of its epochs, one thread, and no checks."""
    recipe = replace(
        job.recipe,
        schedule=ScheduleConfig(max_epochs=epochs),
        stopping=StoppingConfig(early=False),
        device=DeviceConfig(threads=1),
    )
    checks = type(job.run.checks).OFF
    return replace(job, recipe=recipe, run=replace(job.run, checks=checks, checkpoint_every_s=3600))


def _record(
    subject: Subject, before: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the record of a run and its baseline."""
    return {
        "baseline_seed": before["seed"],
        "is_stopped": found["stop_reason"] == STOP_REASON,
        "stop_reason": found["stop_reason"],
        "epochs": found["epochs"],
        "max_epochs": subject.job.recipe.schedule.max_epochs,
        "best_loss": found["val_loss"],
        "baseline_loss": before["val_loss"],
        "compared": found["baseline"],
    }


if __name__ == "__main__":
    main()

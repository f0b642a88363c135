"""A/A trials: a rung that changes nothing, tried many times on real jobs.

Goal: kept in at most 5 of 100 trials. The change (how a JPEG is decoded, in a job without JPEGs)
makes a different recipe with the same work, so that blocks are run and judged as in any trial. The
jobs: a net of two layers; the original demo; and the demo with precomputed features.

    python -m bench.climbs.verdicts [--trials 100] [--jobs rings demo features] [--log FILE]

Each trial is a line in --log; with the same file, an interrupted benchmark resumes, and a complete
one only writes its results again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from bench.climbs.workloads import AS_WRITTEN
from bench.log import Log
from bench.measure import ROOT
from bench.rows import write_rows
from stepladder.config.choices import Split, TrainMode, Where
from stepladder.config.load import load_job
from stepladder.config.options import JobConfig, LadderConfig
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    DeviceConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.data.batch import Batch
from stepladder.ladder.lab import Lab
from stepladder.ladder.trial import run_trial
from stepladder.machine import keep_freed_memory
from stepladder.measuring.profile import take_profile
from stepladder.records.ladder import Decision, Prediction, Trial
from stepladder.records.profile import Profile, Provenance
from stepladder.rungs import Rung
from stepladder.task import Task
from stepladder.task.image_classification import ImageClassification
from stepladder.training.setup.build import open_sources, resolve_auto

NOTE = "A/A: a rung that changes nothing, tried many times. Goal: kept in at most 5 of 100 trials."
STORE = ROOT / "demo_data" / "store"


class Identity(Rung):
    """Change how pictures are decoded, in a job that decodes none."""

    name: ClassVar[str] = "identity"
    level: ClassVar[int] = 8

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        return Prediction(rung=self.name, gain=1.0, provenance=Provenance.MODELLED)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        is_scaled = not recipe.loader.scaled_decode
        return replace(recipe, loader=replace(recipe.loader, scaled_decode=is_scaled))


class Rings(Task):
    """Classify points by which of four rings they are on."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 4))

    def data(self, split: Split) -> Dataset[tuple[Tensor, ...]] | None:
        if split is Split.TEST:
            return None
        x = torch.randn(2000, 2, generator=torch.Generator().manual_seed(len(split)))
        return TensorDataset(x, x.norm(dim=1).clamp_max(3.9).long())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


def rings() -> tuple[Recipe, Task]:
    """Return the job of the two-layer net."""
    recipe = Recipe(
        train=TrainMode.ALL,
        data=DataConfig(where=Where.STREAM),
        batch=BatchConfig(global_batch_size=64),
        schedule=ScheduleConfig(max_epochs=20),
        stopping=StoppingConfig(early=False, restore_best=False),
        device=DeviceConfig(threads=1),
    )
    return recipe, Rings()


def demo() -> tuple[Recipe, Task]:
    """Return the original demo; its store holds pixels."""
    job = load_job(AS_WRITTEN)
    data = replace(job.recipe.data, store=STORE)
    recipe = replace(job.recipe, data=data)
    sources = open_sources(ImageClassification(STORE, recipe))
    recipe = resolve_auto(replace(job, recipe=recipe), sources).recipe
    return recipe, ImageClassification(STORE, recipe)


def features() -> tuple[Recipe, Task]:
    """Return the demo with precomputed features."""
    recipe, task = demo()
    return replace(recipe, features=replace(recipe.features, cached=True)), task


JOBS = {"rings": rings, "demo": demo, "features": features}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--block", type=float, default=LadderConfig().block_s, help="seconds")
    parser.add_argument("--log", type=Path, help="log of finished trials; default: in /tmp")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        log = Log(given.log or work / "log.jsonl")
        for name in given.jobs:
            (work / name).mkdir()
            try_often(name, work / name, given, log)
            rows.append({"job": name, **row(trials_in(log, name, given), given.block)})
            print(rows[-1], flush=True)
    write_rows("verdicts", rows, note=NOTE, rounds=log.lines, place=log.environment)


def trials_in(log: Log, name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the job's trials in the log, at most as many as requested."""
    key = {"job": name, "block_s": given.block}
    return [one for one in log.records if key.items() <= one.items()][: given.trials]


def try_often(name: str, folder: Path, given: argparse.Namespace, log: Log) -> None:
    """Run the A/A trials of a job that are missing in the log, in one lab."""
    num_left = given.trials - len(trials_in(log, name, given))
    if num_left <= 0:
        return
    recipe, task = JOBS[name]()
    sources, device, rung = open_sources(task), torch.device("cpu"), Identity()
    job = JobConfig(recipe=recipe, ladder=LadderConfig(block_s=given.block))
    keep_freed_memory()
    with Lab(
        job=job, task=task, sources=sources, device=device, cache=folder / "lab", seed=0
    ) as lab:
        epochs, num_validations, _ = lab.expected_epochs(recipe)
        profile = take_profile(
            recipe,
            task,
            sources,
            device=device,
            cache=lab.cache,
            epochs=epochs,
            num_validations=num_validations,
            curve=None,
        )
        prediction = rung.predict(profile, recipe)
        for _ in range(num_left):
            trial = run_trial(lab, rung, profile, recipe, prediction).trial
            log.add({"job": name, "block_s": given.block, **record(trial)})


def record(trial: Trial) -> dict[str, Any]:
    """Return the record of a trial, block by block."""
    return {
        "decision": trial.verdict.decision,
        "gain": trial.verdict.speed,
        "before_s": trial.before_s,
        "after_s": trial.after_s,
        "took_s": trial.took_s,
    }


def row(trials: Sequence[dict[str, Any]], block_s: float) -> dict[str, object]:
    """Count the decisions and compute the spread of the estimates."""
    decisions = Counter(trial["decision"] for trial in trials)
    gains = [trial["gain"]["estimate"] for trial in trials if trial["gain"]]
    return {
        "trials": len(trials),
        "block_s": block_s,
        "kept": decisions[Decision.KEPT],
        "dropped": decisions[Decision.DROPPED],
        "undecided": decisions[Decision.UNDECIDED],
        "median gain": float(np.median(gains)),
        "standard deviation of ln gain": float(np.log(gains).std(ddof=1)),
        "blocks, mean": float(np.mean([len(trial["before_s"]) for trial in trials])),
    }


if __name__ == "__main__":
    main()

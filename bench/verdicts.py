"""A/A trials: a rung that changes nothing, tried again and again on a small real job.

Goal: kept at most 5 times of 100. The change (how a JPEG is decoded, in a job without pictures)
makes another recipe of the same work, so that blocks are run and judged as in any trial.

    python bench/verdicts.py [--trials 100] [--block 0.1]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from rows import write_rows
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from stepladder.config.choices import Split, TrainMode, Where
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
from stepladder.measure.profile import take_profile
from stepladder.records.ladder import Decision, Prediction, Trial
from stepladder.records.profile import Profile, Provenance
from stepladder.rungs import Rung
from stepladder.task import Task
from stepladder.train.build import Sources, open_sources

NOTE = "A/A: a rung that changes nothing, on a two-layer net; one row a machine load."


class Identity(Rung):
    """Decode pictures in another way, in a job that has none."""

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
    """Tell points of four rings apart."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 4))

    def data(self, split: Split) -> Dataset[tuple[Tensor, ...]] | None:
        if split is Split.TEST:
            return None
        x = torch.randn(2000, 2, generator=torch.Generator().manual_seed(len(split)))
        return TensorDataset(x, x.norm(dim=1).clamp_max(3.9).long())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--block", type=float, default=0.1, help="seconds")
    given = parser.parse_args()
    recipe = Recipe(
        train=TrainMode.ALL,
        data=DataConfig(where=Where.STREAM),
        batch=BatchConfig(global_batch_size=64),
        schedule=ScheduleConfig(max_epochs=20),
        stopping=StoppingConfig(early=False, restore_best=False),
        device=DeviceConfig(threads=1),
    )
    task = Rings()
    sources = open_sources(task)
    with tempfile.TemporaryDirectory() as folder:
        trials = [
            try_once(recipe, task, sources, Path(folder), seed=seed, block_s=given.block)
            for seed in range(given.trials)
        ]
    write_rows("verdicts", [row(trials, given.block)], note=NOTE)


def try_once(
    recipe: Recipe, task: Task, sources: Sources, folder: Path, *, seed: int, block_s: float
) -> Trial:
    """Run one A/A trial in a lab of its own."""
    job = JobConfig(recipe=recipe, ladder=LadderConfig(block_s=block_s))
    device, rung = torch.device("cpu"), Identity()
    with Lab(
        job=job, task=task, sources=sources, device=device, cache=folder / str(seed), seed=seed
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
        return run_trial(lab, rung, profile, recipe, rung.predict(profile, recipe)).trial


def row(trials: list[Trial], block_s: float) -> dict[str, object]:
    """Count decisions, and give the spread of the estimates."""
    decisions = Counter(trial.verdict.decision for trial in trials)
    gains = [trial.verdict.speed.estimate for trial in trials if trial.verdict.speed]
    return {
        "trials": len(trials),
        "block_s": block_s,
        "kept": decisions[Decision.KEPT],
        "dropped": decisions[Decision.DROPPED],
        "undecided": decisions[Decision.UNDECIDED],
        "median gain": float(np.median(gains)),
        "standard deviation of ln gain": float(np.log(gains).std(ddof=1)),
        "blocks, mean": float(np.mean([len(trial.before_s) for trial in trials])),
    }


if __name__ == "__main__":
    main()

"""Time a step of two ranks against bare DistributedDataParallel, and against two that do not talk.

python -m bench.devices.overhead [--rounds 12] [--quick]

Two processes of one core each take blocks of steps in turn, on the same examples in memory, with
the same optimizer:

- ours: the step of `stepladder train --devices 2`;
- bare: `DistributedDataParallel(model)`, `loss.backward()`, `optimizer.step()`, and nothing else;
- apart: the step of `stepladder train` in both processes at once, each on its own examples.

Goals: ours / bare at most 1.03, and apart / ours, the efficiency, at least 0.9.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from bench.measure import ratio, rotated_trials
from bench.rows import write_rows
from stepladder.config.choices import DeviceChoice, MemoryFormat, OptimizerName, Split, TrainMode
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    DeviceConfig,
    FeaturesConfig,
    OptimizerConfig,
    Recipe,
)
from stepladder.data.batch import Batch
from stepladder.measuring.ranks.team import Team
from stepladder.measuring.ranks.workload import task_of_rank
from stepladder.measuring.subject import Subject, open_subject
from stepladder.parallel.world import ALONE, World
from stepladder.task.contract import Task
from stepladder.training.setup.build import open_device

DEMO = Path("demo_data/store")
ARMS = ("ours", "bare", "apart")


class Convolutions(Task):
    """A small network on pictures of 32 pixels: steps of some tens of milliseconds."""

    def data(self, split: Split) -> TensorDataset | None:
        """Return random pictures."""
        if split is Split.TEST:
            return None
        pictures = torch.randn((512, 3, 32, 32), generator=torch.Generator().manual_seed(1))
        return TensorDataset(pictures, torch.arange(512) % 10)

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return three convolutions and a linear layer."""
        torch.manual_seed(recipe.seed)
        layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.ReLU()]
        layers += [nn.Conv2d(64, 64, 3, padding=1, stride=2), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 10))

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        """Return the loss of each example."""
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


class Member:
    """One of the two processes."""

    def __init__(self, world: World, *, recipe: Recipe, task: str, copies: Path) -> None:
        self._world = world
        self._device = open_device(recipe)
        self._recipe, self._steps = recipe, 0
        self._arms: dict[str, Callable[[], None]] = {}
        made, sources = task_of_rank(recipe, task, copies=copies)
        for name, its_world in (("ours", world), ("apart", ALONE)):
            # the subjects stay open as long as the process
            opened = open_subject(recipe, made, sources, device=self._device, world=its_world)
            subject = opened.__enter__()
            batch = subject.to_device(
                subject.batch_of(recipe.batch.global_batch_size // world.size)
            )
            self._arms[name] = self._own(subject, batch)
        opened = open_subject(recipe, made, sources, device=self._device)
        self._arms["bare"] = self._bare(opened.__enter__(), batch)
        self._opened = opened

    def _own(self, subject: Subject, batch: Batch) -> Callable[[], None]:
        num = batch.ids.numel() * subject.world.size

        def step() -> None:
            subject.parts.step(batch, step=subject.num_steps, lr=1e-3, num_global=num)
            subject.num_steps += 1

        return step

    def _bare(self, subject: Subject, batch: Batch) -> Callable[[], None]:
        model = DistributedDataParallel(subject.model, find_unused_parameters=False)
        optimizer = torch.optim.SGD(
            [w for w in model.parameters() if w.requires_grad], lr=1e-3, momentum=0.9
        )
        inputs, targets = batch.inputs, batch.targets
        if inputs.dtype is torch.uint8:  # as the built-in Task does before its model
            inputs = subject.task.augment(batch, seed=0, epoch=0).inputs

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()

        return step

    def block_s(self, arm: str, num_steps: int) -> float:
        """Return the seconds of a step of the slower process."""
        self._arms[arm]()
        self._world.barrier()
        started = time.perf_counter()
        for _ in range(num_steps):
            self._arms[arm]()
        return max(self._world.gather(time.perf_counter() - started)) / num_steps


def recipe_of(job: str) -> Recipe:
    """Return the recipe of a job on two devices of one core."""
    of_demo = job == "demo, all weights"
    return Recipe(
        auto=False,
        train=TrainMode.ALL,
        data=DataConfig(store=DEMO),
        features=FeaturesConfig(cached=False),
        batch=BatchConfig(global_batch_size=32 if of_demo else 128),
        optimizer=OptimizerConfig(name=OptimizerName.SGD, fused=False),
        device=DeviceConfig(
            kind=DeviceChoice.CPU,
            count=2,
            threads=1,
            memory_format=MemoryFormat.CONTIGUOUS,
            keep_freed_memory=True,
        ),
    )


def measure(job: str, task: str, *, rounds: int, num_steps: int) -> dict[str, Any]:
    """Time the arms of a job in turn."""
    recipe = replace(recipe_of(job))
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"recipe": recipe, "task": task, "copies": Path(folder) / "copies"}
        with Team(2, Member, arguments, is_cuda=False, folder=Path(folder)) as team:

            def contender(arm: str) -> Callable[[], float]:
                return lambda: team.ask("block_s", arm=arm, num_steps=num_steps)[0]

            contenders = {arm: contender(arm) for arm in ARMS}
            for run in contenders.values():
                run()
            found = rotated_trials(contenders, rounds)
    over = ratio(found["ours"], found["bare"])
    efficiency = ratio(found["apart"], found["ours"])
    return {
        "job": job,
        "rounds": rounds,
        "step of ours, ms": 1e3 * sorted(found["ours"])[rounds // 2],
        "ours / bare DDP": _words(over),
        "efficiency (apart / ours)": _words(efficiency),
    }


def _words(one: dict[str, float | int]) -> str:
    return f"{one['median']:.3f} ({one['min']:.3f} to {one['max']:.3f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    rounds = 2 if options.quick else options.rounds
    here = str(Path(__file__).absolute())
    rows = [measure("convolutions", f"{here}:Convolutions", rounds=rounds, num_steps=20)]
    if DEMO.is_dir():
        rows.append(
            measure("demo, all weights", "image_classification", rounds=rounds, num_steps=2)
        )
    if options.quick:
        print(rows)
        return
    write_rows(
        "devices_overhead",
        rows,
        note="Two processes of one core each, blocks of steps in turn on examples in memory; "
        "median of the paired ratios, and their range. Goals: ours / bare at most 1.03, efficiency "
        "at least 0.9.",
    )


if __name__ == "__main__":
    from bench.devices.overhead import main as of_module  # the processes import it by this name

    of_module()

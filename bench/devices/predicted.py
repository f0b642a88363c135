"""Compare the predicted step on two devices with the measured one, on ten kinds of jobs.

    python -m bench.devices.predicted [--rounds 8] [--workloads NAME ...] [--quick]

A device is one core. A job is profiled on one device, and `more_gpus` predicts its step on two from
that profile, the step on half of a batch, and an exchange of gradients. Then blocks of both are
timed in turn. Error = |ln(predicted / measured)| of the gain of a step. Goal: the median error is
at most ln 1.15.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from bench.measure import ratio, rotated_trials
from bench.rows import write_rows
from stepladder.config.choices import DeviceChoice, OptimizerName, Split, TrainMode
from stepladder.config.recipe import (
    BatchConfig,
    DeviceConfig,
    FeaturesConfig,
    OptimizerConfig,
    Recipe,
)
from stepladder.data.batch import Batch
from stepladder.measuring.profile import take_profile
from stepladder.measuring.ranks.probe import probe_devices
from stepladder.measuring.ranks.workload import open_workload
from stepladder.parallel.fleet import Fleet
from stepladder.rungs.devices.more_gpus import MoreGpus
from stepladder.rungs.devices.more_machines import TriedMachines
from stepladder.task.contract import Task
from stepladder.task.load import load_task
from stepladder.training.setup.build import open_device, open_sources

GOAL: Final = math.log(1.15)
NUM: Final = 1024  # examples
_EPOCHS: Final = 10.0
_BLOCK_S: Final = 1.0


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Examples of which each takes two milliseconds to read, as over a network."""

    def __init__(self, examples: TensorDataset) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, idx: int) -> tuple[Tensor, Tensor]:
        """Return picture and class, after a wait."""
        time.sleep(0.002)
        picture, target = self._examples[idx]
        return picture, target


class Convolutions(Task):
    """Three convolutions on pictures of 32 pixels."""

    width = 32
    pixels = 32
    is_slow = False

    def data(self, split: Split) -> Any:
        """Return random pictures."""
        if split is Split.TEST:
            return None
        num = NUM if split is Split.TRAIN else 64
        generator = torch.Generator().manual_seed(1)
        pictures = torch.randn((num, 3, self.pixels, self.pixels), generator=generator)
        examples = TensorDataset(pictures, torch.arange(num) % 10)
        return Slow(examples) if self.is_slow else examples

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the network: a trunk, and a linear layer as its head."""
        torch.manual_seed(recipe.seed)
        layers: list[nn.Module] = []
        before = 3
        for stride in (1, 2, 2):
            layers += [nn.Conv2d(before, self.width, 3, padding=1, stride=stride), nn.ReLU()]
            before = self.width
        pooled = [nn.AdaptiveAvgPool2d(4), nn.Flatten()]
        return nn.Sequential(nn.Sequential(*layers, *pooled), nn.Linear(16 * self.width, 10))

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        """Return trunk and head."""
        assert isinstance(model, nn.Sequential)
        return model[0], model[1]

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        """Return the loss of each example."""
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


class Wide(Convolutions):
    """Four times as many channels: much to compute for few gradients."""

    width = 128


class Large(Convolutions):
    """Pictures of 96 pixels."""

    pixels = 96


class SlowReading(Convolutions):
    """Waits for its data."""

    is_slow = True


class Linear(Convolutions):
    """One linear layer: nearly nothing to compute."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the layer, with an empty trunk."""
        torch.manual_seed(recipe.seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * self.pixels**2, 10))


class Perceptron(Convolutions):
    """17 million weights on few numbers: the exchange is what takes time."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return two large layers."""
        torch.manual_seed(recipe.seed)
        trunk = [nn.Flatten(), nn.Linear(3 * self.pixels**2, 2048), nn.ReLU()]
        trunk += [nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU()]
        return nn.Sequential(nn.Sequential(*trunk), nn.Linear(2048, 10))


class WithNorm(Convolutions):
    """With BatchNorm, whose statistics are exchanged in each layer."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the network with a norm after each convolution."""
        model = super().build_model(recipe)
        trunk, head = self.split(model)
        layers: list[nn.Module] = []
        for layer in trunk.children():
            layers.append(layer)
            if isinstance(layer, nn.Conv2d):
                layers.append(nn.BatchNorm2d(layer.out_channels))
        return nn.Sequential(nn.Sequential(*layers), head)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A workload: a Task of this file, and what its recipe changes."""

    task: type[Task]
    batch: int = 128
    train: TrainMode = TrainMode.ALL
    optimizer: OptimizerName = OptimizerName.SGD


JOBS: Final = {
    "small network": Job(task=Convolutions),
    "frozen trunk": Job(task=Convolutions, train=TrainMode.HEAD),
    "wide network": Job(task=Wide, batch=64),
    "large pictures": Job(task=Large, batch=64),
    "waits for data": Job(task=SlowReading, batch=32),
    "batch of 8": Job(task=Convolutions, batch=8),
    "batch of 512": Job(task=Convolutions, batch=512),
    "linear layer": Job(task=Linear),
    "many weights": Job(task=Perceptron, batch=64),
    "batch norm, AdamW": Job(task=WithNorm, optimizer=OptimizerName.ADAMW),
}


def recipe_of(job: Job) -> Recipe:
    """Return the recipe of a job on one device of one core."""
    return Recipe(
        auto=False,
        train=job.train,
        features=FeaturesConfig(cached=False),
        batch=BatchConfig(global_batch_size=job.batch),
        optimizer=OptimizerConfig(name=job.optimizer),
        device=DeviceConfig(kind=DeviceChoice.CPU, count=1, threads=1, keep_freed_memory=True),
    )


def measure(
    name: str, job: Job, *, rounds: int, block_s: float, fleet: Fleet | None = None
) -> dict[str, Any]:
    """Predict the gain of a second device, or of another machine with one, and measure it."""
    recipe = recipe_of(job)
    device = open_device(recipe)
    task = load_task(
        f"{Path(__file__).absolute()}:{job.task.__name__}", store=recipe.data.store, recipe=recipe
    )
    sources = open_sources(task)
    rung = MoreGpus() if fleet is None else TriedMachines(fleet.size)
    with tempfile.TemporaryDirectory() as place, ExitStack() as closing:
        folder = Path(place)
        profile = take_profile(
            recipe,
            task,
            sources,
            device=device,
            cache=folder,
            epochs=_EPOCHS,
            num_validations=_EPOCHS,
            curve=None,
        )
        devices = probe_devices(
            2,
            recipe,
            task,
            device=device,
            folder=folder / "devices",
            copies=folder / "copies",
            exchanged_bytes=profile.trainable_bytes,
            fleet=fleet,
        )
        profile = replace(profile, **{"devices" if fleet is None else "machines": devices})
        predicted = rung.predict(profile, recipe)
        assert predicted.time is not None
        contenders: dict[str, Callable[[], float]] = {}
        for arm, its in (("one", recipe), ("two", rung.apply(profile, recipe))):
            workload = open_workload(
                its,
                task,
                sources,
                device=device,
                cache=folder / arm,
                copies=folder / "copies",
                fleet=fleet,
            )
            closing.callback(workload.close)
            workload.warm_up(block_s)
            contenders[arm] = lambda timed=workload: timed.block(block_s).step_s  # type: ignore[misc]
        found = rotated_trials(contenders, rounds)
    gain = ratio(found["one"], found["two"])
    expected = profile.time.step_s / predicted.time.step_s
    return {
        "job": name,
        "step on one, ms": 1e3 * statistics.median(found["one"]),
        "predicted gain": expected,
        "measured gain": gain["median"],
        "range": f"{gain['min']:.2f} to {gain['max']:.2f}",
        "error": abs(math.log(expected / gain["median"])),
    }


def median_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the median error of the predictions in words."""
    median = statistics.median(row["error"] for row in rows)
    return f"median error {median:.3f}, that is a factor of {math.exp(median):.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workloads", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--quick", action="store_true", help="two short rounds; writes no results")
    options = parser.parse_args(arguments)
    rounds, block_s = (2, 0.1) if options.quick else (options.rounds, _BLOCK_S)
    rows = []
    for name in options.workloads:
        rows.append(measure(name, JOBS[name], rounds=rounds, block_s=block_s))
        print(rows[-1], flush=True)
    said = median_words(rows)
    print(said)
    if options.quick:
        return
    write_rows(
        "devices_predicted",
        rows,
        note=f"The gain of a step on two devices of one core each, predicted by `more_gpus` from "
        f"one device, and measured in {rounds} paired rounds (median and range of the ratios). "
        f"Error = |ln(predicted / measured)|: {said}. Goal: at most {GOAL:.3f} (1.15).",
    )


if __name__ == "__main__":
    main()

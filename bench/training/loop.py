"""Cost of our loop compared with a minimal PyTorch loop on the same batches.

Goals: at most 3 % for steps of 10 ms and more, at most 60 microseconds per step below.

    python -m bench.training.loop [--rounds 7]
"""

from __future__ import annotations

import argparse
import io
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from bench.rows import write_rows
from stepladder.config.choices import Split, TrainMode, Where
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import BatchConfig, DataConfig, Recipe, ScheduleConfig
from stepladder.data.batch import Batch
from stepladder.task import Task
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.loop import fit
from stepladder.training.output.display import Display
from stepladder.training.output.events import EventLog
from stepladder.training.session import Session
from stepladder.training.setup.build import make_clock, make_model, open_device, open_sources
from stepladder.training.setup.open_session import Surroundings, open_session
from stepladder.training.signals import SignalGuard

BATCH = 32


class Mlp(Task):
    """A perceptron whose width determines the time of a step."""

    def __init__(self, width: int, depth: int, batches: int) -> None:
        self.width, self.depth, self.batches = width, depth, batches

    def build_model(self, recipe: Recipe) -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(16, self.width), nn.ReLU()]
        for _ in range(self.depth):
            layers += [nn.Linear(self.width, self.width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.width, 4))

    def data(self, split: Split) -> TensorDataset | None:
        if split is not Split.TRAIN:
            return None
        generator = torch.Generator().manual_seed(0)
        n = BATCH * self.batches
        x = torch.randn(n, 16, generator=generator)
        return TensorDataset(x, (x[:, 0] > 0).long())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


class Replay:
    """Reader interface over batches that are in memory, so that both loops read the same list."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self.num_examples = sum(len(batch.ids) for batch in batches)
        self.steps_per_epoch = len(batches)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        yield from self.batches


def make_session(task: Mlp, folder: Path, steps: int) -> Session:
    device = open_device(Recipe())
    job = JobConfig(
        recipe=Recipe(
            train=TrainMode.ALL,
            data=DataConfig(where=Where.STREAM),
            batch=BatchConfig(global_batch_size=BATCH),
            schedule=ScheduleConfig(max_epochs=10**6, max_steps=steps),
        ),
        run=RunConfig(dir=folder, checkpoint_every_s=1e9),
    )
    return open_session(
        job,
        task,
        open_sources(task),
        model=make_model(job.recipe, task, device),
        device=device,
        clock=make_clock(device),
        around=Surroundings(
            checkpoints=Checkpoints(folder / "checkpoints"),
            events=EventLog(folder, attempt=1),
            display=Display(io.StringIO()),
            guard=SignalGuard(),
        ),
        facts={},
        loaded=None,
    )


def time_ours(task: Mlp, batches: list[Batch], steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = make_session(task, Path(folder), steps)
        run.train_reader.close()
        run.train_reader = Replay(batches)  # type: ignore[assignment]
        started = time.perf_counter()
        fit(run)
        seconds = time.perf_counter() - started
        run.events.close()
    return seconds / steps


def time_bare(task: Mlp, batches: list[Batch], steps: int) -> float:
    torch.manual_seed(0)
    model = task.build_model(Recipe())
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3, decoupled_weight_decay=True)
    started = time.perf_counter()
    for batch in itertools.islice(itertools.cycle(batches), steps):
        loss = F.cross_entropy(model(batch.inputs), batch.targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - started) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    rows, figures = [], []
    for name, width, depth, steps in (("tiny", 8, 1, 2000), ("large", 900, 10, 40)):
        task = Mlp(width, depth, batches=50)
        data = task.data(Split.TRAIN)
        assert data is not None
        x, y = data.tensors
        ids = torch.arange(len(x))
        batches = [
            Batch(x[i : i + BATCH], y[i : i + BATCH], ids[i : i + BATCH])
            for i in range(0, len(x), BATCH)
        ]
        contenders = {"ours": time_ours, "bare": time_bare}
        for call in contenders.values():
            call(task, batches, max(steps // 10, 5))
        times: dict[str, list[float]] = {label: [] for label in contenders}
        for turn in range(rounds):
            labels = list(contenders)
            for label in labels[turn % 2 :] + labels[: turn % 2]:
                times[label].append(contenders[label](task, batches, steps))
        figures += [{"model": name, "loop": label, "step_s": times[label]} for label in times]
        extra = [ours - bare for ours, bare in zip(times["ours"], times["bare"], strict=True)]
        ratio = [ours / bare for ours, bare in zip(times["ours"], times["bare"], strict=True)]
        rows.append(
            {
                "model": name,
                "n": rounds,
                "bare_step_ms": statistics.median(times["bare"]) * 1e3,
                "ours_step_ms": statistics.median(times["ours"]) * 1e3,
                "extra_us_median": statistics.median(extra) * 1e6,
                "extra_us_min": min(extra) * 1e6,
                "extra_us_max": max(extra) * 1e6,
                "ratio_median": statistics.median(ratio),
                "ratio_min": min(ratio),
                "ratio_max": max(ratio),
            }
        )
    note = "Goals: ratio at most 1.03 (large), extra at most 60 us (tiny)"
    write_rows("loop", rows, note=note, rounds=figures)


if __name__ == "__main__":
    main()

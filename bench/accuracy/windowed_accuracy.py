"""Test whether the windowed order costs accuracy, with paired seeds against a global shuffle.

    python -m bench.accuracy.windowed_accuracy STORE [--seeds 20] [--epochs 20] [--file-rows 64]

Heads are trained on features of a frozen trunk, which are the same in every epoch: a linear head,
and one with a hidden layer and BatchNorm, which depends on what a batch contains. The store's order
of rows is cut into files of --file-rows rows, as in a much larger store, and a window is four
files. `one class a file` sorts the rows by class: the cost of windows if files are not split by
hash.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.accuracy.seeds import features
from bench.measure import environment, summary, write_results
from stepladder.config.choices import Checks, OrderMode, Split, TrainMode, Where
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    HeadConfig,
    ModelConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.data.batch import Batch
from stepladder.data.reading.examples import Examples, Source
from stepladder.data.store.store import Store
from stepladder.machine import keep_freed_memory
from stepladder.models.classifier import build_classifier
from stepladder.stats import mean_estimate
from stepladder.task import Metrics, Task
from stepladder.training.output.display import Display
from stepladder.training.run import train

WINDOW_FILES = 4


class Held(Source):
    """Features in memory, in files of some rows."""

    default_threads = 0
    has_mixed_blocks = True

    def __init__(self, inputs: Tensor, targets: Tensor, file_rows: int, name: str) -> None:
        self.inputs, self.targets = inputs, targets
        self.fingerprint = name
        self.labels = targets.numpy()
        whole, rest = divmod(len(inputs), file_rows)
        self.block_rows = (file_rows,) * whole + ((rest,) if rest else ())

    def __len__(self) -> int:
        return len(self.inputs)

    def read(self, rows: np.ndarray) -> Examples:
        places = torch.from_numpy(rows)
        return Examples(self.inputs[places], self.targets[places])


class Heads(Task):
    """A head on features."""

    def __init__(self, splits: dict[Split, Held], *, num_classes: int, is_deep: bool) -> None:
        self.splits, self.num_classes, self.is_deep = splits, num_classes, is_deep

    def build_model(self, recipe: Recipe) -> nn.Module:
        width = self.splits[Split.TRAIN].inputs.shape[1]
        if not self.is_deep:
            return nn.Linear(width, self.num_classes)
        hidden = 256
        return nn.Sequential(
            nn.Linear(width, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, self.num_classes),
        )

    def data(self, split: Split) -> Held:
        return self.splits[split]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        logits = model(batch.inputs)
        hits = (logits.argmax(1) == batch.targets).float()
        return Metrics(
            losses=F.cross_entropy(logits, batch.targets, reduction="none"),
            sums={"accuracy": hits.sum()},
            counts={"accuracy": torch.tensor(float(len(hits)))},
            outputs=logits,
        )


def accuracy(task: Heads, *, mode: OrderMode, seed: int, epochs: int, file_rows: int) -> float:
    recipe = Recipe(
        seed=seed,
        train=TrainMode.ALL,
        data=DataConfig(order=mode, window_rows=WINDOW_FILES * file_rows, where=Where.STREAM),
        batch=BatchConfig(global_batch_size=16),
        schedule=ScheduleConfig(max_epochs=epochs),
        stopping=StoppingConfig(early=False, restore_best=False),
    )
    with tempfile.TemporaryDirectory() as folder:
        run = RunConfig(dir=Path(folder) / "run", checkpoint_every_s=1e9, checks=Checks.OFF)
        job = JobConfig(recipe=recipe, run=run)
        found = train(job, task, task_name="heads", display=Display(io.StringIO()))
    return float(found["test_accuracy"])


def splits_of(store: Store, file_rows: int, *, is_sorted: bool) -> dict[Split, Held]:
    model = build_classifier(
        ModelConfig(), HeadConfig(), seed=0, num_classes=len(store.manifest.classes)
    ).eval()
    trunk = model.trunk.to(memory_format=torch.channels_last)
    splits = {}
    for split in Split:
        inputs, targets = features(store, split, trunk).tensors
        if is_sorted:
            by_class = torch.sort(targets, stable=True).indices
            inputs, targets = inputs[by_class], targets[by_class]
        name = f"{store.fingerprint} {split} {is_sorted}"
        splits[split] = Held(inputs, targets, file_rows, name)
    return splits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--file-rows", type=int, default=64)
    args = parser.parse_args()
    keep_freed_memory()
    store = Store.open(args.store)
    num_classes = len(store.manifest.classes)
    lines, result = [], []
    for files, is_sorted in (("cut by hash", False), ("one class a file", True)):
        splits = splits_of(store, args.file_rows, is_sorted=is_sorted)
        for head, is_deep in (("linear", False), ("hidden layer, BatchNorm", True)):
            task = Heads(splits, num_classes=num_classes, is_deep=is_deep)
            options: dict[str, Any] = {"epochs": args.epochs, "file_rows": args.file_rows}
            found: dict[str, list[float]] = {"global": [], "windowed": []}
            for seed in range(args.seeds):
                for name in sorted(found, reverse=bool(seed % 2)):
                    found[name].append(accuracy(task, mode=OrderMode(name), seed=seed, **options))
            pairs = np.subtract(found["windowed"], found["global"])
            mean = mean_estimate(pairs)
            low, high = mean.mean - 2 * mean.sem, mean.mean + 2 * mean.sem
            both = " | ".join(f"{summary(found[name])['median']:.1%}" for name in found)
            change = f"{100 * mean.mean:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})"
            lines.append(f"| {files} | {head} | {both} | {change} |")
            result.append({"files": files, "head": head, **found})
            print(lines[-1], flush=True)
    sizes = {split.value: len(held) for split, held in splits.items()}
    table = (
        f"# Windowed order and accuracy\n\n{sizes}, {num_classes} classes; files of "
        f"{args.file_rows} rows, windows of {WINDOW_FILES} files, {args.epochs} epochs of batch "
        f"16, n = {args.seeds} paired seeds. Difference in percentage points of test accuracy, ± "
        "two standard errors over seeds.\n\n"
        "| files | head | global, median | windowed, median | difference |\n"
        "|---|---|---|---|---|\n" + "\n".join(lines) + "\n"
    )
    facts = {"environment": environment(), "setting": vars(args), "rows": result}
    write_results("windowed_accuracy", facts, table)
    print(table)


if __name__ == "__main__":
    main()

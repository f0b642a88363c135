"""Compare the losses of one, two and four devices, step by step.

python -m bench.devices.equal_losses [--steps 40] [--lr 0.001 0.01] [--runs FOLDER] [--quick]

The demo's network is trained with all its weights, in fp32, on batches of 32 photographs, with
BatchNorm synchronised. The same is trained on one device with the examples of each batch in other
orders, which changes nothing but the order of sums: as far apart as these are, so far apart are two
correct trainings. With the same --runs, finished trainings are not repeated.

Goals: within 1e-4 for 20 steps (relative); after that no further from one device than the other
orders are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.rows import write_rows
from stepladder.data.batch import Batch
from stepladder.task.image_classification import ImageClassification

DEMO = Path("demo_data/store")
ORDER = "STEPLADDER_BENCH_ORDER"
EARLY = 20
"""Steps in which losses have to be within 1e-4."""


class InOtherOrder(ImageClassification):
    """The photographs of each batch in the order of a seed."""

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        """Augment as the built-in Task does, and change the order."""
        batch = super().augment(batch, seed=seed, epoch=epoch)
        order = int(os.environ.get(ORDER, "0"))
        if order == 0:
            return batch
        generator = torch.Generator().manual_seed(order)
        rows = torch.randperm(batch.ids.numel(), generator=generator)
        return Batch(batch.inputs[rows], batch.targets[rows], batch.ids[rows])


def losses_of(folder: Path, *, num: int, order: int, steps: int, lr: float) -> list[float]:
    """Train unless that is done, and return the loss of each step."""
    if not (folder / "summary.json").exists():
        train(folder, num=num, order=order, steps=steps, lr=lr)
    rows = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [row["train_loss"] for row in rows if row["event"] == "train"]


def train(folder: Path, *, num: int, order: int, steps: int, lr: float) -> None:
    """Train on `num` devices, with the examples of each batch in the order of a seed."""
    words = ["--data.store", DEMO, "--train", "all", "--no-auto", "--features.no-cached"]
    words += ["--batch.global-batch-size", 32, "--batch.lr", lr, "--batch.lr-all", lr]
    words += ["--optimizer.name", "sgd", "--device.kind", "cpu", "--device.threads", 1]
    words += ["--device.memory-format", "contiguous", "--device.sync-batchnorm"]
    words += ["--stopping.no-early", "--schedule.max-epochs", 100, "--schedule.max-steps", steps]
    words += ["--stopping.validate-every-steps", 10 * steps, "--run.log-every", 1]
    words += ["--run.checks", "off", "--run.dir", folder, "--devices", num]
    task = f"{Path(__file__).absolute()}:{InOtherOrder.__name__}"
    subprocess.run(
        [sys.executable, "-m", "stepladder", "train", "--task", task, *map(str, words)],
        env={**os.environ, ORDER: str(order)},
        check=True,
        capture_output=True,
    )


def apart(losses: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Return the relative differences by step."""
    return [abs(one - other) / other for one, other in zip(losses, reference, strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, nargs="+", default=[0.001, 0.01], metavar="RATE")
    parser.add_argument("--runs", type=Path, help="folder of the trainings; default: temporary")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    steps = 3 if options.quick else options.steps
    runs = [(1, 0), (2, 0), (4, 0), *((1, order) for order in range(1, 2 if options.quick else 4))]
    rows: list[dict[str, Any]] = []
    rounds: list[dict[str, Any]] = []
    for lr in (0.01,) if options.quick else options.lr:
        found: dict[tuple[int, int], list[float]] = {}
        with tempfile.TemporaryDirectory() as temporary:
            for num, order in runs:
                folder = (options.runs or Path(temporary)) / f"{lr:g}-{num}-{order}"
                found[num, order] = losses_of(folder, num=num, order=order, steps=steps, lr=lr)
                print(lr, num, order, found[num, order][:: max(1, steps // 6)], flush=True)
        for (num, order), losses in found.items():
            rounds.append({"lr": lr, "devices": num, "order": order, "losses": losses})
            gaps = apart(losses, found[1, 0])
            rows.append(
                {
                    "learning rate": lr,
                    "devices": num,
                    "examples of a batch": f"order {order}" if order else "as read",
                    f"most within {min(EARLY, steps)} steps": f"{max(gaps[:EARLY]):.1e}",
                    "most after that": f"{max(gaps[EARLY:], default=0.0):.1e}",
                    "first, last loss": f"{losses[0]:.3f}, {losses[-1]:.3f}",
                }
            )
    if options.quick:
        print(rows)
        return
    write_rows(
        "devices_losses",
        rows,
        note=f"The demo's network with all weights, fp32, {steps} steps of 32 photographs, "
        "BatchNorm synchronised; relative difference of each step's loss to one device. One device "
        "with the examples of a batch in another order differs by the order of sums alone. Goals: "
        "1e-4 within 20 steps; after that no more than the other orders.",
        rounds=rounds,
    )


if __name__ == "__main__":
    main()

"""Train the demo's network over each all-reduce: how far are the losses, and how long is a step?

python -m bench.devices.exchanged [--devices 4] [--steps 16] [--rounds 1] [--quick]

All weights, in fp32, with BatchNorm synchronised, on batches of 16 photographs. Every kind trains
in turn, and each round begins with another one; times are shown from five rounds on. Goal: without
compression, losses equal those of PyTorch's own all-reduce within rounding: no further away than
one device with the examples of a batch in another order (bench.devices.equal_losses).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench.rows import write_rows
from stepladder.parallel.collectives.algorithms import Shape, distinct

DEMO: Final = Path("demo_data/store")
NATIVE: Final = "native"
LR: Final = 0.001  # as in bench.devices.equal_losses: a larger one makes rounding larger
_WARM_UP: Final = 10  # steps that are not timed; PowerSGD sends whole gradients in these


def kinds(num: int) -> dict[str, list[str]]:
    """Return what is compared, with its options."""
    found: dict[str, list[str]] = {NATIVE: []}
    for algorithm in distinct(Shape(num_ranks=num, num_local=num)):
        found[algorithm.name] = ["--all-reduce", algorithm.name]
    found["auto"] = ["--all-reduce", "auto"]
    found["native, each weight on its own"] = ["--buckets", "layer"]
    found["auto, each weight on its own"] = ["--all-reduce", "auto", "--buckets", "layer"]
    for name in ("bf16", "fp16", "power_sgd"):
        found[name] = ["--device.gradient-compression", name]
    return found


def trained(
    folder: Path, words: Sequence[str], *, num: int, steps: int
) -> tuple[list[float], float]:
    """Train, and return the loss of each step and the median seconds of a step."""
    options = ["--data.store", DEMO, "--train", "all", "--no-auto", "--features.no-cached"]
    options += ["--batch.global-batch-size", 16, "--batch.lr", LR, "--batch.lr-all", LR]
    options += ["--optimizer.name", "sgd", "--device.kind", "cpu", "--device.threads", 1]
    options += ["--device.memory-format", "contiguous", "--device.sync-batchnorm"]
    options += ["--stopping.no-early", "--schedule.max-steps", steps, "--run.log-every", 1]
    options += ["--stopping.validate-every-steps", 10 * steps, "--schedule.max-epochs", 100]
    options += ["--run.checks", "off", "--run.dir", folder, "--devices", num, *words]
    subprocess.run(
        [sys.executable, "-m", "stepladder", "train", *map(str, options)],
        check=True,
        capture_output=True,
    )
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["event"] == "train"]
    times = [row["elapsed_s"] for row in rows]
    seconds = [after - before for before, after in pairwise(times)]
    return [row["train_loss"] for row in rows], statistics.median(seconds[_WARM_UP:])


def time_of(own: Sequence[float], native: Sequence[float]) -> dict[str, str]:
    """Return the median step and its ratio to that of PyTorch's own all-reduce."""
    ratios = [one / other for one, other in zip(own, native, strict=True)]
    over = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return {"step, ms": f"{statistics.median(own) * 1e3:.0f}", "over native": over}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one round; writes no results")
    options = parser.parse_args(arguments)
    if options.steps < _WARM_UP + 3:
        parser.error(f"--steps {options.steps}: {_WARM_UP} are not timed; use 16")
    wanted = kinds(options.devices)
    losses: dict[str, list[float]] = {}
    times: dict[str, list[float]] = {name: [] for name in wanted}
    names = list(wanted)
    for number in range(1 if options.quick else options.rounds):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            with tempfile.TemporaryDirectory() as folder:
                found, step_s = trained(
                    Path(folder) / "run", wanted[name], num=options.devices, steps=options.steps
                )
            assert losses.setdefault(name, found) == found, f"{name} is not deterministic"
            times[name].append(step_s)
            print(name, found[-1], step_s, flush=True)
    rows: list[dict[str, Any]] = []
    for name in names:
        pairs = zip(losses[name], losses[NATIVE], strict=True)
        largest = max(abs(own - native) / native for own, native in pairs)
        row = {"gradients": name, "largest difference of a loss": f"{largest:.1e}"}
        rows.append(row | (time_of(times[name], times[NATIVE]) if len(times[name]) >= 5 else {}))
    if options.quick:
        print(rows)
        return
    write_rows(
        "exchanged",
        rows,
        note=f"The demo's network with all weights on {options.devices} processes, fp32, "
        f"{options.steps} steps of 16 photographs, {options.rounds} rounds in turn; relative "
        "difference of the losses to PyTorch's own all-reduce. Goal without compression: rounding, "
        "as far as another order of examples leads on one device (devices_losses).",
    )


if __name__ == "__main__":
    main()

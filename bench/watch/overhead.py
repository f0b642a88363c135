"""Cost of watching per step: the same small training with and without it, in turn.

    python -m bench.watch.overhead [--rounds 5] [--pairs 6] [--steps 400]

Each round is a process of its own. It creates one net and one optimizer, warms them up, and trains
them from the same weights in pairs: once alone and once within `stepladder.watch()`, with the order
swapped in the next pair. New nets would be at other memory addresses, which alone changes the time
of a step by more than watching does. Freed memory is kept for the same reason: whether the C
library returns memory after a step and requests it again depends on small objects allocated behind
it (allocator.py). The process runs on one core. All steps are counted, including the first ones and
those that are sampled. The table also has the watcher's own count, the CPU time of its functions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from math import comb
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from bench.rows import write_rows

PROGRAM = """
import json, os, sys, time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepladder
from stepladder.machine import keep_freed_memory

keep_freed_memory()
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
kind, steps, pairs, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


def net():
    if kind == "mlp":
        return torch.randn(1024, 64), nn.Sequential(
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if kind == "cnn":
        return torch.randn(512, 3, 16, 16), nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3),
            nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(32, 10))
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return torch.randn(512, 16, 32), nn.Sequential(
        nn.TransformerEncoder(layer, 6), nn.Flatten(), nn.Linear(512, 10))


torch.manual_seed(0)
x, model = net()
y = torch.randint(10, (len(x),))
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
weights = {name: value.clone() for name, value in model.state_dict().items()}


def train(steps):
    torch.manual_seed(0)
    model.load_state_dict(weights)
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()
    done, wall, cpu = 0, time.perf_counter(), time.process_time()
    while done < steps:
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(xb), yb)
            loss.backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


found = []
train(steps // 2)
for number in range(first, first + pairs):
    pair = {}
    for arm in ("alone", "watched") if number % 2 else ("watched", "alone"):
        if arm == "alone":
            pair[arm] = train(steps)
            continue
        with stepladder.watch(f"seen{number}", quiet=True) as watching:
            pair[arm] = train(steps)
        pair[arm]["own_s"] = watching.report.overhead_s
    found.append(pair)
print(json.dumps(found))
"""
KINDS = ("mlp", "cnn", "transformer")


def main() -> None:
    """Measure, and write results/watch_overhead.json and .md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=6, help="pairs in each process")
    parser.add_argument("--steps", type=int, default=400)
    flags = parser.parse_args()
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text(PROGRAM, encoding="utf-8")
        for number in range(flags.rounds):
            for kind in KINDS:
                for found in run(script, kind, flags.steps, flags.pairs, number):
                    rounds.append({"round": number, "program": kind, **found})
    rows = [row(kind, rounds, flags.steps) for kind in KINDS]
    load = os.getloadavg()[0]
    note = (
        f"Cost of watching, microseconds per step: {flags.steps} steps including the first, n = "
        f"{flags.rounds * flags.pairs} pairs in {flags.rounds} processes, in alternating "
        "order; median of the differences with its 95 % interval by order statistics, and the "
        "CPU time that the watcher counts itself. One thread on one core; freed memory is kept. "
        f"Load of the machine at the end: {load:.1f}."
    )
    write_rows("watch_overhead", rows, note=note, rounds=rounds)


def run(script: Path, kind: str, steps: int, pairs: int, first: int) -> list[dict[str, Any]]:
    """Train in both ways in a fresh process, and return the seconds of each pair."""
    done = subprocess.run(
        [sys.executable, str(script), kind, str(steps), str(pairs), str(first)],
        cwd=script.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def row(kind: str, rounds: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Summarize the pairs of one program."""
    own = [one for one in rounds if one["program"] == kind]
    found: dict[str, Any] = {"program": kind}
    found["step alone, µs"] = round(1e6 * median(o["alone"]["wall_s"] for o in own) / steps)
    for clock in ("wall", "cpu"):
        costs = [1e6 * (o["watched"][f"{clock}_s"] - o["alone"][f"{clock}_s"]) / steps for o in own]
        low, high = interval_of_median(costs)
        found[f"watching by {clock}, µs"] = f"{median(costs):.0f} ({low:.0f} to {high:.0f})"
    counted = [1e6 * o["watched"]["own_s"] / steps for o in own]
    found["counted by the watcher, µs"] = f"{mean(counted):.0f} ± {stdev(counted):.0f}"
    return found


def interval_of_median(values: list[float]) -> tuple[float, float]:
    """Return the narrowest pair of order statistics that covers the median with 95 % confidence."""
    ordered, num = sorted(values), len(values)
    outside, rank = 0.0, 0
    while rank < num // 2 and outside + comb(num, rank) / 2**num <= 0.025:
        outside += comb(num, rank) / 2**num
        rank += 1
    rank = max(rank, 1)
    return ordered[rank - 1], ordered[num - rank]


if __name__ == "__main__":
    main()

"""What watching costs a step: small trainings with and without it, one after the other.

    python bench/watch_overhead.py [--rounds 5] [--steps 400]

Each training is a process of its own, which times its own loop: by the wall, and by the CPU time
that it took, which other work on the machine changes less. The cost is the difference to the
training beside it, for each step; all steps count, those that are looked at closely as well.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rows import write_rows

PROGRAM = """
import sys, time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

kind, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
if kind == "mlp":
    x, model = torch.randn(1024, 64), nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
elif kind == "cnn":
    x, model = torch.randn(512, 3, 16, 16), nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3),
        nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
else:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    x, model = torch.randn(512, 16, 32), nn.Sequential(
        nn.TransformerEncoder(layer, 6), nn.Flatten(), nn.Linear(512, 10))
y = torch.randint(10, (len(x),))
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
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
print(time.perf_counter() - wall, time.process_time() - cpu)
"""
KINDS = ("mlp", "cnn", "transformer")


def main() -> None:
    """Measure, and write results/watch_overhead.json and .md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    flags = parser.parse_args()
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text(PROGRAM, encoding="utf-8")
        for number in range(flags.rounds):
            for kind in KINDS:
                one: dict[str, Any] = {"round": number, "program": kind}
                for arm in ("alone", "watched") if number % 2 == 0 else ("watched", "alone"):
                    wall_s, cpu_s = run(script, kind, flags.steps, is_watched=arm == "watched")
                    one |= {f"{arm}_wall_s": wall_s, f"{arm}_cpu_s": cpu_s}
                rounds.append(one)
    rows = [row(kind, rounds, flags.steps) for kind in KINDS]
    load = os.getloadavg()[0]
    note = (
        f"Watching, microseconds a step: {flags.steps} steps, n = {flags.rounds} pairs of "
        f"processes in turn, mean ± one standard deviation of the pairs. Load of the machine at "
        f"the end: {load:.1f}."
    )
    write_rows("watch_overhead", rows, note=note, rounds=rounds)


def run(script: Path, kind: str, steps: int, *, is_watched: bool) -> tuple[float, float]:
    """Run the program once, and give the seconds of its loop by wall and by CPU."""
    words = [sys.executable]
    if is_watched:
        words += ["-m", "stepladder", "watch", "--quiet", "--out", str(script.parent / "seen")]
    done = subprocess.run(
        [*words, str(script), kind, str(steps)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    wall_s, cpu_s = done.stdout.split()
    return float(wall_s), float(cpu_s)


def row(kind: str, rounds: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Sum the pairs of one program up."""
    own = [one for one in rounds if one["program"] == kind]
    found: dict[str, Any] = {"program": kind}
    found["step alone, µs"] = round(1e6 * mean(o["alone_wall_s"] for o in own) / steps)
    for clock in ("wall", "cpu"):
        costs = [1e6 * (o[f"watched_{clock}_s"] - o[f"alone_{clock}_s"]) / steps for o in own]
        found[f"watching by {clock}, µs"] = f"{mean(costs):.0f} ± {stdev(costs):.0f}"
    return found


if __name__ == "__main__":
    main()

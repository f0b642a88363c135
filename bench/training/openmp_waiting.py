"""How idle OpenMP threads should wait: the demo's original step, quiet and beside another process.

python -m bench.training.openmp_waiting [--rounds 5] [--steps 60]

Each setting runs in a process of its own, in rotated order. The figure is pictures a second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from bench.measure import ratio, rotated_trials
from bench.rows import write_rows

STEP = """
import sys, time, torch
from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import ModelConfig, Recipe
from stepladder.machine import keep_freed_memory
from stepladder.models.classifier import build_classifier
keep_freed_memory()
recipe = Recipe(model=ModelConfig(weights=WeightsSource.NONE))
model = build_classifier(recipe.model, recipe.head, seed=recipe.seed, num_classes=14).eval()
x = torch.randint(0, 255, (2, 3, 224, 224), dtype=torch.uint8)
num_steps = int(sys.argv[1])
with torch.inference_mode():
    for _ in range(3):
        model(x)
    started = time.perf_counter()
    for _ in range(num_steps):
        model(x)
print(num_steps * len(x) / (time.perf_counter() - started))
"""
SETTINGS: dict[str, dict[str, str]] = {
    "active": {"OMP_WAIT_POLICY": "ACTIVE"},
    "torch's default": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    **{f"spin {num}": {"GOMP_SPINCOUNT": str(num)} for num in (300, 1000, 3000, 10000, 30000)},
}
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")


@contextmanager
def busy(num: int) -> Iterator[None]:
    """Load some cores with a process each."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def images_per_s(setting: dict[str, str], num_steps: int, num_busy: int) -> float:
    """Run the steps in a new process."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-c", STEP, str(num_steps)]
    with busy(num_busy):
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**kept, **setting}
        )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    rows, rounds = [], []
    quiet: list[float] = []
    for num_busy, share in ((0, 1.0), (1, 0.25)):
        steps = max(4, round(share * options.steps))
        figures = rotated_trials(
            {
                name: partial(images_per_s, setting, steps, num_busy)
                for name, setting in SETTINGS.items()
            },
            options.rounds,
        )
        quiet = quiet or figures["active"]
        for name, values in figures.items():
            rows.append(
                {
                    "busy_processes": num_busy,
                    "waiting": name,
                    "n": options.rounds,
                    "median_images_per_s": statistics.median(values),
                    "min": min(values),
                    "max": max(values),
                    "of_quiet_active": ratio(values, quiet)["median"],
                }
            )
            rounds.append({"busy": num_busy, "waiting": name, "images_per_s": values})
            print(rows[-1], flush=True)
    note = (
        "tf_efficientnet_lite0, forward, 2 pictures of 224, fp32, as in the demo's original job. "
        "`spin N` is GOMP_SPINCOUNT; the last column is paired with active waiting on a quiet "
        "machine."
    )
    write_rows("openmp_waiting", rows, note=note, rounds=rounds)


if __name__ == "__main__":
    main()

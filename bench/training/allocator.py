"""Speedup of a CPU forward pass if freed memory is kept, in processes of its own.

python -m bench.training.allocator [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from bench.measure import ratio, rotated_trials
from bench.rows import write_rows

FORWARD = """
import sys, time
if sys.argv[1] == "keep":
    from stepladder.machine import keep_freed_memory
    assert keep_freed_memory()
import torch
from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import ModelConfig, Recipe
from stepladder.models.classifier import build_classifier
recipe = Recipe(model=ModelConfig(weights=WeightsSource.NONE))
model = build_classifier(recipe.model, recipe.head, seed=recipe.seed, num_classes=14)
model = model.eval().to(memory_format=torch.channels_last)
x = torch.randint(0, 255, (16, 3, 224, 224), dtype=torch.uint8)
x = x.to(memory_format=torch.channels_last)
with torch.inference_mode():
    for _ in range(3):
        model(x)
    started = time.perf_counter()
    for _ in range(20):
        model(x)
print(20 * len(x) / (time.perf_counter() - started))
"""


def images_per_s(mode: str) -> float:
    """Run the forward pass in a new process."""
    command = [sys.executable, "-c", FORWARD, mode]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    figures = rotated_trials(
        {mode: lambda mode=mode: images_per_s(mode) for mode in ("keep", "plain")}, rounds
    )
    paired = ratio(figures["keep"], figures["plain"])
    rows = [
        {
            "malloc": mode,
            "n": rounds,
            "median_images_per_s": statistics.median(values),
            "min": min(values),
            "max": max(values),
        }
        for mode, values in figures.items()
    ]
    note = (
        "Forward pass of tf_efficientnet_lite0, 16 pictures of 224, channels-last, fp32. With "
        f"freed memory kept, it is {paired['median']:.2f} times as fast "
        f"({paired['min']:.2f} to {paired['max']:.2f}, paired)."
    )
    rounds = [{"malloc": mode, "images_per_s": values} for mode, values in figures.items()]
    write_rows("allocator", rows, note=note, rounds=rounds)


if __name__ == "__main__":
    main()

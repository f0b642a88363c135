"""Cost of a checkpoint: seconds per save and load, and their share of a run.

Goal: checkpoints below 2 % of a run, at the default of one per minute.

    python -m bench.training.checkpoint [--saves 15]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.rows import write_rows
from stepladder.config.options import RunConfig
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.folder_checks import probe
from stepladder.training.randomness import capture_random_state

# Millions of weights: (frozen, trainable). The first two are the default model's.
CASES = {
    "head alone": (3.4, 0.018),
    "all weights": (0.0, 3.4),
    "all weights of 25 M": (0.0, 25.6),
    "head on 86 M frozen": (86.0, 0.1),
}


def weights(millions: float, num_tensors: int = 160) -> dict[str, Tensor]:
    """Create random weights, in as many tensors as a trunk has."""
    num_elements = round(millions * 1e6 / num_tensors)
    return {f"layer{index}.weight": torch.randn(num_elements) for index in range(num_tensors)}


def measure(
    folder: Path, *, frozen: float, learning: float, num_saves: int
) -> tuple[dict[str, Any], list[float]]:
    """Save as a run of NAdam does, with two moments for each trainable weight.

    Returns:
        The row, and the seconds of each save except the first.
    """
    checkpoints = Checkpoints(folder, keep_last=2, file_system=probe(folder))
    fixed, model = weights(frozen), weights(learning)
    optimizer = {
        f"{name}.{moment}": torch.rand_like(tensor)
        for name, tensor in model.items()
        for moment in ("exp_avg", "exp_avg_sq")
    }
    random, values = capture_random_state()
    tensors = {"model": model, "optimizer": optimizer, "random": random}
    infos = []
    prunes = []
    for number in range(num_saves + 1):
        infos.append(checkpoints.save(f"step-{number:09d}", tensors, {"random": values}, fixed))
        start = time.perf_counter()
        checkpoints.prune([])
        prunes.append(time.perf_counter() - start)
    start = time.perf_counter()
    checkpoints.newest()
    load_s = time.perf_counter() - start
    first, *later = infos
    save_s = [info.seconds + prune_s for info, prune_s in zip(later, prunes[1:], strict=True)]
    megabytes = later[0].num_bytes / 1e6
    median_s = statistics.median(save_s)
    row = {
        "n": num_saves,
        "first_save_s": round(first.seconds, 4),
        "save_and_prune_s": round(median_s, 4),
        "save_and_prune_min_s": round(min(save_s), 4),
        "save_and_prune_max_s": round(max(save_s), 4),
        "written_mb": round(megabytes, 2),
        "mb_per_s": round(megabytes / median_s, 1),
        "load_s": round(load_s, 4),
        "share_of_run": round(median_s / RunConfig().checkpoint_every_s, 6),
    }
    return row, save_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=15)
    parser.add_argument(
        "--folder", type=Path, help="folder on the disk to measure; default: a temporary one"
    )
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows, rounds = [], []
    for case, (frozen, learning) in CASES.items():
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            numbers, save_s = measure(
                Path(folder), frozen=frozen, learning=learning, num_saves=arguments.saves
            )
        rows.append({"case": case, **numbers})
        rounds.append({"case": case, "save_and_prune_s": save_s})
        print(rows[-1], flush=True)
    write_rows("checkpoint", rows, note="Goal: share_of_run under 0.02.", rounds=rounds)


if __name__ == "__main__":
    main()

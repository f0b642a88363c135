"""Effect of fusing activations into convolutions on complete trainings of the demo's kept recipe.

    python -m bench.training.fusing STORE [--rounds 10] [--precision fp32]

STORE is the demo's, created by `stepladder prepare examples/demo/demo.yaml`. Trainings with and
without fusing alternate in one process, each without cached features. Features, head, validation
and the test pictures are included in the time. bf16 needs a CPU with bf16 convolutions (AVX-512
BF16 or AMX); on others nothing is fused.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import stepladder
from bench.climbs.workloads import forget_artefacts
from bench.measure import ratio, rotated_trials, summary
from bench.rows import write_rows
from stepladder.models import forwards
from stepladder.models.torchvision_shim import import_timm
from stepladder.training.output.display import Display

KEPT = {
    "features.cached": True,
    "model.fold_batchnorm": True,
    "device.memory_format": "channels_last",
    "optimizer.fused": True,
    "batch.global_batch_size": 8,
    "batch.base_batch_size": 8,
    "batch.lr": 0.008,
    "stopping.patience": 24,
    "stopping.restore_best": False,
    "run.checks": "off",
}
FUSED, PLAIN = "fused", "folded only"
FUSE = forwards.fuse_activations


def train(store: Path, way: str, precision: str) -> dict[str, Any]:
    """Train once, from no features to the evaluation of the test pictures."""
    forget_artefacts(store)
    forwards.fuse_activations = FUSE if way == FUSED else lambda *_, **__: None
    with tempfile.TemporaryDirectory(prefix="stepladder-fusing-") as folder:
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        run = stepladder.train(
            store=store,
            dir=Path(folder) / "run",
            display=Display(io.StringIO()),
            **KEPT,
            **{"device.precision": precision},
        )
        seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
        facts = {key: run.summary[key] for key in ("epochs", "test_accuracy", "phases_s")}
    return {"way": way, "seconds": seconds, "cpu_s": cpu_s, **facts}


def write(rounds: Sequence[Mapping[str, Any]], precision: str) -> None:
    """Write the results of the rounds."""
    by_way = {way: [line for line in rounds if line["way"] == way] for way in (FUSED, PLAIN)}
    rows = []
    for key in ("seconds", "cpu_s"):
        figures = {way: [line[key] for line in lines] for way, lines in by_way.items()}
        gain = ratio(figures[PLAIN], figures[FUSED])
        rows += [{"figure": f"{way}, {key}", **summary(figures[way])} for way in figures]
        rows.append({"figure": f"folded only over fused, {key} (paired)", **gain})
    note = (
        f"Complete trainings of the demo's kept recipe in {precision}, from no features to the "
        "evaluation of the test pictures, in turn in one process."
    )
    write_rows("fusing", rows, note=note, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    options = parser.parse_args()
    import_timm()
    rounds: list[dict[str, Any]] = []

    def seconds(way: str) -> float:
        rounds.append(train(options.store, way, options.precision))
        print(json.dumps(rounds[-1]), flush=True)
        return float(rounds[-1]["seconds"])

    train(options.store, FUSED, options.precision)  # warm-up
    rotated_trials({way: lambda way=way: seconds(way) for way in (FUSED, PLAIN)}, options.rounds)
    write(rounds, options.precision)


if __name__ == "__main__":
    main()

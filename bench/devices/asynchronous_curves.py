"""What workers learn in each epoch: held-out loss, on own shards and on all data.

    python -m bench.devices.asynchronous_curves [--seeds 5] [--quick]

The task, workers and batch of bench.devices.asynchronous, all with one learning rate. Workers are
simulated, so each training can be repeated to the bit, but for those of Hogwild, which are real.
With a straggler, the last worker is three times slower.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.devices.asynchronous import LOCAL_STEPS, command, events, method
from bench.rows import write_rows

LR: Final = 0.5
EPOCHS: Final = (1, 2, 4, 8, 16)
_SIMULATED: Final = ("--asynchronous.simulate",)
_STRAGGLER: Final = (*_SIMULATED, "--asynchronous.stragglers", "3")
WAYS: Final[Mapping[str, tuple[str, ...]]] = {
    "synchronous": (*method("parameter_server", max_age=0), *_SIMULATED),
    "asynchronous, own shards": (*method("parameter_server", age_rule="none"), *_SIMULATED),
    "asynchronous, all examples": (
        *method("parameter_server", age_rule="none", data="all"),
        *_SIMULATED,
    ),
    "asynchronous, 1 straggler, own shards": (
        *method("parameter_server", age_rule="none"),
        *_STRAGGLER,
    ),
    "asynchronous, 1 straggler, all examples": (
        *method("parameter_server", age_rule="none", data="all"),
        *_STRAGGLER,
    ),
    "backup worker, 1 straggler": (*method("backup_workers"), *_STRAGGLER),
    "local SGD, 8 steps": (*method("local_sgd", local_steps=LOCAL_STEPS), *_SIMULATED),
    "DiLoCo, 8 steps": (*method("diloco", local_steps=LOCAL_STEPS), *_SIMULATED),
    "Hogwild": method("hogwild"),
}


def curve(words: Sequence[str], *, seed: int) -> dict[int, float]:
    """Train, and return the held-out loss after each epoch."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        subprocess.run(
            [*command(run, words, lr=LR, seed=seed), "--epochs", str(EPOCHS[-1])],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=True,
            capture_output=True,
        )
        found = [one for one in events(run) if one["event"] == "validation"]
    return {epoch: float(one["val_loss"]) for epoch, one in enumerate(found, start=1)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one seed; writes no results")
    options = parser.parse_args(arguments)
    seeds = range(1 if options.quick else options.seeds)
    rows: list[dict[str, Any]] = []
    for name, words in WAYS.items():
        curves = [curve(words, seed=seed) for seed in seeds]
        row: dict[str, Any] = {"way": name}
        for epoch in EPOCHS:
            losses = [one[epoch] for one in curves if epoch in one]
            spread = f" ± {statistics.stdev(losses):.3f}" if len(losses) > 1 else ""
            row[f"after epoch {epoch}"] = f"{statistics.fmean(losses):.3f}{spread}"
        rows.append(row)
        print(row)
    if not options.quick:
        write_rows(
            "asynchronous_curves",
            rows,
            note=f"Held-out loss, mean and standard deviation of {len(seeds)} seeds, learning rate "
            f"{LR}. Simulated workers.",
        )


if __name__ == "__main__":
    main()

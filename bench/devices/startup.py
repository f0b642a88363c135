"""Time how much longer a short training takes with each way to start two devices.

python -m bench.devices.startup [--rounds 5] [--quick]

The same two epochs of three steps run in one process, with `--devices 2`, with torchrun, with
`--launch spark` (local[2]) and with `--launch ray` (a Ray of its own), in turn, from the command to
its end. What a launcher adds is its time less that of one process in the same round.

Goal: `--devices 2` adds at most 3 s.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.measure import rotated_trials
from bench.rows import write_rows

LAUNCHERS: Final = ("one process", "--devices 2", "torchrun", "--launch spark", "--launch ray")
TASK: Final = Path(__file__).with_name("overhead.py").absolute()


def seconds_of(launcher: str, folder: Path) -> float:
    """Train with a launcher, and return the seconds until it has ended."""
    run = tempfile.mkdtemp(dir=folder)
    words = ["train", "--task", f"{TASK}:Convolutions", "--run.dir", f"{run}/run", "--train", "all"]
    words += ["--epochs", "2", "--batch-size", "171", "--run.checks", "off", "--stopping.no-early"]
    words += ["--device.kind", "cpu", "--device.threads", "1"]
    start = [sys.executable, "-m", "stepladder"]
    if launcher == "torchrun":
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        start += ["--nproc-per-node", "2", "-m", "stepladder"]
    elif launcher != "one process":
        words += ["--devices", "2", *(launcher.split() if "launch" in launcher else [])]
    more = {"SPARK_MASTER": "local[2]", "RAY_ADDRESS": "local"}
    started = time.perf_counter()
    subprocess.run([*start, *words], env={**os.environ, **more}, check=True, capture_output=True)
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as there:

        def contender(launcher: str) -> Callable[[], float]:
            return lambda: seconds_of(launcher, Path(there))

        contenders = {launcher: contender(launcher) for launcher in LAUNCHERS}
        found = rotated_trials(contenders, 1 if options.quick else options.rounds)
    alone = found["one process"]
    rows: list[dict[str, Any]] = []
    for launcher in LAUNCHERS:
        more = [s - one for s, one in zip(found[launcher], alone, strict=True)]
        added = f"{median(more):.1f} ({min(more):.1f} to {max(more):.1f})"
        rows.append(
            {
                "launcher": launcher,
                "whole command, s": f"{median(found[launcher]):.1f}",
                "more than one process, s": added if launcher != "one process" else "",
            }
        )
    if options.quick:
        print(rows)
        return
    write_rows(
        "devices_startup",
        rows,
        note="Two epochs of three steps, from the command to its end, in turn; median and range of "
        "what each launcher adds to one process in the same round. Goal: --devices 2 adds at most "
        "3 s.",
        rounds=[
            dict(zip(found, times, strict=True)) for times in zip(*found.values(), strict=True)
        ],
    )


if __name__ == "__main__":
    main()

"""Run every benchmark, one after the other, as concurrent ones would disturb each other.

    make bench [CALTECH=caltech101.tar] [LIGHTNING=lightning_venv/bin/python]

With the tar file of the Caltech-101 subset, those that can use it run on it as well. With a Python
that has lightning and timm, training.lightning_pairs runs too, on the demo's photographs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

SCRIPTS = (
    "commands.startup",
    "training.loop",
    "training.allocator",
    "training.openmp_waiting",
    "training.checkpoint",
    "training.fusing demo_data/store",
    "data.reader",
    "data.shuffle_quality",
    "data.prepare",
    "data.near_duplicates demo_data/groceries",
    "data.object_sources",
    "devices.startup",
    "devices.overhead",
    "devices.predicted",
    "devices.equal_losses",
    "devices.recovery",
    "devices.collectives",
    "devices.exchanged",
    "devices.exchange_steps",
    "devices.sharded_memory",
    "devices.asynchronous_curves",
    "planning.step_memory",
    "planning.step_times",
    "optim.autoencoder",
    "optim.large_batches",
    "optim.tokens",
    "optim.fine_tune demo_data/store",
    "populations.heads_at_once demo_data/store",
    "populations.against_search demo_data/store",
    "populations.demo demo_data/store",
    "accuracy.seeds",
    "accuracy.windowed_accuracy demo_data/store",
    "accuracy.six_steps",
    "commands.check_time",
    "watch.overhead",
    "diagnosis.baseline_stops",
    "climbs.epoch_ranges",
    "faults.hits --corpus development",
    "faults.hits --corpus held_out",
    "faults.hits --corpus held_out_2",
    "faults.hits --corpus sound",
    "diagnosis.fit_rules",
    "accuracy.time_to_accuracy",
    "climbs.repeated",
    "climbs.loaded",
    "climbs.verdicts",
    "climbs.predictions",
    "climbs.advice",
)
"""The last seven together take hours; see --help of each."""
ELSEWHERE = {
    "optim.race": "is what the races of optimizers share",
    "gpu.climb": "needs a GPU: bench/gpu/run.sh",
    "devices.asynchronous": "takes half an hour: name a log",
    "devices.memory_limit": "runs here as root if memory cgroups may be made",
    "devices.hosts_predicted": "runs here as root if network namespaces are allowed",
    "watch.reported": "takes half an hour: name a log",
    "watch.slow_scripts": "takes hours: name a log",
    "watch.beside": "runs here if TraceML and slowai are installed in a folder that you name",
    "watch.public_scripts": "downloads the scripts to a folder that you name",
    "training.lightning_pairs": "runs here if there is a Python with Lightning",
    "loaders.compare": "runs here if there is a tar file",
    "loaders.limits": "a group of loaders.compare",
    "loaders.object_store": "a group of loaders.compare",
    "loaders.spark_prepare": "a group of loaders.compare",
}
"""Benchmarks that write results and are not in SCRIPTS, with the reason."""
ON_CALTECH = ("accuracy.six_steps", "accuracy.time_to_accuracy", "loaders.compare")
LOADER_GROUPS = (
    "pixels",
    "pixels-shards",
    "jpeg",
    "presized",
    "prepare",
    "limits",
    "object-store",
    "spark",
)
"""These need the tar file; contenders that are not installed are left out."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--caltech", type=Path, help="tar file of the Caltech-101 subset")
    parser.add_argument("--lightning-python", type=Path, help="Python with lightning and timm")
    options = parser.parse_args()
    caltech, python = options.caltech, options.lightning_python
    failed = []
    loaders = [f"loaders.compare --group {group}" for group in LOADER_GROUPS] if caltech else []
    pairs = [f"training.lightning_pairs --lightning-python {python}"] if python else []
    for name in (*SCRIPTS, *pairs, *loaders):
        print(f"== {name}", flush=True)
        script, *flags = name.split()
        more = ["--caltech", str(caltech)] if caltech and script in ON_CALTECH else []
        command = [sys.executable, "-m", f"bench.{script}", *flags, *more]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

"""Run every benchmark, one after the other: two at once would measure each other.

    make bench [CALTECH=caltech101.tar]

With the tar of the Caltech-101 subset, those that can are run on it as well.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = (
    "startup.py",
    "loop.py",
    "allocator.py",
    "checkpoint.py",
    "reader.py",
    "shuffle_quality.py",
    "prepare.py",
    "seeds.py",
    "six_steps.py",
    "check_time.py",
    "watch_overhead.py",
    "baseline_stops.py",
    "hits.py --corpus development",
    "hits.py --corpus held_out",
    "hits.py --corpus held_out_2",
    "hits.py --corpus sound",
    "fit_rules.py",
    "time_to_accuracy.py",
    "climbs.py",
    "verdicts.py",
    "predictions.py",
    "advice.py",
)
"""The last six take hours together; each says what it does with --help."""
ON_CALTECH = ("six_steps.py", "time_to_accuracy.py", "loaders.py")
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
"""Need the tar; contenders that are not installed are left out."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--caltech", type=Path, help="tar of the Caltech-101 subset")
    caltech = parser.parse_args().caltech
    failed = []
    loaders = [f"loaders.py --group {group}" for group in LOADER_GROUPS] if caltech else []
    for name in (*SCRIPTS, *loaders):
        print(f"== {name}", flush=True)
        script, *flags = name.split()
        more = ["--caltech", str(caltech)] if caltech and script in ON_CALTECH else []
        command = [sys.executable, str(HERE / script), *flags, *more]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

"""Run every benchmark, one after the other: two at once would measure each other.

make bench
"""

from __future__ import annotations

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
    "prepare.py",
    "seeds.py",
    "six_steps.py",
    "time_to_accuracy.py",
    "climbs.py",
    "predictions.py",
    "advice.py",
)
"""The last five take hours together; each says what it does with --help."""


def main() -> None:
    failed = []
    for name in SCRIPTS:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, str(HERE / name)], check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

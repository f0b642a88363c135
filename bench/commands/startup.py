"""Time `stepladder --help`, as whole processes. Goal: under 0.35 s, without importing torch.

python -m bench.commands.startup [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from bench.rows import write_rows

COMMANDS = {
    "help": ["-m", "stepladder.cli.main", "--help"],
    "train_help": ["-m", "stepladder.cli.main", "train", "--help"],
    "bare_python": ["-c", "pass"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(rounds + 1):
        names = list(COMMANDS)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            started = time.perf_counter()
            subprocess.run([sys.executable, *COMMANDS[name]], check=True, capture_output=True)
            if turn:  # the first round warms the page cache
                times[name].append(time.perf_counter() - started)
    rows = [
        {
            "command": name,
            "n": rounds,
            "median_s": statistics.median(values),
            "min_s": min(values),
            "max_s": max(values),
        }
        for name, values in times.items()
    ]
    rounds = [{"command": name, "seconds": values} for name, values in times.items()]
    write_rows("startup", rows, note="Goal: --help under 0.35 s.", rounds=rounds)


if __name__ == "__main__":
    main()

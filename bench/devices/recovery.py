"""Kill a random rank at a random time, many times: does the run end as without?

python -m bench.devices.recovery [--kills 40] [--devices 4]

Each run is `stepladder train --devices N` on a small Task. It is killed once, at a random time
between its first checkpoint and its end, and has to end by itself with the weights of a run that
nobody disturbed. The time to recover is from the kill to the first log line of the next attempt.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from safetensors.numpy import load_file

from bench.rows import share, write_rows

ROOT = Path(__file__).parents[2]
TASK = ROOT / "tests" / "ranks" / "tasks.py"
MAX_S = 180.0
OPTIONS = (
    *("--train", "all", "--run.checks", "off", "--deterministic", "--stopping.no-early"),
    *("--epochs", "1000", "--schedule.max-steps", "240", "--run.checkpoint-every-s", "0.3"),
    *("--run.log-every", "10"),
)


@contextmanager
def training(folder: Path, devices: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run, and end all of its processes after the block."""
    words = ["train", f"{TASK}:Plain", "--devices", str(devices), "--run.dir", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-m", "stepladder", *words, *OPTIONS],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=(folder.parent / f"{folder.name}.txt").open("w"),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    children: list[psutil.Process] = []
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a run so far."""
    file = folder / "events.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    found = []
    for line in lines:
        with suppress(ValueError):  # being written
            found.append(json.loads(line))
    return found


def weights(folder: Path) -> dict[str, bytes]:
    """Return the weights of the last checkpoint."""
    last = max((folder / "checkpoints").glob("step-*"))
    files = sorted(last.glob("model*.safetensors"))
    return {name: array.tobytes() for file in files for name, array in load_file(file).items()}


def killed(folder: Path, devices: int, draw: random.Random, length_s: float) -> dict[str, Any]:
    """Train with one kill, and return what happened."""
    rank = draw.randrange(devices)
    with training(folder, devices) as process:
        began = time.monotonic()
        while not list((folder / "checkpoints").glob("step-*")):
            if time.monotonic() - began > MAX_S:
                return {"rank": rank, "is_hung": True}
            time.sleep(0.02)
        time.sleep(draw.uniform(0, length_s))
        ranks = {}
        for child in psutil.Process(process.pid).children():
            with suppress(psutil.Error):
                ranks[int(child.environ().get("RANK", -1))] = child
        victim = ranks.get(rank)
        killed_s = time.monotonic()
        if victim is not None:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        back_s = None
        while process.poll() is None:
            if time.monotonic() - killed_s > MAX_S:
                return {"rank": rank, "is_hung": True}
            if back_s is None and any(is_of_restart(row) for row in events(folder)):
                back_s = time.monotonic() - killed_s
            time.sleep(0.05)
    return {
        "rank": rank,
        "is_hung": False,
        "code": process.returncode,
        "was_running": any(is_of_restart(row) for row in events(folder)),
        "back_s": back_s,
    }


def is_of_restart(row: dict[str, Any]) -> bool:
    """Return True for a log line of training after the kill."""
    return row["attempt"] > 1 and row["event"] == "train"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--devices", type=int, default=4)
    options = parser.parse_args()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        quiet = Path(place) / "quiet"
        with training(quiet, options.devices) as process:
            if process.wait(timeout=MAX_S):
                sys.exit((quiet.parent / "quiet.txt").read_text())
        steps = [row for row in events(quiet) if row["event"] == "train"]
        length_s = steps[-1]["elapsed_s"] - steps[0]["elapsed_s"]
        expected, rounds = weights(quiet), []
        for idx in range(options.kills):
            folder = Path(place) / f"run-{idx}"
            found = killed(folder, options.devices, draw, length_s)
            if not found["is_hung"] and found["code"] == 0:
                found["is_equal"] = weights(folder) == expected
                found["num_steps"] = json.loads((folder / "summary.json").read_text())["steps"]
            rounds.append(found)
            print(found, flush=True)
    hit = [one for one in rounds if one.get("was_running")]
    ended = sum(one.get("code") == 0 for one in rounds)
    equal = sum(bool(one.get("is_equal")) for one in rounds)
    times = sorted(one["back_s"] for one in hit if one["back_s"] is not None)
    rows = [
        {
            "devices": options.devices,
            "kills": len(rounds),
            "while training": len(hit),
            "ended by themselves": share(ended, len(rounds)),
            "weights equal": share(equal, len(rounds)),
            "median back after, s": statistics.median(times) if times else math.nan,
            "slowest, s": max(times, default=math.nan),
        }
    ]
    note = "`kill -9` of a random rank at a random time, under `stepladder train --devices N`."
    write_rows("device_recovery", rows, note=note, rounds=rounds)


if __name__ == "__main__":
    main()

"""Time to the same loss where workers are not equally fast: synchronous, asynchronous, local.

    python -m bench.devices.asynchronous --log FILE [--rounds 5] [--quick]

Five workers, and an example that takes a fixed time by sleeping, three times as long on
stragglers: so two cores suffice, and nothing but the waiting differs. Each way is tuned first by as
many trials: a simulated training with each of four learning rates, without stragglers, of which the
one with the least simulated time to the target is used (hogwild uses that of the server). Then real
processes train in turn, and each round begins with another way. The time is from the first step to
the validation, after each epoch, whose loss is at or below the target; starting is not included.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bench.log import Log
from bench.rows import write_rows
from stepladder.stats.speed import unpaired_ratio

TASK: Final = f"{Path(__file__).with_name('straggling_task.py')}:Straggling"
NUM: Final = 5
BATCH: Final = 160
EXAMPLE_S: Final = 0.001
TARGET: Final = 1.25
MAX_EPOCHS: Final = 25
STEPS_PER_EPOCH: Final = 20
LOCAL_STEPS: Final = 8
_LIMIT_S: Final = 120.0
RATES: Final = (0.125, 0.25, 0.5, 1.0)
SYNCHRONOUS: Final = "synchronous"
_COMMON: Final = (
    *("--batch-size", BATCH, "--optimizer.name", "sgd", "--optimizer.momentum", 0),
    *("--stopping.no-early", "--device.kind", "cpu", "--device.threads", 1, "--train", "all"),
    *("--run.checks", "off", "--run.log-every", 1, "--epochs", MAX_EPOCHS, "--no-auto"),
)


def method(name: str, **options: object) -> tuple[str, ...]:
    """Return the options of a method with five workers."""
    words: list[str] = ["--asynchronous.method", name, "--asynchronous.workers", str(NUM)]
    for key, value in options.items():
        words += [f"--asynchronous.{key.replace('_', '-')}", str(value)]
    return tuple(words)


WAYS: Final[Mapping[str, tuple[str, ...]]] = {
    SYNCHRONOUS: ("--devices", str(NUM)),
    "synchronous, by a server": method("parameter_server", max_age=0),
    "asynchronous": method("parameter_server", age_rule="none"),
    "asynchronous, rate by age": method("parameter_server"),
    "asynchronous, at most 4 updates old": method("parameter_server", age_rule="none", max_age=4),
    "asynchronous, all examples": method("parameter_server", age_rule="none", data="all"),
    "backup worker": method("backup_workers"),
    "hogwild": method("hogwild"),
    "local SGD, 8 steps": method("local_sgd", local_steps=LOCAL_STEPS),
    "DiLoCo, 8 steps": method("diloco", local_steps=LOCAL_STEPS),
}
CASES: Final = {
    "none": tuple(WAYS),
    "4": tuple(WAYS),
    "1,2,3,4": (SYNCHRONOUS, "asynchronous", "local SGD, 8 steps"),
}
NAMES: Final = {"none": "0 of 5", "4": "1 of 5", "1,2,3,4": "4 of 5"}


def command(run: Path, words: Sequence[object], *, lr: float, seed: int) -> list[str]:
    """Return the command of a training."""
    options = [*_COMMON, "--batch.lr", lr, "--seed", seed, "--run.dir", run, *words]
    return [sys.executable, "-m", "stepladder", "train", TASK, *map(str, options)]


def events(run: Path) -> list[dict[str, Any]]:
    """Return the complete lines of the log so far."""
    file = run / "events.jsonl"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def reached(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the first validation at or below the target."""
    validations = (one for one in found if one["event"] == "validation")
    return next((one for one in validations if float(one["val_loss"]) <= TARGET), None)


def trained(words: Sequence[object], *, lr: float, seed: int, **env: str) -> list[dict[str, Any]]:
    """Train until the target is reached, and return the log."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        process = subprocess.Popen(
            command(run, words, lr=lr, seed=seed),
            env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + _LIMIT_S
        while process.poll() is None and time.monotonic() < until and not reached(events(run)):
            time.sleep(0.2)
        found = events(run)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return found


def simulated_s(name: str, lr: float) -> float | None:
    """Return the simulated seconds to the target, in works of one second; None: not reached."""
    words = WAYS[name]
    if name == SYNCHRONOUS:
        words = method("parameter_server", max_age=0)
    if name == "hogwild":
        words = WAYS["asynchronous"]
    found = trained([*words, "--asynchronous.simulate"], lr=lr, seed=100)
    hit = reached(found)
    if hit is None:
        return None
    before = [one for one in found if one["event"] == "workers" and one["step"] <= hit["step"]]
    return float(before[-1]["simulated_s"])


def timed(name: str, case: str, *, lr: float, seed: int) -> dict[str, Any]:
    """Return the seconds from the first step to the target, the epochs, and gradients' mean age."""
    found = trained(WAYS[name], lr=lr, seed=seed, STRAGGLERS=case, EXAMPLE_S=str(EXAMPLE_S))
    hit = reached(found)
    first = next((one for one in found if one["event"] == "train"), None)
    ages = [one["gradient_age"] for one in found if one["event"] == "workers"]
    if hit is None or first is None:
        return {"seconds": None, "epochs": None, "age": None}
    age = statistics.mean(ages) if ages else 0.0
    seconds = hit["elapsed_s"] - first["elapsed_s"]
    return {"seconds": seconds, "epochs": hit["epoch"], "age": age}


def tune(log: Log) -> dict[str, float]:
    """Return the best learning rate of each way."""
    best = {}
    for name in WAYS:
        for lr in RATES:
            if log.find(stage="tune", way=name, lr=lr) is None:
                log.add({"stage": "tune", "way": name, "lr": lr, "s": simulated_s(name, lr)})
                print(name, lr, log.records[-1]["s"], flush=True)
        tried = [one for one in log.records if one["stage"] == "tune" and one["way"] == name]
        hits = [one for one in tried if one["s"] is not None]
        best[name] = min(hits, key=lambda one: one["s"])["lr"] if hits else RATES[0]
    return best


def from_start(record: Mapping[str, Any], name: str) -> float:
    """Return the seconds of a run with those before its first log line, at its mean pace.

    The first line is that of the first step, or of the first round of local steps.
    """
    num_before = LOCAL_STEPS if "8 steps" in name else 1
    steps = float(record["epochs"] * STEPS_PER_EPOCH)
    seconds: float = record["seconds"]
    return seconds * steps / (steps - num_before)


def row(log: Log, case: str, name: str, lr: float) -> dict[str, Any]:
    """Return the times of a way, and their ratio to those of synchronous training."""
    found, base = (
        [
            one
            for one in log.records
            if one["stage"] == "race" and one["case"] == case and one["way"] == way
        ]
        for way in (name, SYNCHRONOUS)
    )
    hits, others = (
        [one | {"seconds": from_start(one, way)} for one in records if one["seconds"] is not None]
        for records, way in ((found, name), (base, SYNCHRONOUS))
    )
    speed = "–"
    if len(hits) >= 2 and len(others) >= 2 and name != SYNCHRONOUS:
        before, after = ([one["seconds"] for one in records] for records in (others, hits))
        ratio = unpaired_ratio(after, before, confidence=0.975)
        speed = f"{ratio.estimate:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
    return {
        "stragglers": NAMES[case],
        "way": name,
        "learning rate": lr,
        "reached": f"{len(hits)} of {len(found)}",
        "seconds": f"{statistics.median(one['seconds'] for one in hits):.1f}" if hits else "–",
        "epochs": statistics.median(one["epochs"] for one in hits) if hits else "–",
        "age": f"{statistics.mean(one['age'] for one in hits):.1f}" if hits else "–",
        "times as fast as synchronous": speed,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what has no record yet, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round; writes no results")
    options = parser.parse_args(arguments)
    log = Log(options.log)
    best = tune(log)
    for number in range(1 if options.quick else options.rounds):
        for case, names in CASES.items():
            for place in range(len(names)):
                name = names[(place + number) % len(names)]
                key = {"stage": "race", "case": case, "way": name, "round": number}
                if log.find(**key) is None:
                    log.add(key | timed(name, case, lr=best[name], seed=number))
                    print(case, name, log.records[-1]["seconds"], flush=True)
    rows = [row(log, case, name, best[name]) for case, names in CASES.items() for name in names]
    if options.quick:
        print(rows)
        return
    write_rows(
        "asynchronous",
        rows,
        note=f"Seconds from the first step to a validation loss of {TARGET}, of five workers on a "
        f"batch of {BATCH}; an example takes 1 ms by sleeping, and 3 ms on stragglers. Median over "
        "seeds; ratios of separate runs with their 95 % interval. Each way has the best of four "
        "learning rates by simulation.",
        rounds=log.records,
        place=log.environment,
    )


if __name__ == "__main__":
    main()

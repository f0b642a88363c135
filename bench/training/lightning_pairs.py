"""Time `stepladder prepare` and `stepladder train` in pairs with a PyTorch Lightning script.

Goals: at least 10 times as fast, at no lower test accuracy.

    python -m bench.training.lightning_pairs --lightning-python PATH [--pictures FOLDER]
        [--rounds 3] [--max-epochs N] [--stopping same|own|both] [--timed-epochs K]
        [--log FILE] [--quick]

Both train a linear head on the same frozen trunk from the same pictures, with the same optimizer,
batch size, early stopping rule and seed. stepladder runs with its defaults; the script
(lightning_script.py) decodes each picture and runs it through the trunk in every epoch. Whole
commands are timed, from the start of the process to its end: imports, preparing, checks, training
and the evaluation of the test pictures. Before each, the pictures are dropped from the page cache.
The order alternates, and the seed is the number of the round. One short training of each, on few
pictures, precedes the rounds and is not counted. The script stops by stepladder's rule, or
(--stopping own) by Lightning's EarlyStopping of the same patience, which may stop sooner because it
does not allow for the noise of the validation; --stopping both times the two in turn.

A training of the script may take half an hour. With --timed-epochs K, its command is timed with K
epochs, and the time of its K-th one is added for each further epoch that ours took in the same
pair, by the same stopping rule; its test accuracy is then that of K epochs, and is left out.

PATH is the Python of a virtual environment with lightning and timm:

    python3 -m venv lightning_venv
    lightning_venv/bin/pip install torch --constraint constraints.txt
    lightning_venv/bin/pip install lightning timm --constraint constraints.txt

FOLDER has the folders train, val (or validation) and test with a folder per class. The results were
measured on https://github.com/alexeygrigorev/clothing-dataset-small (CC0).

Each finished command is a line in --log; with the same file, an interrupted benchmark resumes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from bench.accuracy.time_to_accuracy import DEMO, rounds_of
from bench.log import Log
from bench.measure import ratio, summary
from bench.pictures import Row, folder_rows, forget_pages, take_few
from bench.rows import markdown, write_rows
from stepladder.config.recipe import ModelConfig
from stepladder.models.trunk import build_trunk

SCRIPT = Path(__file__).with_name("lightning_script.py")
OURS, LIGHTNING = "stepladder prepare, train", "Lightning script"
OWN_STOPPING = "Lightning script, EarlyStopping"
Arm = Callable[[Path, int, Sequence[str]], dict[str, Any]]
"""Trains from a folder of pictures with a seed and flags, and returns the results."""


def command(*words: object) -> float:
    """Run a command to its end; return its seconds."""
    written = [str(word) for word in words]
    started = time.perf_counter()
    done = subprocess.run(written, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(written)}\n{done.stdout}\n{done.stderr}")
    return seconds


def run_ours(pictures: Path, seed: int, flags: Sequence[str]) -> dict[str, Any]:
    """Prepare a store and train, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        store, run = Path(folder) / "store", Path(folder) / "run"
        cli = (sys.executable, "-m", "stepladder.cli.main")
        more = [flag.replace("--max-epochs", "--schedule.max-epochs") for flag in flags]
        prepare_s = command(*cli, "prepare", pictures, "--out", store)
        train_s = command(
            *cli, "train", "--data.store", store, "--run.dir", run, "--seed", seed, *more
        )
        found = json.loads((run / "summary.json").read_text())
    return {
        "seconds": prepare_s + train_s,
        "prepare_s": prepare_s,
        "train_s": train_s,
        **{key: found[key] for key in ("epochs", "test_accuracy", "num_test", "phases_s")},
    }


def lightning_arm(python: Path, weights: Path, *more: str) -> Arm:
    """Return a function that runs the script with this Python, weights of the trunk and flags."""

    def run(pictures: Path, seed: int, flags: Sequence[str]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            job = ("--weights", weights, "--out", folder, "--seed", seed, *flags, *more)
            seconds = command(python, SCRIPT, pictures, *job)
            return {"seconds": seconds, **json.loads((Path(folder) / "result.json").read_text())}

    return run


def write_weights(path: Path) -> Path:
    """Write the packaged weights of the trunk under timm's names."""
    save_file(build_trunk(ModelConfig()).model.state_dict(), path)
    return path


def copy_few(rows: Sequence[Row], folder: Path) -> Path:
    """Copy a few pictures of four classes, for a warm-up or a smoke test."""
    for path, label, split in take_few(rows, num_classes=4, count=8):
        copy = folder / split / label / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return folder


def measure(
    arms: Mapping[str, Arm], rows: Sequence[Row], options: argparse.Namespace, log: Log
) -> None:
    """Run the commands that are missing in the log, in alternating order."""
    flags = ["--max-epochs", str(options.max_epochs)] if options.max_epochs else []
    for idx, name in rounds_of(list(arms), options.rounds):
        key = key_of(options) | {"arm": name, "round": idx}
        if log.find(**key):
            continue
        forget_pages(path for path, _, _ in rows)
        timed = ["--max-epochs", str(options.timed_epochs)] if options.timed_epochs else []
        more = flags if name == OURS else [*flags, *timed]
        record = {**key, **arms[name](options.pictures, idx, more)}
        print(record, flush=True)
        log.add(record)


def key_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return what must be equal for measurements to be compared."""
    key = {"pictures": options.pictures.name, "max_epochs": options.max_epochs}
    return key | ({"timed_epochs": options.timed_epochs} if options.timed_epochs else {})


def lengthened(
    line: Mapping[str, Any], ours: Mapping[str, Any], timed_epochs: int
) -> dict[str, Any]:
    """Return a command of the script as if it had trained for as many epochs as ours.

    Args:
        line: of the script, with the seconds of its epochs.
        ours: of the same pair.
        timed_epochs: that the script trained for.
    """
    more = ours["epochs"] - timed_epochs
    seconds = line["seconds"] + more * line["epoch_s"][-1]
    return {**line, "seconds": seconds, "epochs": ours["epochs"], "test_accuracy": None}


def table_rows(lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Summarize each arm, with the ratio and the difference in accuracy to ours by pairs.

    Args:
        lines: the measurements of each arm, in the order of the rounds.
    """
    ours = lines[OURS]
    rows = []
    for name, found in lines.items():
        seconds = summary([line["seconds"] for line in found])
        over = ratio([line["seconds"] for line in found], [line["seconds"] for line in ours])
        row = {
            "command": name,
            "n": seconds["n"],
            **{f"seconds_{key}": seconds[key] for key in ("median", "min", "max")},
            **{f"over_ours_{key}": over[key] for key in ("median", "min", "max")},
            "epochs": statistics.median(line["epochs"] for line in found),
        }
        accuracies = [line["test_accuracy"] for line in found]
        is_known = None not in accuracies
        ahead = [
            100 * (a["test_accuracy"] - b["test_accuracy"])
            for a, b in zip(ours, found, strict=True)
            if is_known
        ]
        for key, values in (("test_accuracy", accuracies), ("points_below_ours", ahead)):
            for part, of in (("mean", statistics.mean), ("min", min), ("max", max)):
                row[f"{key}_{part}"] = of(values) if is_known else "-"
        rows.append(row)
    return rows


def note_of(
    lines: Mapping[str, Sequence[Mapping[str, Any]]], rows: Sequence[Row], options: Any
) -> str:
    """Return what was compared."""
    splits = [split for _, _, split in rows]
    counts = ", ".join(
        f"{sum(split.startswith(name) for split in splits):,}" for name in ("train", "val", "test")
    )
    *_, last = lines.values()
    versions = ", ".join(f"{name} {version}" for name, version in last[0]["versions"].items())
    length = f"at most {options.max_epochs} epochs" if options.max_epochs else "early stopping"
    if options.timed_epochs:
        length += (
            f"; the script is timed with {options.timed_epochs} epochs, and the time of the last "
            "one is added for each further one that ours took"
        )
    return (
        "Whole commands, in pairs of alternating order, seed = round, pictures dropped from the "
        "page cache; same trunk, head, optimizer, batch size, patience and, except in a row of "
        "EarlyStopping, stopping rule. over_ours: time divided by ours in the same pair; "
        "points_below_ours: our test accuracy minus this one, in points, in the same pair. Goals "
        "for the Lightning script: over_ours at least 10, points_below_ours at least 0. "
        f"Length: {length}. Training, validation and test pictures of {options.pictures.name}: "
        f"{counts} in {len({label for _, label, _ in rows})} classes. The script's environment: "
        f"{versions}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lightning-python", type=Path, required=True, help="Python with lightning and timm"
    )
    parser.add_argument("--pictures", type=Path, default=DEMO, help="default: the demo's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-epochs", type=int, help="of both; default: early stopping decides")
    parser.add_argument(
        "--stopping", choices=("same", "own", "both"), default="same", help="rule of the script"
    )
    parser.add_argument("--timed-epochs", type=int, help="of the script; default: all are timed")
    parser.add_argument("--log", type=Path, help="log of finished commands; default: in /tmp")
    parser.add_argument("--quick", action="store_true", help="tiny smoke test")
    options = parser.parse_args()
    rows = folder_rows(options.pictures)
    if not rows:
        raise SystemExit(f"{options.pictures}: no pictures in SPLIT/CLASS/; see --help")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        log = Log(options.log or folder / "log.jsonl")
        few = copy_few(rows, folder / "few")
        weights = write_weights(folder / "trunk.safetensors")
        python = options.lightning_python
        arms: dict[str, Arm] = {OURS: run_ours}
        if options.stopping != "own":
            arms[LIGHTNING] = lightning_arm(python, weights)
        if options.stopping != "same":
            arms[OWN_STOPPING] = lightning_arm(python, weights, "--own-stopping")
        if options.quick:
            options.pictures, options.max_epochs = few, 3
            rows = folder_rows(few)
        else:
            for arm in arms.values():
                arm(few, 0, ["--max-epochs", "1"])
        measure(arms, rows, options, log)
        lines = {
            name: [
                log.find(**key_of(options), arm=name, round=idx) for idx in range(options.rounds)
            ]
            for name in arms
        }
    if options.timed_epochs:
        lines = {
            name: found
            if name == OURS
            else [
                lengthened(line, ours, options.timed_epochs)
                for line, ours in zip(found, lines[OURS], strict=True)
            ]
            for name, found in lines.items()
        }
    num_tests = {line["num_test"] for found in lines.values() for line in found}
    if len(num_tests) > 1:
        raise SystemExit(f"the commands tested different numbers of pictures: {num_tests}")
    summarized, note = table_rows(lines), note_of(lines, rows, options)
    if options.quick:
        print(f"{note}\n\n{markdown(summarized)}")
    else:
        name = "lightning_pairs_demo" if options.pictures == DEMO else "lightning_pairs"
        write_rows(name, summarized, note=note, rounds=log.lines, place=log.environment)


if __name__ == "__main__":
    main()

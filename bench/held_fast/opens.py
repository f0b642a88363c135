"""Compare files across checkouts: stores, checkpoints, climbs, JSON keys, documented imports."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.held_fast.checkout import Checkout, at_most, differences
from bench.held_fast.pictures import TRUNK, write_plain, write_trunk

SHARED = (
    "--data.store=store",
    "--model.name=test_resnet",
    f"--model.weights={TRUNK}",
    "--schedule.max-epochs=20",
    "--stopping.no-early",
    "--run.checkpoint-every-s=0",
    "--run.checks=off",
    "--device.threads=1",
)
JOBS = {"conv": ("--train=all", "--augment.flip"), "head": ("--features.cached",)}
KILL_AT_STEP = 20
CLIMB = ("--budget=60s", "--try-all", "--schedule.max-epochs=6")
MOVED = {
    "stepladder.watch.reference": "stepladder.watching.reference",
    "stepladder.data.loader.Loader": "stepladder.data.Loader",
    "stepladder.report.schema.check_summary": "stepladder.reporting.schema.check_summary",
    "stepladder.train.checkpoint.load_best": "stepladder.training.checkpoint.checkpoint.load_best",
}
"""Documented names that were moved, with their new location, which must exist."""
MAPS = ("inputs", "change", "one_time_s", "options", "class_counts")
"""Keys of mappings whose keys are values, such as names of options."""


def compare_opens(
    old: Checkout, new: Checkout, folder: Path, *, has_climb: bool
) -> tuple[list[str], list[str]]:
    """Open files that the old checkout wrote with the new one.

    Args:
        has_climb: True to run and read a climb by each, which takes some minutes.

    Returns:
        (differences, notes).
    """
    write_plain(folder / "pictures", 64)
    write_trunk(folder, "test_resnet")
    old.require("prepare", "pictures", "--out", "store", "--quiet", "--size", "32", cwd=folder)
    found = _same_answer(old, new, ["verify", "store", "--json"], folder)
    notes = []
    for name, options in JOBS.items():
        more, told = _resumed(old, new, folder, name, (*SHARED, *options))
        found += more
        notes.append(told)
    found += _same_keys(folder / "conv-old", folder / "conv-new", "run")
    if has_climb:
        more, told = _climbed(old, new, folder)
        found += more
        notes.append(told)
    more, told = _imports(old, new, folder)
    return found + more, [*notes, told]


def _same_answer(old: Checkout, new: Checkout, words: Sequence[str], folder: Path) -> list[str]:
    one, other = (checkout.command(*words, cwd=folder) for checkout in (old, new))
    name = " ".join(words)
    if one.returncode != other.returncode:
        return [
            f"{name}: exit code {one.returncode}, now {other.returncode}: {other.stderr[-500:]}"
        ]
    return [] if one.stdout == other.stdout else [f"{name}: {one.stdout!r}, now {other.stdout!r}"]


def _resumed(
    old: Checkout, new: Checkout, folder: Path, name: str, options: Sequence[str]
) -> tuple[list[str], str]:
    """Kill a training of the old checkout, resume it with each, and compare the final weights.

    Both must be equal to those of an uninterrupted run of the old checkout.
    """
    killed_at = _kill(old, folder, f"{name}-killed", options)
    for suffix in ("old", "new"):
        shutil.copytree(folder / f"{name}-killed", folder / f"{name}-resumed-{suffix}")
    for checkout in (old, new):
        for run in (f"{name}-{checkout.name}", f"{name}-resumed-{checkout.name}"):
            checkout.require("train", "--quiet", f"--run.dir={run}", *options, cwd=folder)
    tensors = {
        run: _last_weights(new, folder, f"{name}-{run}")
        for run in ("old", "new", "resumed-old", "resumed-new")
    }
    found = []
    for run in ("new", "resumed-new"):
        control = "resumed-old" if run == "resumed-new" else "old"
        noisy = {key for key in tensors["old"] if tensors[control].get(key) != tensors["old"][key]}
        if any("model.safetensors" in key for key in noisy):
            found.append(f"{name}: weights of {control} differ from those of an uninterrupted run")
        lines = differences(tensors["old"], tensors[run], f"{name}-{run}")
        found += [line for line in lines if not any(key in line for key in noisy)]
    return at_most(found), f"{name}: killed after step {killed_at}, {len(tensors['old'])} tensors"


def _kill(checkout: Checkout, folder: Path, run: str, options: Sequence[str]) -> int:
    """Start a training, and kill it after some steps."""
    words = ["-P", "-m", "stepladder", "train", "--quiet", f"--run.dir={run}", *options]
    process = checkout.start(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 300
    step = 0
    while step < KILL_AT_STEP and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
        names = [path.name for path in (folder / run / "checkpoints").glob("step-*")]
        step = max((int(name[5:14]) for name in names if name[5:14].isdigit()), default=0)
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    if process.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the training finished before it was killed: {output}")
    return step


def _last_weights(checkout: Checkout, folder: Path, run: str) -> dict[str, str]:
    """Return the tensors of a run's last and best checkpoint."""
    found = checkout.probe("weights", {"run": str(folder / run)}, cwd=folder)
    last = max(key.split("/")[0] for key in found if key.startswith("step-"))
    return {key: text for key, text in found.items() if key.startswith((last, "best-"))}


def _same_keys(one: Path, other: Path, where: str) -> list[str]:
    """Compare the keys of the JSON files of two run folders."""
    found = []
    names = {path.name for path in one.iterdir()} ^ {path.name for path in other.iterdir()}
    if names:
        found.append(f"{where}: files in only one checkout: {sorted(names)}")
    for path in sorted((*one.glob("*.json*"), *one.glob("checkpoints/*/*.json"))):
        twin = other / path.relative_to(one)
        if twin.is_file():
            name = f"{where}/{path.relative_to(one)}"
            found += _key_differences(_records(path), _records(twin), name)
    return found


def _records(path: Path) -> list[Any]:
    text = path.read_text()
    return (
        [json.loads(line) for line in text.splitlines()]
        if path.suffix == ".jsonl"
        else [json.loads(text)]
    )


def _key_differences(old: Iterable[Any], new: Iterable[Any], where: str) -> list[str]:
    """List keys that one side lacks, wherever both sides have an object."""
    before, after = _keys(old), _keys(new)
    found = []
    for place in before.keys() & after.keys():
        for said, keys in (
            ("gone", before[place] - after[place]),
            ("added", after[place] - before[place]),
        ):
            if keys:
                found.append(f"{where}{place}: keys {said}: {sorted(keys)}")
    return found


def _keys(records: Iterable[Any]) -> dict[str, set[str]]:
    """Return the keys at each path of the records; events and ledger lines are grouped by kind."""
    places: dict[str, set[str]] = defaultdict(set)

    def visit(value: Any, place: str) -> None:
        if isinstance(value, list):
            for item in value:
                visit(item, f"{place}[]")
        elif isinstance(value, dict) and place.rsplit(".", 1)[-1] not in MAPS:
            kind = value.get("event") or value.get("kind")
            place = f"{place}<{kind}>" if isinstance(kind, str) else place
            places[place] |= value.keys()
            for key, item in value.items():
                visit(item, f"{place}.{key}")

    for record in records:
        visit(record, "")
    return places


def _climbed(old: Checkout, new: Checkout, folder: Path) -> tuple[list[str], str]:
    """Climb with each, compare the JSON keys of the results, and read the old climb with each."""
    shared = [option for option in SHARED if "max-epochs" not in option and "every-s" not in option]
    for checkout in (old, new):
        checkout.require(
            "climb", "--quiet", f"--run.dir=climb-{checkout.name}", *shared, *CLIMB, cwd=folder
        )
    found = _same_keys(folder / "climb-old", folder / "climb-new", "climb")
    more, told = _read(old, new, folder)
    return found + more, told


def _read(old: Checkout, new: Checkout, folder: Path) -> tuple[list[str], str]:
    """Read a climb of the old checkout with each; differences between two readings are noise."""
    found = []
    reads = [
        ["ledger", "climb", "--json"],
        ["report", "climb", "--json"],
        ["diagnose", "climb", "--json", "--no-remeasure"],
        ["verify", "climb", "--json"],
        ["compare", "climb", "run", "--json"],
        ["ledger", "climb"],
        ["verify", "climb"],
    ]
    answers: dict[str, list[Any]] = {}
    for reader, checkout in (("old", old), ("again", old), ("new", new)):
        place = folder / "read"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / "climb-old", place / "climb")
        shutil.copytree(folder / "conv-old", place / "run")
        answers[reader] = []
        done = checkout.probe("run_commands", {"runs": reads}, cwd=place)
        for words, answer in zip(reads, done, strict=True):
            is_json = "--json" in words and answer["code"] == 0
            value = json.loads(answer["out"]) if is_json else answer["out"]
            error = answer["err"] if answer["code"] else ""
            answers[reader].append({"code": answer["code"], "value": value, "error": error})
    num_texts = 0
    for idx, words in enumerate(reads):
        name = " ".join(words)
        noise = {_place(line) for line in differences(answers["old"][idx], answers["again"][idx])}
        for line in differences(answers["old"][idx], answers["new"][idx]):
            if _place(line) in noise:
                continue
            if re.match(r"^\S*: ['\"]", line) and "--json" in words:
                num_texts += 1
                continue
            found.append(f"{name}: {line}")
    num_trials = (folder / "climb-old" / "trials.jsonl").read_text().count('"kind": "trial"')
    return found, f"a climb of {num_trials} trials read, {num_texts} JSON strings differ"


def _place(line: str) -> str:
    return line.split(": ")[0]


def _imports(old: Checkout, new: Checkout, folder: Path) -> tuple[list[str], str]:
    """Check the documented imports of each checkout: all of them must work in the new one."""
    documented = {checkout.name: _documented(checkout.root) for checkout in (old, new)}
    known = old.probe("imports", {"names": documented["old"]}, cwd=folder)
    working = [name for name in documented["old"] if name not in known]
    found = []
    for of, names in (("old", working), ("new", documented["new"])):
        names = [MOVED.get(name, name) for name in names]
        failed = new.probe("imports", {"names": names}, cwd=folder)
        found += [f"documented by {of}: {name}: {error}" for name, error in failed.items()]
    moved = [f"{name} is now {MOVED[name]}" for name in working if name in MOVED]
    return found, "; ".join([f"{len(working)} documented imports", *moved])


def _documented(root: Path) -> list[str]:
    """Collect names to import, and modules for `python -m`, from documents and examples."""
    found = set()
    for path in (root / "README.md", *root.glob("docs/**/*.md"), *root.glob("examples/**/*.py")):
        text = path.read_text()
        for module, names in re.findall(
            r"from (stepladder[\w.]*) import ([\w, ]+|\([^)]+\))", text
        ):
            found |= {
                f"{module}.{name.split()[0]}"
                for name in names.strip("()").split(",")
                if name.strip()
            }
        found |= set(re.findall(r"python3? -m (stepladder[\w.]*\w)", text))
        found |= set(re.findall(r"(?<![\w./-])(stepladder(?:\.[a-zA-Z_]\w*){2,})(?!/)", text))
        found |= set(re.findall(r"(?<![\w./-])(stepladder\.[a-z_]\w*)\(", text))
    return sorted(found)

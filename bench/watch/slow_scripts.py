"""Slow scripts, and what an expert made of them: the right next step, and how far a climb gets.

    python -m bench.watch.slow_scripts --log FILE --public DIR [--stages watch again climb race]

Half of the scripts are public and unmodified, half were written for this; someone who had not seen
the rungs chose them and edited each by hand as an expert would in ten minutes, without changing
what is learnt; a hash of all that was committed before the first run
(bench/results/slow_scripts.sha256). They are packed in slow_scripts.tar.xz, but for the public
files: the index has repository, commit, path and sha256 of these. One that is not in DIR is
downloaded. The expert's edits of public files are packed as the lines that they put in the place of
others.

- watch: is the first next step of `stepladder watch` one that the author accepts?
- again: the same, after what had been wrong was mended.
- climb: `stepladder climb` with its defaults.
- race: original, expert and climbed in turn, to the end, each in a fresh copy. Climbed is the
  script with the diff of the climb, or `stepladder run --with CLIMB` if the diff has not all that
  was kept. The time counts from when the process that runs the script has imported torch.

A climb reaches its goal if it makes the script at least 0.9 times as fast as the expert's edit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.log import Log
from bench.rows import write_rows
from stepladder.records import read_json
from stepladder.records.script import PATCH_FILE, SCRIPT_FILE

HERE = Path(__file__).parent
ARCHIVE = HERE / "slow_scripts.tar.xz"
EMPTY = {"01_vae": "vae/results"}  # folders of a repository that have no file
ARMS = ("original", "expert", "climbed")
_LIMIT_S = 1200.0
_GOAL = 0.9
_SITE = "https://raw.githubusercontent.com"
_CLOCK = """
import os, sys, time
_file = os.environ.get("BENCH_BEGAN")
_runs_another = "stepladder" in sys.orig_argv
if _file and not _runs_another and not os.path.exists(_file):
    import torch
    with open(_file, "w") as file:
        file.write(repr(time.time()))
"""


class Script:
    """One slow script: a folder that can be copied and run."""

    def __init__(self, folder: Path, entry: Mapping[str, Any]) -> None:
        self.entry = entry
        self.name = str(entry["name"])
        self.folder = folder / self.name
        self.path = Path(entry["script"])
        self.cwd = Path(entry.get("cwd") or self.path.parent)

    def words(self, folder: Path) -> list[str]:
        """Return the script, seen from where it is started, and its arguments."""
        args = shlex.split((folder / "args.txt").read_text())
        return [str(Path(os.path.relpath(folder / self.path, folder / self.cwd))), *args]

    def copy(self, into: Path, *, is_expert: bool = False) -> Path:
        """Copy the folder, with its data, and with the expert's files in place of the original."""
        out = ["expert", "__pycache__"]
        shutil.copytree(self.folder, into, ignore=shutil.ignore_patterns(*out))
        if self.name in EMPTY:
            (into / EMPTY[self.name]).mkdir(parents=True, exist_ok=True)
        if (into / "make_data.py").exists():
            subprocess.run(
                [sys.executable, "make_data.py"], cwd=into, check=True, capture_output=True
            )
        if is_expert:
            shutil.copytree(self.folder / "expert", into, dirs_exist_ok=True)
        return into


def complete(folder: Path, entry: Mapping[str, Any], public: Path) -> None:
    """Put a script's public files in their places, and the expert's versions of them."""
    place = folder / entry["name"]
    for file in entry["files"]:
        kept = public / entry["repository"] / entry["commit"] / file["path"]
        if not kept.exists():
            address = "/".join([_SITE, entry["repository"], entry["commit"], file["path"]])
            kept.parent.mkdir(parents=True, exist_ok=True)
            with urllib.request.urlopen(address, timeout=60) as answer:
                kept.write_bytes(answer.read())
        data = kept.read_bytes()
        assert hashlib.sha256(data).hexdigest() == file["sha256"], f"{kept} is another file"
        to = place / file["file"]
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(data)
        edits = (place / "expert" / file["file"]).with_suffix(".edits.json")
        if edits.exists():
            lines = data.decode().splitlines(keepends=True)
            for first, last, new in reversed(json.loads(edits.read_text())):
                lines[first:last] = new
            edits.with_name(Path(file["file"]).name).write_text("".join(lines))
            edits.unlink()


def ran(words: Sequence[str], cwd: Path, root: Path) -> dict[str, Any]:
    """Run a command; return its exit code, its last lines, and its seconds from torch's import."""
    with tempfile.TemporaryDirectory() as name:
        site = Path(name)
        (site / "sitecustomize.py").write_text(_CLOCK)
        paths = [str(site), str(root), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "BENCH_BEGAN": str(site / "began"),
        }
        start = time.time()
        try:
            done = subprocess.run(
                [sys.executable, *words],
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            code, text = None, "too long"
        end = time.time()
        began = site / "began"
        start = float(began.read_text()) if began.exists() else start
    return {"code": code, "seconds": end - start, "tail": text[-1500:]}


def watch(script: Script, place: Path) -> dict[str, Any]:
    """Return the first next step of a watched run."""
    root = script.copy(place / "watched")
    out = place / "seen"
    words = ["-m", "stepladder", "watch", "--quiet", "--out", str(out), *script.words(root)]
    found = ran(words, root / script.cwd, root)
    file = out / "watch.json"
    report = json.loads(file.read_text()) if file.exists() else {}
    step = report.get("next") or {}
    text = str(step.get("text", ""))
    accepted = [word.lower() for word in script.entry["accept"]]
    return {
        **found,
        "rung": step.get("rung"),
        "text": text,
        "is_right": any(word in text.lower() for word in accepted),
        "error": report.get("watcher_error"),
    }


def climb(script: Script, place: Path, kept: Path) -> dict[str, Any]:
    """Climb, and keep the folder of the climb."""
    root = script.copy(place / "climbed")
    shutil.rmtree(kept, ignore_errors=True)
    first, *args = script.words(root)
    words = ["-m", "stepladder", "climb", first, "--allow-writes", "--out", str(kept)]
    found = ran([*words, "--", *args], root / script.cwd, root)
    file = kept / "script.json"
    record = json.loads(file.read_text()) if file.exists() else {}
    names = ("kept", "speedup", "patched", "only_outside", "is_repeatable")
    return {**found, **{name: record.get(name) for name in names}}


def race(script: Script, place: Path, kept: Path, arm: str, number: int) -> dict[str, Any]:
    """Run one arm to its end."""
    root = script.copy(place / f"{arm}-{number}", is_expert=arm == "expert")
    words = script.words(root)
    diff = kept / PATCH_FILE
    if arm == "climbed" and diff.exists() and not read_json(kept / SCRIPT_FILE)["only_outside"]:
        with diff.open() as file:
            subprocess.run(["patch", "-p1"], cwd=root / script.cwd, stdin=file, check=True)
    elif arm == "climbed":
        first, *args = words
        words = ["-m", "stepladder", "run", "--with", str(kept), first, "--", *args]
    return ran(words, root / script.cwd, root)


def rows_of(index: Sequence[Mapping[str, Any]], log: Log) -> list[dict[str, Any]]:
    """Return a row for each script that was watched."""
    rows = []
    for entry in index:
        name = entry["name"]
        seen = log.find(name=name, stage="watch")
        if seen is None:
            continue
        again = log.find(name=name, stage="again")
        climbed = log.find(name=name, stage="climb") or {}
        times: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for record in log.records:
            if record["name"] == name and record["stage"] == "race" and record["code"] == 0:
                times[record["arm"]].append(record["seconds"])
        gains = {
            arm: [old / new for old, new in zip(times["original"], times[arm], strict=False)]
            for arm in ARMS[1:]
        }
        if climbed and not climbed["kept"]:
            gains["climbed"] = [1.0]
        has_both = all(gains.values())
        part = median(gains["climbed"]) / median(gains["expert"]) if has_both else None
        rows.append(
            {
                "script": name,
                "public": "yes" if entry["public"] else "no",
                "first next step": seen["rung"] or "none",
                "right": _word(seen),
                "after mending": _word(again),
                "kept": ", ".join(climbed.get("kept") or ()) or "–",
                "expert": _gain(gains["expert"]),
                "climb": _gain(gains["climbed"]),
                "of the expert's": "–" if part is None else f"{part:.2f}",
                "goal": "–" if part is None else ("yes" if part >= _GOAL else "no"),
            }
        )
    return rows


def _word(seen: Mapping[str, Any] | None) -> str:
    if seen is None:
        return "–"
    return "yes" if seen["is_right"] else f"no: {seen['rung'] or 'none'}"


def _gain(gains: Sequence[float]) -> str:
    if not gains:
        return "–"
    return f"{median(gains):.2f}x [{min(gains):.2f}, {max(gains):.2f}] n={len(gains)}"


def main() -> None:
    """Run what has no record yet, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--stages", nargs="*", default=["watch", "climb", "race"])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each arm of a race")
    parser.add_argument("--only", nargs="*", default=[], help="ids, such as 11")
    parser.add_argument("--public", type=Path, required=True, help="folder of public files")
    args = parser.parse_args()
    log = Log(args.log)
    climbs = args.log.with_suffix(".climbs")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.unpack_archive(ARCHIVE, folder, filter="data")
        index = json.loads((folder / "index.json").read_text())
        if unknown := set(args.only) - {entry["id"] for entry in index}:
            parser.error(f"--only: no script is called {', '.join(sorted(unknown))}")
        for entry in index:
            script = Script(folder, entry)
            if args.only and entry["id"] not in args.only:
                continue
            complete(folder, entry, args.public)
            for stage in args.stages:
                run_stage(script, stage, log, climbs, args.rounds)
    rows = rows_of(index, log)
    if not rows:
        return
    num_right = sum(row["right"] == "yes" for row in rows)
    num_again = sum(row["after mending"] == "yes" for row in rows)
    num_rerun = sum(row["after mending"] != "–" for row in rows)
    num_raced = sum(row["goal"] != "–" for row in rows)
    num_goal = sum(row["goal"] == "yes" for row in rows)
    note = (
        "Slow scripts edited by an expert who had not seen the rungs. `right`: the first next step "
        "of `stepladder watch` is one that the author accepts. `expert` and `climb`: seconds of "
        "the original divided by theirs, runs in turn, to the end, from the import of torch; "
        f"median and range. Right: {num_right} of {len(rows)} at first sight, {num_again} of "
        f"{num_rerun} after mending. At least {_GOAL} of the "
        f"expert's gain: {num_goal} of {num_raced}."
    )
    write_rows("slow_scripts", rows, note=note, rounds=log.records, place=log.environment)


def run_stage(script: Script, stage: str, log: Log, climbs: Path, rounds: int) -> None:
    """Run a stage of a script, unless it has records."""
    kept = climbs / script.name
    if stage in ("watch", "again", "climb"):
        if log.find(name=script.name, stage=stage) is None:
            with tempfile.TemporaryDirectory() as name:
                place = Path(name)
                found = climb(script, place, kept) if stage == "climb" else watch(script, place)
            log.add({"name": script.name, "stage": stage, **found})
            print(script.name, stage, found["code"], round(found["seconds"], 1), flush=True)
        return
    climbed = log.find(name=script.name, stage="climb")
    arms = ARMS if climbed is not None and climbed["kept"] else ARMS[:2]
    for number in range(rounds):
        for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
            key = {"name": script.name, "stage": "race", "arm": arm, "number": number}
            if log.find(**key) is not None:
                continue
            with tempfile.TemporaryDirectory() as name:
                found = race(script, Path(name), kept, arm, number)
            log.add({**key, **found})
            print(script.name, arm, found["code"], round(found["seconds"], 1), flush=True)


if __name__ == "__main__":
    main()

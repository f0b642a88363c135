"""Faults of public reports, as pairs of scripts under `stepladder watch`: is each one named?

    python -m bench.watch.reported --log FILE [--set 9] [--only NAME ...] [--again] [--folder DIR]

The pairs, and sound but unusual programs, are packed in bench/faults/held_out_3.tar.xz to
held_out_9.tar.xz. They were written from public reports by someone who had not seen the detectors;
the hash of each archive was committed before it was opened (bench/results/held_out_9.sha256). The
detectors were improved with each set before the next one was written. Each script runs once. A
pair counts as named if a finding that the correct half does not have contains one of the words that
the author accepts; for a slow script, the advice of its next step may contain it as well. That is a
rule for machines: the log has all findings, to be read.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import shorten
from typing import Any

from bench.log import Log
from bench.rows import write_rows

HERE = Path(__file__).parent
ARCHIVES = HERE.parent / "faults"
HASHES = HERE.parent / "results"
HALVES = ("faulty", "correct")
_LIMIT_S = 300.0
_KEPT = ("fault", "outcome", "evidence", "fix", "where")
_ALARMS = ("failed", "warned")
_NOTE = (
    "Pairs of scripts written from public reports without sight of the detectors. `named`: a "
    "finding, or for slow scripts the next step, has one of the words that the author accepts, and "
    "the correct half does not have it. Goal: 80 % named, no error on a correct half, at most "
    "three warnings on sound programs."
)


def scripts(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Return name, half and path of each script; the half of sound programs is `sound`."""
    for entry in json.loads((folder / "index.json").read_text()):
        for half in HALVES:
            found = next(folder.glob(f"{entry['id']}*/{half}.py"), None)
            if found is not None:
                yield str(entry["id"]), half, found
    for path in sorted((folder / "sound").glob("*.py")):
        yield path.stem, "sound", path


def watched(path: Path) -> dict[str, Any]:
    """Run a script under the watcher, and return its findings."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        run = Path(name) / "run"
        shutil.copytree(path.parent, run, ignore=shutil.ignore_patterns("*.pyc"))
        ours = [sys.executable, "-m", "stepladder", "watch", "--quiet", "--out", str(out)]
        began = time.monotonic()
        try:
            done = subprocess.run(
                [*ours, path.name],
                cwd=run,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                capture_output=True,
                timeout=_LIMIT_S,
                check=False,
            )
            code: int | None = done.returncode
        except subprocess.TimeoutExpired:
            code = None
        seconds = round(time.monotonic() - began, 1)
        file = out / "watch.json"
        report = json.loads(file.read_text()) if file.exists() else {}
    return {
        "code": code,
        "seconds": seconds,
        "num_steps": report.get("num_steps", 0),
        "alarms": [
            {key: one.get(key) for key in _KEPT}
            for one in report.get("findings", ())
            if one["outcome"] in _ALARMS
        ],
        "next": report.get("next"),
        "times": {one["name"]: round(one["share"], 3) for one in report.get("times", ())},
        "error": report.get("watcher_error"),
    }


def named(entry: Mapping[str, Any], faulty: Mapping[str, Any], correct: Mapping[str, Any]) -> bool:
    """Return whether what was said of the faulty half, and not of the other, names the fault."""
    accepted = [word.lower() for word in entry["accept"]]
    return any(word in text.lower() for text in said(entry, faulty, correct) for word in accepted)


def said(
    entry: Mapping[str, Any], faulty: Mapping[str, Any], correct: Mapping[str, Any]
) -> list[str]:
    """Return the findings that only the faulty half has; of a slow one, its next step as well."""
    others = {one["fault"] for one in correct["alarms"]}
    found = [
        f"{one['fault']}: {one['where']}: {one['evidence']} {one['fix']}"
        for one in faulty["alarms"]
        if one["fault"] not in others
    ]
    step = faulty["next"]
    if entry["kind"] == "slow" and step:
        found.append(f"next: {step['text']}")
    return found


def rows_of(index: Sequence[Mapping[str, Any]], log: Log) -> list[dict[str, Any]]:
    """Return a row for each pair that was run."""
    rows = []
    for entry in index:
        halves = [_newest(log, entry["id"], half) for half in HALVES]
        if None in halves:
            continue
        faulty, correct = halves
        assert faulty is not None
        assert correct is not None
        errors = [one["fault"] for one in correct["alarms"] if one["outcome"] == "failed"]
        warnings = [one["fault"] for one in correct["alarms"] if one["outcome"] == "warned"]
        rows.append(
            {
                "pair": entry["id"],
                "kind": entry["kind"],
                "fault": entry["fault_in_words"],
                "named": "yes" if named(entry, faulty, correct) else "no",
                "said": shorten("; ".join(said(entry, faulty, correct)), 160, placeholder=" …")
                or "nothing",
                "errors on the correct half": ", ".join(errors) or "–",
                "warnings there": ", ".join(warnings) or "–",
            }
        )
    return rows


def _newest(log: Log, name: str, half: str) -> dict[str, Any] | None:
    found = [one for one in log.records if (one["name"], one["half"]) == (name, half)]
    return found[-1] if found else None


def main() -> None:
    """Run what has no record yet, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--set", default="9", choices=list("3456789"))
    parser.add_argument("--folder", type=Path, help="scripts instead of those of the archive")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--again", action="store_true", help="repeat what has a record")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--name", help="of the results, by default reported_4; empty: none")
    args = parser.parse_args()
    archive = ARCHIVES / f"held_out_{args.set}.tar.xz"
    expected = (HASHES / f"held_out_{args.set}.sha256").read_text().split()[0]
    assert hashlib.sha256(lzma.decompress(archive.read_bytes())).hexdigest() == expected
    results = f"reported_{args.set}" if args.name is None else args.name
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        if args.folder is None:
            shutil.unpack_archive(archive, folder, filter="data")
        log = Log(args.log)
        todo = [
            (name, half, path)
            for name, half, path in scripts(folder)
            if (not args.only or name in args.only)
            and (args.again or log.find(name=name, half=half) is None)
        ]

        def run(one: tuple[str, str, Path]) -> dict[str, Any]:
            name, half, path = one
            return {"name": name, "half": half, **watched(path)}

        with ThreadPoolExecutor(args.workers) as pool:
            for record in pool.map(run, todo):
                log.add(record)
                print(record["name"], record["half"], record["code"], record["seconds"], flush=True)
        index = json.loads((folder / "index.json").read_text())
    rows = rows_of(index, log)
    sound = [one for one in log.records if one["half"] == "sound"]
    outcomes = [alarm["outcome"] for one in sound for alarm in one["alarms"]]
    num = sum(row["named"] == "yes" for row in rows)
    note = (
        f"{_NOTE} Named: {num} of {len(rows)}. On {len(sound)} sound programs: "
        f"{outcomes.count('failed')} errors and {outcomes.count('warned')} warnings."
    )
    if results:
        write_rows(results, rows, note=note, rounds=log.records, place=log.environment)


if __name__ == "__main__":
    main()

"""Public training scripts, unmodified, under `stepladder watch`: its findings and its cost.

    python -m bench.watch.public_scripts --folder DIR [--only NAME ...] [--again]

The list is public_scripts.json: repository, path, commit and sha256 of each script; none is copied
into this project. A script that is not in DIR is downloaded. Each runs twice in folders of its own,
alone and watched, with generated substitutes for its data. A run with a record in DIR/runs.jsonl is
not repeated, unless --again is given.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.log import Log
from bench.rows import write_rows
from bench.watch.public_data import MAKERS, make
from stepladder.errors import DataError
from stepladder.records import read_json
from stepladder.records.files import Json
from stepladder.records.from_json import from_json
from stepladder.records.watch import WatchReport

LIST = Path(__file__).with_name("public_scripts.json")
SITE = Path(__file__).with_name("public_site")
_WRITTEN = (".pt", ".pth", ".ckpt", ".png", ".safetensors")
_LIMIT_S = 900.0
_NOTE = (
    "Public scripts as published, run alone and under `stepladder watch`, one after the other on a"
    " shared machine. `same` is yes if the printed output and the files written are equal to"
    " the byte. Times are per step: `alone_ms` and `watched_ms` are the CPU time of everything"
    " between the first step and the last; `own_us` is what the watcher itself counted,"
    " sampled steps included, by the wall clock of a busy machine. Each alarm is followed by"
    " the judgement of a person; the reasons are in the list."
)


@dataclass(frozen=True, kw_only=True)
class PublicFile:
    """A file of a public repository.

    Attributes:
        path: in the repository.
        commit: hash, or tag of a release.
        sha256: of its bytes.
        sdist: the release on PyPI that also contains it, "name==version".
    """

    path: str
    commit: str
    sha256: str
    sdist: str | None = None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Judgement of an alarm by a person who read the script.

    Attributes:
        verdict: true, false, or arguable.
        why: the reason, in one sentence.
    """

    verdict: str
    why: str


@dataclass(frozen=True, kw_only=True)
class PublicScript:
    """One script, and what is needed to run it.

    Attributes:
        kind: what it trains, in a word or two.
        files: the script, then the files that it imports.
        licence: of the repository; "none stated" if it has none.
        args: its arguments.
        environment: its environment variables.
        packages: packages that it needs besides torch and NumPy.
        data: data created before it runs: kind, path relative to the script, sizes.
        before: files to run first, according to its instructions.
        stands_in: deviations from the author's setup.
        exit_code: expected exit code.
        timed: patterns of printed text that differ between runs, such as seconds.
        judged: alarms by fault.
    """

    name: str
    kind: str
    repository: str
    files: tuple[PublicFile, ...]
    licence: str
    args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    data: tuple[Mapping[str, Json], ...] = ()
    before: tuple[str, ...] = ()
    stands_in: str = ""
    exit_code: int = 0
    timed: tuple[str, ...] = ()
    judged: Mapping[str, Judgement] = field(default_factory=dict)

    def address(self, file: PublicFile) -> str:
        """Return the URL of the file."""
        return f"https://raw.githubusercontent.com/{self.repository}/{file.commit}/{file.path}"


def read_list(path: Path = LIST) -> tuple[PublicScript, ...]:
    """Read the list of scripts."""
    scripts = tuple(from_json(PublicScript, entry) for entry in read_json(path)["scripts"])
    assert len({script.name for script in scripts}) == len(scripts), "duplicate name"
    for script in scripts:
        made = {item["make"] for item in script.data}
        assert made <= set(MAKERS), f"{script.name}: unknown kind of data"
        assert bool(made - {"folder"}) == bool(script.stands_in), f"{script.name}: stands_in"
        for file in script.files:
            assert re.fullmatch(r"[0-9a-f]{40}|v\d+(\.\d+)+", file.commit), f"{script.name}: commit"
            assert re.fullmatch(r"[0-9a-f]{64}", file.sha256), f"{script.name}: sha256"
        for judgement in script.judged.values():
            assert judgement.verdict in {"true", "false", "arguable"}, f"{script.name}: verdict"
    return scripts


def fetch(script: PublicScript, folder: Path) -> None:
    """Download a script's files into folder/REPOSITORY, unless they exist.

    Raises:
        DataError: if a file differs from the list.
    """
    for file in script.files:
        place = folder / script.repository / file.path
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            with urllib.request.urlopen(script.address(file), timeout=60) as answer:
                place.write_bytes(answer.read())
        found = hashlib.sha256(place.read_bytes()).hexdigest()
        if found != file.sha256:
            raise DataError(
                f"its sha256 is {found}, but the list has {file.sha256}",
                where=str(place),
                fix="Delete it and run again to download it.",
            )


def lay_out(script: PublicScript, folder: Path, work: Path) -> Path:
    """Put a script's files and substitutes for its data into an empty folder.

    Returns:
        The path of the script there.
    """
    shutil.rmtree(work, ignore_errors=True)
    for file in script.files:
        place = work / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / script.repository / file.path, place)
    main = work / script.files[0].path
    for item in script.data:
        settings = {key: value for key, value in item.items() if key not in ("make", "at")}
        make(str(item["make"]), main.parent / str(item["at"]), settings)
    return main


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of one run of a script.

    Attributes:
        printed: its standard output.
        errors: the end of its standard error.
        clock: seconds at the end of each optimizer step, wall-clock and CPU.
    """

    exit_code: int | None
    wall_s: float
    printed: str
    errors: str
    clock: Mapping[str, list[float]]

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps, of all optimizers together."""
        return len(self.clock.get("wall_s", []))

    def step_s(self, clock: str) -> float | None:
        """Return mean seconds from one optimizer step to the next; None for a single step."""
        times = self.clock.get(clock, [])
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def run(script: PublicScript, main: Path, before_it: list[str], log: Path) -> Run:
    """Run a script in its folder, with some words before its name on the command line."""
    for name in script.before:
        subprocess.run([sys.executable, name], cwd=main.parent, check=True)
    clock, out, errors = log / "clock.json", log / "stdout.txt", log / "stderr.txt"
    log.mkdir(parents=True, exist_ok=True)
    clock.unlink(missing_ok=True)
    environment = {
        **os.environ,
        **script.environment,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")])),
        "PUBLIC_SCRIPTS_CLOCK": str(clock),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, *before_it, main.name, *script.args]
    began = time.perf_counter()
    with out.open("w") as to_out, errors.open("w") as to_errors:
        exit_code: int | None = None
        process = subprocess.Popen(
            command, cwd=main.parent, env=environment, stdout=to_out, stderr=to_errors
        )
        try:
            exit_code = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return Run(
        exit_code=exit_code,
        wall_s=time.perf_counter() - began,
        printed=out.read_text(errors="replace"),
        errors=errors.read_text(errors="replace")[-4000:],
        clock=json.loads(clock.read_text()) if clock.exists() else {},
    )


def differing(alone: Path, watched: Path) -> Iterator[str]:
    """Return the names of weights and picture files that differ between two runs."""
    for file in sorted(alone.rglob("*")):
        if file.suffix in _WRITTEN and file.is_file():
            name = file.relative_to(alone)
            other = watched / name
            if not other.exists() or other.read_bytes() != file.read_bytes():
                yield str(name)


def plain(script: PublicScript, printed: str) -> str:
    """Return printed text without the parts that differ between runs."""
    for pattern in script.timed:
        printed = re.sub(pattern, "", printed)
    return printed


def measure(script: PublicScript, folder: Path) -> dict[str, Any]:
    """Run a script alone and watched; return a record of both."""
    fetch(script, folder)
    work, logs = folder / "work" / script.name, folder / "logs" / script.name
    report_folder = logs / "report"
    shutil.rmtree(report_folder, ignore_errors=True)
    watch = ["-m", "stepladder", "watch", "--out", str(report_folder)]
    runs = {}
    for name, prefix in {"alone": [], "watched": watch}.items():
        main = lay_out(script, folder, work / "run")  # same folder: some print their path
        runs[name] = run(script, main, prefix, logs / name)
        shutil.rmtree(work / name, ignore_errors=True)
        (work / "run").rename(work / name)
    alone, watched = runs["alone"], runs["watched"]
    report = WatchReport(script=script.files[0].path, watcher_error="no report was written")
    if (report_folder / "watch.json").exists():
        report = from_json(WatchReport, read_json(report_folder / "watch.json"))
    is_same_output = plain(script, alone.printed) == plain(script, watched.printed)
    return {
        "name": script.name,
        "exit_codes": [alone.exit_code, watched.exit_code],
        "is_same_output": is_same_output,
        "differing_files": list(differing(work / "alone", work / "watched")),
        "num_steps": [alone.num_steps, watched.num_steps],
        "steps_seen": report.num_steps,
        "wall_s": [alone.wall_s, watched.wall_s],
        "step_wall_s": [alone.step_s("wall_s"), watched.step_s("wall_s")],
        "step_cpu_s": [alone.step_s("cpu_s"), watched.step_s("cpu_s")],
        "overhead_s": report.overhead_s,
        "alarms": report.alarms,
        "next": report.next,
        "is_bound": report.is_bound,
        "not_seen": report.not_seen,
        "watcher_error": report.watcher_error,
    }


def row_of(script: PublicScript, record: Mapping[str, Any]) -> dict[str, object]:
    """Return a script's row of the table."""
    words = [
        f"{alarm['outcome']}: {alarm['fault']} ({judged(script, alarm['fault'])})"
        for alarm in record["alarms"]
    ]
    is_same = record["is_same_output"] and not record["differing_files"]
    return {
        "script": f"{script.repository} {script.files[0].path}",
        "commit": script.files[0].commit[:10],
        "kind": script.kind,
        "exit_code": " / ".join(str(code) for code in record["exit_codes"]),
        "same": "yes" if is_same else "no",
        "steps": record["num_steps"][1],
        "alone_ms": _milliseconds(record["step_cpu_s"][0]),
        "watched_ms": _milliseconds(record["step_cpu_s"][1]),
        "own_us": round(1e6 * record["overhead_s"] / max(1, record["steps_seen"])),
        "alarms": "; ".join(words) or "none",
        "next": record["next"]["rung"] if record["next"] else "none",
        "switched_off": "yes" if record["watcher_error"] else "no",
    }


def _milliseconds(seconds: float | None) -> object:
    return "not measured" if seconds is None else 1e3 * seconds


def counts_of(scripts: Sequence[PublicScript], records: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on how many scripts were unaffected, and how the alarms were judged."""
    by_name = {script.name: script for script in scripts}
    num_kept = sum(
        one["exit_codes"][0] == one["exit_codes"][1]
        and one["is_same_output"]
        and not one["differing_files"]
        for one in records
    )
    verdicts = Counter(
        judged(by_name[one["name"]], alarm["fault"]) for one in records for alarm in one["alarms"]
    )
    num_errors = sum(alarm["outcome"] == "failed" for one in records for alarm in one["alarms"])
    words = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    return (
        f"{num_kept} of {len(records)} have the same exit code, output and files;"
        f" {verdicts.total()} alarms ({words or 'none'}), {num_errors} of them errors."
    )


def judged(script: PublicScript, fault: str) -> str:
    """Return the judgement of an alarm."""
    found = script.judged.get(fault)
    return found.verdict if found is not None else "not judged"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the scripts")
    parser.add_argument("--only", nargs="*", help="names of scripts")
    parser.add_argument("--again", action="store_true", help="repeat finished runs")
    args = parser.parse_args()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    log, scripts = Log(folder / "runs.jsonl"), read_list()
    for script in scripts:
        if args.only is not None and script.name not in args.only:
            continue
        if args.again or log.find(name=script.name) is None:
            log.add(measure(script, folder))
            print(json.dumps(row_of(script, log.records[-1]), indent=2), flush=True)
    last = {record["name"]: record for record in log.records}
    records = [last[script.name] for script in scripts if script.name in last]
    rows = [row_of(script, last[script.name]) for script in scripts if script.name in last]
    note = f"{counts_of(scripts, records)} {_NOTE}"
    write_rows("public_scripts", rows, note=note, rounds=records, place=log.environment)


if __name__ == "__main__":
    main()

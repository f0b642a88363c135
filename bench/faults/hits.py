"""How many faults are caught by name, and how many false alarms sound programs get.

    python -m bench.faults.hits --corpus development [--only NAME …] [--log FILE] [--again]
    python -m bench.faults.hits --page

Goals: catch 95 % of the development faults and 80 % of the held-out faults; no error on any correct
half or sound program, and at most 3 warnings on the sound programs.

Each half runs alone, in a process of its own with one compute thread: a script under `stepladder
watch`, a Task under `stepladder check`. A fault is caught if a finding that failed or warned has
its name. Another name, however close, is a miss, and so is a finding at level info. A program
without a report is a miss as well.

The baseline is a trivial checker: it runs the program to its end and flags it if it failed, or if
the mean loss of the last tenth of steps is not below that of the first tenth. It sees every value
that `backward` is called on. As it names no fault, any flag counts as a hit.

Each run is a line in --log; with the same file, an interrupted benchmark resumes, and --again
repeats the runs under stepladder, but not the plain runs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.faults.corpus import CORPORA, Half, Program, programs
from bench.faults.look import look, trace
from bench.log import Log
from bench.measure import RESULTS, ROOT, write_results
from bench.rows import machine, markdown, share

PAGE = ROOT / "docs" / "hits.md"
GOALS = {
    "development": "95 % caught, no error on a correct half",
    "held_out": "80 % caught, no error on a correct half",
    "held_out_2": "80 % caught, no error on a correct half",
    "sound": "no error, at most 3 warnings",
}
TITLES = {
    "development": "Faults for development",
    "held_out": "Held-out faults",
    "held_out_2": "Held-out faults, second set",
    "sound": "Sound programs",
}
REPORTED = (
    "reported_3",
    "reported_4",
    "reported_5",
    "reported_6",
    "reported_7",
    "reported_8",
    "reported_9",
)  # from bench/watch/reported.py
LOOKS = ("stepladder", "loss")


def measure(
    corpus: Sequence[Program],
    log: Log,
    *,
    workers: int,
    timeout_s: float,
    budget: str | None,
    is_again: bool,
) -> list[dict[str, Any]]:
    """Run every program in both ways unless the log has it; return the newest records."""

    def one(program: Program, by: str) -> dict[str, Any]:
        key = {"name": program.name, "half": str(program.half), "by": by}
        known = newest(log, key)
        if known is not None and (by == "loss" or not is_again):
            return known
        if by == "loss":
            seen = trace(program, timeout_s=timeout_s)
        else:
            seen = look(program, timeout_s=timeout_s, budget=budget)
        return {**key, "fault": program.fault, **seen}

    records = []
    with ThreadPoolExecutor(workers) as pool:
        jobs = [(program, by) for by in LOOKS for program in corpus]
        for record in pool.map(lambda job: one(*job), jobs):
            if record not in log.records:
                log.add(record)
                print(_line(record), flush=True)
            records.append(record)
    return records


def newest(log: Log, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the last record of a run, or None: with --again there are several."""
    for record in reversed(log.records):
        if all(record.get(name) == value for name, value in key.items()):
            return record
    return None


def pairs(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Combine the four runs of each pair, or the two of each sound program, into one row."""
    rows: dict[str, dict[str, Any]] = {}
    for record in records:
        row = rows.setdefault(record["name"], {"name": record["name"], "fault": record["fault"]})
        half = record["half"]
        if record["by"] == "loss":
            row[f"loss_fell_{half}"] = record["fell"]
            continue
        alarms = record["alarms"]
        row[f"no_report_{half}"] = record["error"]
        if half == Half.BUGGY:
            row["is_caught"] = record["fault"] in [alarm["fault"] for alarm in alarms]
            row["said"] = sorted({alarm["fault"] or alarm["check"] for alarm in alarms})
            row["is_told"] = record["fault"] in record["told"]
        else:
            row["errors"] = _named(alarms, "failed")
            row["warnings"] = _named(alarms, "warned")
    return list(rows.values())


def totals(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return a table of counts with 95 % intervals: ours next to the loss baseline."""
    n = len(rows)
    accused = sum(not row["loss_fell_correct"] for row in rows)
    warned = sum(bool(row["warnings"]) for row in rows)
    table = [
        {
            "": "errors on correct programs",
            "stepladder": share(sum(bool(row["errors"]) for row in rows), n),
            "did the loss fall?": share(accused, n),
        },
        {
            "": "warnings on correct programs",
            "stepladder": share(warned, n),
            "did the loss fall?": "–",
        },
    ]
    if rows and rows[0]["fault"] is not None:
        table.insert(
            0,
            {
                "": "faults caught",
                "stepladder": share(sum(row["is_caught"] for row in rows), n),
                "did the loss fall?": share(sum(not row["loss_fell_buggy"] for row in rows), n),
            },
        )
    return table


def by_fault(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a table with a row for each fault."""
    table = []
    for fault in sorted({row["fault"] for row in rows}):
        own = [row for row in rows if row["fault"] == fault]
        table.append(
            {
                "fault": f"`{fault}`",
                "pairs": len(own),
                "caught by name": sum(row["is_caught"] for row in own),
                "errors on correct halves": _joined(row["errors"] for row in own),
                "warnings on correct halves": _joined(row["warnings"] for row in own),
                "loss did not fall": sum(not row["loss_fell_buggy"] for row in own),
                "missed": _joined(
                    [f"{row['name']} ({_instead(row)})"] for row in own if not row["is_caught"]
                ),
            }
        )
    return table


def tables(corpus: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the results on a corpus as Markdown."""
    text = f"Goal: {GOALS[corpus]}.\n\n{markdown(totals(rows))}"
    if corpus != "sound":
        return f"{text}\n{markdown(by_fault(rows))}"
    accused = [
        {
            "program": row["name"],
            "errors": _joined([row["errors"]]),
            "warnings": _joined([row["warnings"]]),
            "loss fell": "yes" if row["loss_fell_correct"] else "no",
        }
        for row in rows
        if row["errors"] or row["warnings"] or not row["loss_fell_correct"]
    ]
    return f"{text}\n{markdown(accused)}" if accused else text


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Write docs/hits.md from the available results of each corpus."""
    lines = [
        "# Hits and false alarms",
        "",
        "Written from `bench/results/` by `python -m bench.faults.hits --page`.",
        "",
        "Each fault is a pair of programs that differ only in the fault: user "
        "code of 30 to 120 lines, synthetic data, a real training. A script runs under `stepladder "
        "watch`, a Task under `stepladder check`. A fault is caught if a finding that "
        "failed or warned has exactly its name. The held-out faults were written by someone who "
        "had not seen the detectors, their hash was committed (`bench/results/held_out*.sha256`), "
        "and each set was opened once, after the thresholds were frozen. Its numbers are those of "
        "that day: the misses were fixed afterwards, so it is no longer held out. Between the "
        "first set and the second, detectors were improved with the results of the first and with "
        "82 more pairs by other authors, of which 59 were caught before any changes.",
        "",
        "The baseline is what anyone can do: run the program to its end and check whether the "
        "loss fell (mean of the last tenth of steps below that of the first; a run that fails is "
        "flagged as well). It names no fault, so any flag counts as a hit.",
        "",
        "In brackets: the share, and its 95 % interval (Clopper-Pearson).",
    ]
    for corpus, title in TITLES.items():
        if corpus in results:
            found = results[corpus]
            lines += ["", f"## {title}", "", tables(corpus, found["rows"]).rstrip()]
            commit = found["environment"].get("git", {}).get("commit") or "not written down"
            note = f" {found['note']}" if found.get("note") else ""
            lines += ["", f"Measured at commit {commit}; `bench/results/hits_{corpus}.json`.{note}"]
    lines += [
        "",
        "## Faults of public reports, judged by words",
        "",
        "Pairs written from public reports, without a name of ours for the fault: a fault counts "
        "as named if what `stepladder watch` says of the faulty half alone has one of the words "
        "that the author accepts. The author of a set had not seen the detectors, and it was run "
        "once; detectors were improved with each set before the next one was written. The author "
        "of set 9 was asked for what people report most often, and for some rarer faults.",
    ]
    for name in REPORTED:
        file = RESULTS / f"{name}.json"
        if file.exists():
            lines += reported_lines(name, json.loads(file.read_text()))
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Return what an author wrote, in the words of these pages."""
    return text.replace("anew", "again").replace("goes on", "continues")


def reported_lines(name: str, found: Mapping[str, Any]) -> list[str]:
    """Return the section about one set of pairs that are judged by words."""
    rows = found["rows"]
    of_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in ("silent", "slow")}
    named = {kind: sum(row["named"] == "yes" for row in of_kind[kind]) for kind in of_kind}
    missed = [
        {"pair": row["pair"], "fault": _plain(row["fault"]), "said": row["said"]}
        for row in rows
        if row["named"] == "no"
    ]
    commit = found["environment"].get("git", {}).get("commit") or "not written down"
    return [
        "",
        f"### Set {name.rpartition('_')[2]}",
        "",
        *(f"- {kind}: {share(named[kind], len(of_kind[kind]))}" for kind in of_kind),
        "",
        found["note"],
        "",
        "Not named on that day:",
        "",
        markdown(missed).rstrip(),
        "",
        f"Measured at commit {commit}; `bench/results/{name}.json`.",
    ]


def written_results() -> dict[str, dict[str, Any]]:
    """Read the available results of each corpus."""
    files = {corpus: RESULTS / f"hits_{corpus}.json" for corpus in CORPORA}
    return {corpus: json.loads(file.read_text()) for corpus, file in files.items() if file.exists()}


def _named(alarms: Sequence[Mapping[str, Any]], outcome: str) -> list[str]:
    names = {alarm["fault"] or alarm["check"] for alarm in alarms if alarm["outcome"] == outcome}
    return sorted(names)


def _instead(row: Mapping[str, Any]) -> str:
    """Return what was reported for a faulty half whose fault was not caught."""
    if row["is_told"]:
        return "reported without an alarm"
    return row["no_report_buggy"] or f"said: {', '.join(row['said']) or 'nothing'}"


def _joined(lists: Any) -> str:
    return "; ".join(word for words_of_one in lists for word in words_of_one) or "–"


def _line(record: Mapping[str, Any]) -> str:
    if record["by"] == "loss":
        said = f"loss {'fell' if record['fell'] else 'did not fall'}"
    else:
        said = ", ".join(f"{alarm['outcome']} {alarm['fault']}" for alarm in record["alarms"])
        said = record["error"] or said or "nothing"
    return f"{record['name']} {record['half']} {record['by']}: {said} ({record['seconds']} s)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", choices=CORPORA, default="development")
    parser.add_argument("--only", nargs="+", default=[], help="names of pairs or sound programs")
    parser.add_argument(
        "--log", type=Path, help="log of finished runs; an interrupted benchmark resumes from it"
    )
    parser.add_argument("--again", action="store_true", help="repeat the runs under stepladder")
    parser.add_argument("--workers", type=int, choices=(1, 2), default=2)
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="time limit of one run in seconds"
    )
    parser.add_argument("--budget", help="time budget of `check`, such as 200s, for a busy machine")
    parser.add_argument("--page", action="store_true", help="only write docs/hits.md")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page(written_results()))
        return
    with tempfile.TemporaryDirectory() as folder:
        log = Log(options.log or Path(folder) / "log.jsonl")
        records = measure(
            programs(options.corpus, Path(folder), options.only),
            log,
            workers=options.workers,
            timeout_s=options.timeout,
            budget=options.budget,
            is_again=options.again,
        )
    rows = pairs(records)
    text = tables(options.corpus, rows)
    print(f"\n{text}")
    if options.only:
        return  # partial results are not written
    name = f"hits_{options.corpus}"
    result = {"rows": rows, "rounds": records, "environment": log.environment}
    write_results(name, result, f"# {name}\n\n{text}{machine(log.environment)}")


if __name__ == "__main__":
    main()

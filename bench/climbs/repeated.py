"""Test whether verdicts are stable: climb the same job many times, each time from scratch.

Goals over ten climbs: no rung with a true gain of at least 1.1 is dropped, none with at most 1.0 is
kept, and in no climb do more than two rungs differ from the majority. The median of the measured
gains is used as the true gain. The climb itself should finish within four minutes on two cores.

    python -m bench.climbs.repeated [--climbs 10] [--workload frozen_batch_2]
        [--runs FOLDER] [--quick]

With the same --runs, finished climbs are not repeated: the results are written from their folders,
with the machine and versions recorded in the latest of them.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.climbs.record import climb_record, environment_of
from bench.climbs.workloads import WORKLOADS
from bench.rows import markdown, write_rows
from stepladder.ladder.ledger import LEDGER_FILE, trials_of
from stepladder.records.ladder import Trial

WORKLOAD = "bench.climbs.workloads"
GOAL_S = 240
Climbed = dict[str, Trial]
"""The last decision on each rung, by name."""


def climb(idx: int, options: argparse.Namespace, runs: Path, *, seed: int | None = None) -> Path:
    """Climb once in a fresh process; return the run's folder.

    Args:
        idx: of the climb, which names its folder.
        options: of the command line.
        runs: folder of the climbs.
        seed: of the job; None: idx, so that each climb has its own.

    Raises:
        SystemExit: if the climb fails.
    """
    out = runs / f"{idx:02d}" / options.workload
    if (out / "climb.json").exists():
        return out
    command = [sys.executable, "-m", WORKLOAD, options.workload, "--work", str(runs / "stores")]
    command += ["--out", str(out), "--seed", str(idx if seed is None else seed)]
    done = subprocess.run(
        [*command, *(["--quick"] if options.quick else [])],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"climb {idx} failed:\n{done.stderr[-3000:]}")
    return out


def decisions(run: Path) -> Climbed:
    """Read the last decision on each rung."""
    return {trial.rung: trial for trial in trials_of(run / LEDGER_FILE)}


def majorities(climbs: Sequence[Climbed]) -> dict[str, str]:
    """Return each rung's most common decision."""
    rungs = dict.fromkeys(rung for climbed in climbs for rung in climbed)
    return {
        rung: Counter(
            str(climbed[rung].verdict.decision) for climbed in climbs if rung in climbed
        ).most_common(1)[0][0]
        for rung in rungs
    }


def rung_rows(climbs: Sequence[Climbed]) -> list[dict[str, Any]]:
    """Return a row for each applicable rung: decisions and measured gains."""
    rows = []
    for rung, majority in majorities(climbs).items():
        trials = [climbed[rung] for climbed in climbs if rung in climbed]
        counts = Counter(str(trial.verdict.decision) for trial in trials)
        if counts["not_here"] == len(trials):
            continue
        gains = [t.verdict.speed.estimate for t in trials if t.verdict.speed is not None]
        true = statistics.median(gains) if gains else None
        wrong = 0
        if true is not None:
            wrong += counts["dropped"] if true >= 1.1 else 0
            wrong += counts["kept"] if true <= 1.0 else 0
        rows.append(
            {
                "rung": rung,
                "majority": majority,
                **{name: counts[name] for name in ("kept", "dropped", "undecided", "skipped")},
                "others": counts["not_here"] + counts["untried"],
                "gain_median": true if true is not None else "-",
                "gain_min": min(gains) if gains else "-",
                "gain_max": max(gains) if gains else "-",
                "wrong": wrong,
            }
        )
    return rows


def num_differing(climbed: Climbed, majority: dict[str, str]) -> int:
    """Count the rungs on which one climb differs from the majority."""
    return sum(
        rung not in climbed or climbed[rung].verdict.decision != wanted
        for rung, wanted in majority.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--climbs", type=int, default=10)
    parser.add_argument("--workload", choices=names, default=names[0], metavar="NAME")
    parser.add_argument("--runs", type=Path, help="folder of the climbs; default: a temporary one")
    parser.add_argument("--quick", action="store_true", help="tiny smoke test")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        runs = options.runs or Path(temporary)
        climbs, rounds, place = [], [], None
        for idx in range(options.climbs):
            run = climb(idx, options, runs)
            climbs.append(decisions(run))
            rounds.append({"seed": idx, **climb_record(run)})
            place = environment_of(run)
            print(f"climb {idx}: {rounds[-1]['climb_s']:.0f} s", flush=True)
    majority = majorities(climbs)
    differing = [num_differing(climbed, majority) for climbed in climbs]
    seconds = [one["climb_s"] for one in rounds]
    num_within = sum(one <= GOAL_S for one in seconds)
    note = (
        f"{len(climbs)} climbs of {options.workload} from scratch, each with another seed. Rungs "
        f"that differ from the majority, by climb: {', '.join(map(str, differing))} (goal: "
        "at most 2). wrong counts climbs that dropped a rung with a median gain of at least 1.1 or "
        f"kept one of at most 1.0 (goal: 0). A climb took {statistics.median(seconds):.0f} s "
        f"(median), at most {max(seconds):.0f} s; {num_within} of {len(seconds)} finished "
        f"within {GOAL_S} s (goal for the demo)."
    )
    rows = rung_rows(climbs)
    if options.quick:
        print(note, markdown(rows), sep="\n\n")
    else:
        write_rows("climbs", rows, note=note, rounds=rounds, place=place)


if __name__ == "__main__":
    main()

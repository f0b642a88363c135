"""Compare predicted gains with measured ones, on many kinds of jobs.

Error = |ln(predicted / measured)|, for rungs whose predicted or measured gain is at least 1.2 or at
most 0.83. Goals: at least 40 such cases from twelve or more workloads, half of them held out until
the formulas were frozen; median error at most ln 1.15, 90th percentile at most ln 1.4.

    python -m bench.climbs.predictions [--budget 300] [--runs FOLDER]
        [--workloads NAME ...] [--quick]

Each workload of workloads.py is climbed with every rung tried, in a process of its own. With the
same --runs, finished workloads are not climbed again: the results are written from their folders,
with the machine and versions recorded in the latest of them.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.climbs.record import climb_record, environment_of
from bench.climbs.workloads import ADVISED_FILE, WORKLOADS, by_name
from bench.rows import markdown, write_rows
from stepladder.ladder.summary.calibration import Case, calibration_of

WORKLOAD = "bench.climbs.workloads"
PUBLISHED = {
    "early_stopping": 5.0,  # 20 -> 4 min: the six steps, step 2
    "larger_batch": 1.54,  # 4 -> 2.6 min: the six steps, step 3
    "channels_last": 1.3,  # ResNet-50 on V100 and A100: Composer's method card
    "mixed_precision": 1.5,  # the lower end of 1.5 to 5.5 on a V100: PyTorch's blog
    "compile": 1.43,  # 163 models on an A100: PyTorch 2.0's announcement
}
"""Published gains; 1 for a rung without one."""

PREDICTORS: dict[str, Callable[[Case], float]] = {
    "stepladder": lambda case: case.predicted,
    "always 1.0": lambda _: 1.0,
    "the published number": lambda case: PUBLISHED.get(case.rung, 1.0),
}


def climb(name: str, *, runs: Path, budget_s: float, quick: bool) -> bool:
    """Climb one workload unless it is finished; return True if it succeeded."""
    out = runs / name
    if (out / ADVISED_FILE).exists():
        return True
    command = [sys.executable, "-m", WORKLOAD, name, "--work", str(runs / "stores")]
    command += ["--out", str(out), "--budget", str(budget_s), "--try-all"]
    done = subprocess.run(
        [*command, *(["--quick"] if quick else [])], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{name} failed:\n{done.stderr[-2000:]}", flush=True)
    return done.returncode == 0


def statistics_of(cases: Sequence[Case], predictor: str) -> dict[str, Any]:
    """Return error statistics of a predictor, as factors."""
    predict = PREDICTORS[predictor]
    errors = [abs(math.log(predict(case) / case.measured.estimate)) for case in cases]
    return {
        "cases": len(errors),
        "median_factor": math.exp(float(np.median(errors))) if errors else "-",
        "p90_factor": math.exp(float(np.quantile(errors, 0.9))) if errors else "-",
        "worst_factor": math.exp(max(errors)) if errors else "-",
        "share_within_1.4": float(np.mean(np.array(errors) <= math.log(1.4))) if errors else "-",
    }


def summary(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Compare the predictors on the held-out workloads, on the others, and on all."""
    parts = {
        "held out": [case for case in cases if by_name(case.run).is_held_out],
        "the others": [case for case in cases if not by_name(case.run).is_held_out],
        "all": list(cases),
    }
    return [
        {
            "workloads": part,
            "predictor": predictor,
            "num_workloads": len({case.run for case in chosen}),
            **statistics_of(chosen, predictor),
        }
        for part, chosen in parts.items()
        for predictor in PREDICTORS
    ]


def advised_rows(names: Sequence[str], advised: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each workload the advised rung and the first and last verdict on it."""
    return [
        {"workload": name, **{key: value or "-" for key, value in one.items()}}
        for name, one in zip(names, advised, strict=True)
    ]


def case_row(case: Case) -> dict[str, Any]:
    return {
        "workload": case.run,
        "held_out": by_name(case.run).is_held_out,
        "rung": case.rung,
        "predicted": case.predicted,
        "measured": case.measured.estimate,
        "low": case.measured.low,
        "high": case.measured.high,
        "factor": math.exp(case.error),
        "counts": case.counts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument(
        "--budget", type=float, default=300, help="time limit of each climb in seconds"
    )
    parser.add_argument("--runs", type=Path, help="folder of the climbs; default: a temporary one")
    parser.add_argument("--workloads", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="tiny smoke test")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        runs = options.runs or Path(temporary)
        runs.mkdir(parents=True, exist_ok=True)
        ended = []
        for name in options.workloads:
            print(f"climbing {name}", flush=True)
            if climb(name, runs=runs, budget_s=options.budget, quick=options.quick):
                ended.append(name)
        cases = calibration_of([runs / name for name in ended]).cases
        advised = [json.loads((runs / name / ADVISED_FILE).read_text()) for name in ended]
        rounds = [{"workload": name, **climb_record(runs / name)} for name in ended]
        place = environment_of(runs / ended[-1]) if ended else None
    counted = [case for case in cases if case.counts]
    failed = sorted(set(options.workloads) - set(ended))
    kept = [one["was"] == "kept" for one in advised if one["advised"]]
    note = (
        f"{len(ended)} workloads climbed with every rung tried"
        + (f", {len(failed)} failed ({', '.join(failed)})" if failed else "")
        + f"; {len(cases)} rungs predicted and measured. Included are the {len(counted)} with "
        "a predicted or measured gain of at least 1.2 or at most 0.83. Goals: 40 cases, "
        "median_factor 1.15, p90_factor 1.4. A factor is exp |ln(predicted / measured)|. The "
        "rung advised for the original job was kept, when it was tried, in "
        f"{sum(kept)} of {len(kept)} climbs."
    )
    if options.quick:
        print(note, markdown(summary(counted)), sep="\n\n")
        if cases:
            print(markdown([case_row(case) for case in cases]))
        print(markdown(advised_rows(ended, advised)))
        return
    write_rows("predictions", summary(counted), note=note, rounds=rounds, place=place)
    if cases:
        write_rows("predictions_cases", [case_row(case) for case in cases], note=note, place=place)
    write_rows("advised", advised_rows(ended, advised), note=note, place=place)


if __name__ == "__main__":
    main()

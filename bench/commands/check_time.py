"""Time `stepladder check` on the demo, as whole processes.

Goals: under 60 s for all checks on two cores, and at most 10 s for those without training.

    make demo && python -m bench.commands.check_time [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from statistics import median
from typing import Any

from bench.measure import ROOT
from bench.rows import write_rows

CONFIG = ROOT / "examples" / "demo" / "demo.yaml"
TIERS = {"all": ([], 60), "fast": (["--fast"], 10)}


def main() -> None:
    """Measure, and write results/check_time.json and .md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds: list[dict[str, Any]] = []
    for turn in range(parser.parse_args().rounds):
        tiers = list(TIERS)
        for tier in tiers[turn % 2 :] + tiers[: turn % 2]:
            rounds.append({"round": turn, "tier": tier, **checked(TIERS[tier][0])})
            print(rounds[-1], flush=True)
    note = (
        "`stepladder check examples/demo/demo.yaml --fresh`, seconds of the whole process, "
        f"with the import of torch and pretrained weights; n = {len(rounds) // 2} each, in "
        "alternating order."
    )
    write_rows("check_time", [row(tier, rounds) for tier in TIERS], note=note, rounds=rounds)


def checked(flags: list[str]) -> dict[str, Any]:
    """Run the checks in a process of its own and count their outcomes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "stepladder", "check", str(CONFIG), "--fresh", *flags]
        command += ["--json", "--run.dir", f"{folder}/run"]
        started = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        took_s = time.perf_counter() - started
    said = json.loads(done.stdout)
    outcomes = Counter(finding["outcome"] for finding in said["findings"])
    return {
        "code": done.returncode,
        "seconds": took_s,
        "checks_s": said["took_s"],
        "left_out": len(said["left_out"]),
        "slowest": max(said["findings"], key=lambda one: one["took_s"])["check"],
        "outcomes": dict(sorted(outcomes.items())),
    }


def row(tier: str, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarize the rounds of one tier."""
    own = [one for one in rounds if one["tier"] == tier]
    seconds = [one["seconds"] for one in own]
    return {
        "checks": tier,
        "goal, s": TIERS[tier][1],
        "whole process, s": f"{median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})",
        "checks alone, s": f"{median(one['checks_s'] for one in own):.1f}",
        "run": sum(own[0]["outcomes"].values()),
        "left out": max(one["left_out"] for one in own),
        "slowest": own[0]["slowest"],
        "outcomes": ", ".join(f"{num} {name}" for name, num in own[0]["outcomes"].items()),
    }


if __name__ == "__main__":
    main()

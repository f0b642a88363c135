"""Compare two checkouts, whose behavior must be the same.

    python -m bench.held_fast OLD_CHECKOUT NEW_CHECKOUT [--part NAME ...] [--json OUT]
        [--store DEMO_STORE [STORE …]] [--runs FOLDER ...] [--limit N] [--pairs N]

Each checkout runs in processes of its own, with its `src` first on the path. Each part prints one
line, `PART: same`, or the differences. The exit code is 1 if anything differs, and 2 if a part
failed.

    stores      the same pictures produce the same files
    configs     resolved examples, and the flags of every command
    opens       files of the old checkout open in the new one; JSON keys; documented imports
    verdicts    recorded trials, random evidence, and bounds of block times
    weights     final weights of trainings with every optimizer
    accuracies  accuracy by seed of heads on stores of photographs
    findings    findings of `check` and `watch` on the fault corpus and on sound programs
    speed       paired timings in rotated order
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from bench.held_fast.checkout import Checkout
from bench.held_fast.configs import compare_configs
from bench.held_fast.findings import compare_findings
from bench.held_fast.opens import compare_opens
from bench.held_fast.speed import compare_speed
from bench.held_fast.stores import compare_stores
from bench.held_fast.verdicts import compare_verdicts
from bench.held_fast.weights import compare_accuracies, compare_weights

PARTS = ("stores", "configs", "opens", "verdicts", "weights", "accuracies", "findings", "speed")
Found = tuple[list[str], list[str]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--json", type=Path, help="JSON file for the results")
    parser.add_argument(
        "--store",
        type=Path,
        nargs="+",
        default=[],
        help="stores of photographs, the demo's first; without it, parts that need one are skipped",
    )
    parser.add_argument("--runs", type=Path, nargs="+", default=[], help="folders of climbs")
    parser.add_argument(
        "--limit", type=int, help="maximum number of programs of `findings`, chosen evenly"
    )
    parser.add_argument("--pairs", type=int, default=10, help="pairs of timings")
    parser.add_argument(
        "--climb-pairs", type=int, default=3, help="pairs of complete climbs; 0: none"
    )
    parser.add_argument("--no-climb", action="store_true", help="skip the climb in `opens`")
    parser.add_argument("--work", type=Path, help="working folder, kept; default: a temporary one")
    options = parser.parse_args()
    old = Checkout(name="old", root=options.old.resolve())
    new = Checkout(name="new", root=options.new.resolve())
    stores = [store.resolve() for store in options.store]
    runs = [folder.resolve() for folder in options.runs]
    parts: dict[str, Callable[[Path], Found]] = {
        "stores": lambda work: compare_stores(old, new, work),
        "configs": lambda work: compare_configs(old, new, work),
        "opens": lambda work: compare_opens(old, new, work, has_climb=not options.no_climb),
        "verdicts": lambda work: compare_verdicts(old, new, work, runs=runs),
        "weights": lambda work: compare_weights(old, new, work),
        "accuracies": lambda work: compare_accuracies(old, new, work, stores=stores),
        "findings": lambda work: compare_findings(old, new, work, limit=options.limit),
        "speed": lambda work: compare_speed(
            old,
            new,
            work,
            store=stores[0] if stores else None,
            pairs=options.pairs,
            climb_pairs=options.climb_pairs,
        ),
    }
    results, code = {}, 0
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.part:
            folder = (options.work.resolve() if options.work else Path(temporary)) / name
            folder.mkdir(parents=True)
            started = time.monotonic()
            try:
                found, notes = parts[name](folder)
                code = max(code, 1 if found else 0)
            except Exception:
                found, notes, code = [traceback.format_exc()], ["the part failed"], 2
            took_s = round(time.monotonic() - started)
            results[name] = {"differences": found, "notes": notes, "took_s": took_s}
            head = "same" if not found else f"{len(found)} differences"
            print(f"{name}: {head} ({'; '.join([*notes, f'{took_s} s'])})")
            for line in found:
                print(f"    {line}")
            sys.stdout.flush()
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())

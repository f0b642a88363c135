"""The population of the docs: linear heads on the demo's features, from the command line.

    python -m bench.populations.demo [STORE]

Writes results/population_demo.json, from which `bench.curves` draws the family tree, the scores
and the genes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.measure import environment, write_results
from bench.populations.features import GENES, arguments
from bench.rows import machine, markdown
from stepladder.records.from_json import read_record
from stepladder.records.population import POPULATION_FILE, PopulationSummary
from stepladder.reporting.pages.population_page import optimism_words, score_words

MEMBERS: Final = 24
EPOCHS: Final = 16


def main() -> None:
    """Train the population, and write what came out."""
    args = arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "stepladder", "population", str(args.store)),
            *("--population.members", str(MEMBERS), "--population.genes", GENES),
            *("--epochs", str(EPOCHS), "--run.dir", folder),
        ]
        subprocess.run(command, check=True)
        path = Path(folder) / POPULATION_FILE
        found = read_record(PopulationSummary, path)
        raw = json.loads(path.read_text(encoding="utf-8"))
    win = found.winner
    rows = [
        {
            "who": who,
            "on validation": score_words(one),
            f"on {found.judged_on}": "–" if other is None else score_words(other),
        }
        for who, one, other in (
            ("the winner", win.validation, win.judged),
            ("the mean member at the end", win.mean_validation, win.mean_judged),
        )
        if one is not None
    ]
    note = (
        f"{MEMBERS} linear heads on the demo's features, {found.num_generations} intervals of "
        f"{found.interval:,} examples, in {found.seconds:.0f} s; genes {', '.join(found.genes)}. "
        f"{optimism_words(found)}"
    )
    table, place = markdown(rows), environment()
    print(f"{note}\n\n{table}")
    result = {"note": note, "rows": rows, "environment": place, "population": raw}
    write_results(
        "population_demo", result, f"# population_demo\n\n{note}\n\n{table}{machine(place)}"
    )


if __name__ == "__main__":
    main()

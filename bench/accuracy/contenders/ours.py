"""(c) and (d) stepladder from the pictures: prepare, then train a kept recipe, or climb first.

The store has no test pictures, as no other contender decodes them on its clock. Every run is cold:
store, features and runs are in an empty folder.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import torch  # noqa: F401  (a climb needs it: imported before the clock, as by the others)

import stepladder
from bench.accuracy.contenders.contest import now, parser_of, read_pictures, report
from stepladder.config.load import load_job
from stepladder.data.prepare import prepare as _prepare  # noqa: F401
from stepladder.training import run as _run  # noqa: F401
from stepladder.training.output.display import Display

IMPORTED_AT = now()


def learning_table(table: Path, out: Path) -> Path:
    """Write the CSV without the test pictures."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] != "test"]
    learning = out / "learning.csv"
    with learning.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("path", "label", "split"))
        writer.writeheader()
        writer.writerows({**row, "path": str(table.parent / row["path"])} for row in rows)
    return learning


def committed_at(run: Path) -> float:
    """Return the time of the last checkpoint: when its manifest was written."""
    return max(path.stat().st_mtime for path in run.glob("checkpoints/*/MANIFEST.json"))


def test_accuracy(run: stepladder.Run, table: Path) -> float:
    """Classify the test pictures with the run's best weights."""
    splits, classes = read_pictures(table)
    found = run.predict(*(picture.path for picture in splits["test"]))
    wanted = [classes[picture.label] for picture in splits["test"]]
    return sum(a.label == b for a, b in zip(found, wanted, strict=True)) / len(wanted)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the job to train or to climb")
    parser.add_argument("--climb", action="store_true", help="climb from the original job")
    options = parser.parse_args()
    display = Display(io.StringIO())
    store = options.out / "store"
    source = learning_table(options.pictures, options.out)
    stepladder.prepare(source, store, display=display, size=options.size)
    prepared_s = now() - IMPORTED_AT
    limit = min(load_job(options.config).recipe.schedule.max_epochs, options.max_epochs)
    call = stepladder.climb if options.climb else stepladder.train
    run = call(
        config=options.config,
        store=store,
        dir=options.out / "run",
        display=display,
        seed=options.seed,
        **{"schedule.max_epochs": limit},
    )
    report(
        imported_at=IMPORTED_AT,
        seconds=committed_at(run.path) - IMPORTED_AT,
        epochs=run.summary["epochs"],
        test_accuracy=test_accuracy(run, options.pictures),
        prepare_s=prepared_s,
        kept=str(run.path / "config.yaml"),
    )


if __name__ == "__main__":
    main()

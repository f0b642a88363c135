"""The six published steps on a scale that two cores can handle, next to the published numbers.

    python -m bench.accuracy.six_steps --caltech TAR [--size 128] [--log FILE] [--quick]
    python -m bench.accuracy.six_steps --page         regenerate docs/six-steps.md from the results

Runs examples/six_steps/step1.yaml to step6.yaml on the Caltech-101 subset, with the packaged trunk
(Xception weights need a network) and smaller pictures. Batch size, learning rate, dropout, fraction
of the data and early stopping are those of the published listings. Then writes docs/six-steps.md.
Each step is a line in --log; with the same file, only missing steps are run.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import stepladder
from bench.log import Log
from bench.measure import RESULTS, ROOT
from bench.pictures import caltech_rows, take_few, write_table
from bench.rows import markdown, write_rows
from stepladder.config.choices import WeightsSource
from stepladder.config.load import load_job
from stepladder.config.recipe import ModelConfig
from stepladder.training.output.display import Display

STEPS = ROOT / "examples" / "six_steps"
PAGE = ROOT / "docs" / "six-steps.md"
FOUND = RESULTS / "six_steps.json"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A step as published.

    Attributes:
        change: what the step changes.
        devices: hardware it ran on.
        num_train: training pictures in an epoch.
        minutes: total training time.
        epochs: as stated, or computed from the minutes and the seconds per epoch.
        accuracy: held-out accuracy in percent.
        num_held_out: number of pictures that the accuracy was measured on.
    """

    change: str
    devices: str
    num_train: int
    minutes: float
    epochs: float
    accuracy: float
    num_held_out: int

    @property
    def passes(self) -> float:
        """Forward passes of single pictures, in training and validation."""
        return self.epochs * (self.num_train + self.num_held_out)

    @property
    def ms_per_pass(self) -> float:
        """Milliseconds of training time per pass."""
        return self.minutes * 60e3 / self.passes


PUBLISHED = (
    Published(
        change="a GPU",
        devices="1 T4",
        num_train=2430,
        minutes=20,
        epochs=60,
        accuracy=78.5,
        num_held_out=270,
    ),
    Published(
        change="early stopping",
        devices="1 T4",
        num_train=2430,
        minutes=4,
        epochs=11,
        accuracy=78.5,
        num_held_out=270,
    ),
    Published(
        change="batch 2 → 16",
        devices="1 T4",
        num_train=2430,
        minutes=2.6,
        epochs=8,
        accuracy=78.1,
        num_held_out=270,
    ),
    Published(
        change="all data, streamed",
        devices="1 T4",
        num_train=27_540,
        minutes=42,
        epochs=42 * 60 / 208,
        accuracy=83.6,
        num_held_out=3060,
    ),
    Published(
        change="four GPUs, batch 64",
        devices="4 T4",
        num_train=27_540,
        minutes=7.3,
        epochs=7.3 * 60 / 52,
        accuracy=84.4,
        num_held_out=3060,
    ),
    Published(
        change="eight machines, batch 128",
        devices="8 T4",
        num_train=27_540,
        minutes=5.7,
        epochs=float("nan"),
        accuracy=85.6,
        num_held_out=3060,
    ),
)
"""Databricks, 2019 and its update for TensorFlow 2.5: Caltech-256, frozen Xception, NAdam."""

NUMBERS = range(1, len(PUBLISHED) + 1)
RUNS = (*((step, 1) for step in NUMBERS), (5, 2), (6, 2))
"""Steps and the number of devices: of a machine with two cores, one core each."""


def run_step(step: int, store: Path, run: Path, *, quick: bool, devices: int = 1) -> dict[str, Any]:
    """Train one step's config with the packaged trunk and return its summary.

    As published, features are not cached (`auto` is off); memory is kept, and pictures are read by
    one thread per core, as in the other contenders.
    """
    job = load_job(STEPS / f"step{step}.yaml")
    recipe = replace(
        job.recipe,
        data=replace(job.recipe.data, store=store),
        model=ModelConfig(weights=WeightsSource.PACKAGED),
    )
    recipe = replace(
        recipe,
        auto=False,
        loader=replace(recipe.loader, threads=0),
        device=replace(recipe.device, count=devices, keep_freed_memory=True),
    )
    if quick:
        recipe = replace(recipe, schedule=replace(recipe.schedule, max_epochs=2))
    job = replace(job, recipe=recipe, run=replace(job.run, dir=run))
    return stepladder.train(config=job, display=Display(io.StringIO())).summary


def run_missing(log: Log, folder: Path, options: argparse.Namespace) -> None:
    """Run the steps that are missing in the log, and append their summaries.

    Raises:
        SystemExit: if `--caltech` is missing.
    """
    missing = [
        (step, devices)
        for step, devices in RUNS
        if log.find(step=step, devices=devices, size=options.size) is None
    ]
    if not missing:
        return
    if options.caltech is None:
        print("six_steps: skipped, as --caltech TAR is missing.")
        sys.exit(0)
    pictures = caltech_rows(options.caltech, folder)
    if options.quick:
        pictures = take_few(pictures, num_classes=5, count=25)
    table = write_table(pictures, folder / "pictures.csv")
    store = folder / "store"
    stepladder.prepare(table, store, size=options.size, display=Display(io.StringIO()))
    for step, devices in missing:
        run = folder / f"step{step}-{devices}"
        summary = run_step(step, store, run, quick=options.quick, devices=devices)
        log.add({"step": step, "devices": devices, "size": options.size, "summary": summary})
        print(row_of(step, summary), flush=True)


def row_of(step: int, summary: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a step's summary that the tables need."""
    passes = summary["epochs"] * (summary["num_train"] + summary["num_val"])
    return {
        "step": step,
        "devices": summary.get("devices", 1),
        "num_train": summary["num_train"],
        "num_val": summary["num_val"],
        "batch": summary["global_batch_size"],
        "epochs": summary["epochs"],
        "train_s": summary["train_s"],
        "passes": passes,
        "ms_per_pass": 1e3 * summary["train_s"] / passes,
        "val_accuracy": summary["val_accuracy"],
        "test_accuracy": summary["test_accuracy"],
        "num_test": summary["num_test"],
    }


def page(results: dict[str, Any] | None) -> str:
    """Write docs/six-steps.md: published numbers next to ours, method and hardware separately."""
    rows = rows_on(results, devices=1)
    two = rows_on(results, devices=2)
    lines = [
        "# The six published steps",
        "",
        "The steps of the Databricks post of 2019, updated for TensorFlow 2.5, as configs with the "
        "listings' numbers: [`examples/six_steps/`](../examples/six_steps). Caltech-256, "
        "a frozen Xception, NAdam.",
        "",
        "Training time is *passes* (pictures through the trunk, in training and validation: "
        "epochs × pictures) times *time per pass*. **The method** changes the passes and the "
        "accuracy; **the hardware**, and its utilization, changes the time per pass.",
        "",
        "## Effect of the method",
        "",
        "| step | change | published: epochs | published: passes | published: held-out accuracy "
        "| ours: epochs | ours: passes | ours: test accuracy |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for step, published in enumerate(PUBLISHED, start=1):
        own = rows.get(step)
        cells = [
            str(step),
            published.change,
            number(published.epochs),
            number(published.passes),
            f"{published.accuracy:.1f} % of {published.num_held_out:,}",
            number(own["epochs"]) if own else "not run",
            number(own["passes"]) if own else "not run",
            f"{100 * own['test_accuracy']:.1f} % of {own['num_test']:,}" if own else "not run",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## Effect of the hardware",
        "",
        "| step | published: devices | published: minutes | published: ms per pass "
        "| ours: minutes | ours: ms per pass | ours: minutes with `--devices 2` "
        "| test accuracy with `--devices 2` |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for step, published in enumerate(PUBLISHED, start=1):
        own = rows.get(step)
        cells = [
            str(step),
            published.devices,
            f"{published.minutes:g}",
            number(published.ms_per_pass),
            number(own["train_s"] / 60) if own else "not run",
            number(own["ms_per_pass"]) if own else "not run",
            number(two[step]["train_s"] / 60) if step in two else "–",
            f"{100 * two[step]['test_accuracy']:.1f} %" if step in two else "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *closing(results)]
    return "\n".join(lines) + "\n"


def rows_on(results: dict[str, Any] | None, *, devices: int) -> dict[int, dict[str, Any]]:
    """Return the rows of runs on a number of devices, by step."""
    found = results["rows"] if results else ()
    return {row["step"]: row for row in found if row.get("devices", 1) == devices}


STRICT = "stopping as in the listings"


def closing(results: dict[str, Any] | None) -> list[str]:
    """Return the notes on how to read the tables and how our numbers were measured."""
    first, third, fifth = PUBLISHED[0], PUBLISHED[2], PUBLISHED[4]
    said = [
        f"From the published numbers: steps 1 to 3 took {first.minutes:g} min to "
        f"{third.minutes:g} min on the same device, {first.minutes / third.minutes:.1f} "
        f"times less, and the passes fell {first.passes / third.passes:.1f} times: the effect of "
        f"the method. From step 4 to 5 the time per pass fell "
        f"{PUBLISHED[3].ms_per_pass / fifth.ms_per_pass:.1f} times with four times "
        "as many devices: the effect of the hardware. Epochs of steps 4 and 5 are the minutes "
        "divided by the stated seconds per epoch; step 6 states none. Steps 1 to 3 use other "
        "held-out pictures than 4 to 6; one of their 270 pictures is 0.37 points.",
        "",
    ]
    if results is None:
        return [*said, "Ours have not been run yet; run `python -m bench.accuracy.six_steps`."]
    rows = rows_on(results, devices=1)
    first_s, third_s = rows[1]["train_s"], rows[3]["train_s"]
    share = rows[1]["passes"] / rows[3]["passes"]
    ours = (
        f"Ours: {results['note']} Steps 1 to 3 took {first_s / third_s:.1f} times less, and the "
        f"passes fell {share:.1f} times. "
    )
    if STRICT not in results["note"]:
        ours += (
            "These runs used a stopping rule that also waited while validation did not change. The "
            "configs of steps 2 to 6 now have the listings' rule and were not run again with it. "
        )
    if rows[2]["epochs"] == rows[1]["epochs"]:
        ours += (
            f"Early stopping did not end step 2 within its {rows[2]['epochs']} epochs "
            f"({rows[2]['num_train']} training and {rows[2]['num_val']} validation pictures). "
        )
    return [*said, f"{ours}Raw numbers: `bench/results/six_steps.json`."]


def number(value: float) -> str:
    """Format a number with three significant digits and thousands separators, or – for NaN."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--caltech", type=Path, help="tar file of the Caltech-101 subset")
    parser.add_argument(
        "--size", type=int, default=128, help="height and width of the pictures in pixels"
    )
    parser.add_argument("--log", type=Path, help="log of finished steps; default: in /tmp")
    parser.add_argument("--page", action="store_true", help="only regenerate the page")
    parser.add_argument("--quick", action="store_true", help="tiny smoke test")
    options = parser.parse_args()
    if not options.page:
        with tempfile.TemporaryDirectory() as temporary:
            log = Log(options.log or Path(temporary) / "log.jsonl")
            run_missing(log, Path(temporary), options)
        found = [log.find(step=step, devices=devices, size=options.size) for step, devices in RUNS]
        rows = [row_of(one["step"], one["summary"]) for one in found if one is not None]
        note = (
            f"Caltech-101 subset (101 classes, 5 training pictures per class held out for "
            f"validation), packaged tf_efficientnet_lite0 at {options.size} px, {STRICT}, "
            "one run each on the CPU recorded with the results; with two devices, each has one "
            "of its two cores."
        )
        if options.quick:
            print(markdown(rows))
            return
        write_rows("six_steps", rows, note=note, rounds=log.lines, place=log.environment)
    results = json.loads(FOUND.read_text()) if FOUND.exists() else None
    PAGE.write_text(page(results))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

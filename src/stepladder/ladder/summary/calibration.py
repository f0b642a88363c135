"""How good the predictions are: predicted and measured gains, over all ledgers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from stepladder.ladder.ledger import LEDGER_FILE, trials_of
from stepladder.ladder.summary.wording import gain, gain_interval
from stepladder.records import to_json
from stepladder.records.ladder import Interval, Trial
from stepladder.training.output.wording import clean

COUNTS_FROM: Final = 1.2
COUNTS_BELOW: Final = 0.83

_SMALLEST: Final = 1e-9  # a gain below it or above its inverse is not a valid measurement
_MIN_FOR_DECILE: Final = 10
_COLUMNS: Final = (24, 11, 21, 10)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A rung that was predicted and then measured.

    Attributes:
        predicted: gain in time to a trained model; above 1 is faster.
        measured: the measured gain, with its bounds.
        run: name of the run folder.
        machine: key of the machine.
        error: |ln(predicted / measured)|.
        counts: whether either gain is far enough from 1 that a wrong prediction would mislead.
    """

    rung: str
    predicted: float
    measured: Interval
    run: str
    machine: str
    error: float
    counts: bool


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Predicted and measured gains.

    Attributes:
        cases: all cases, in the order of the ledgers.
        num_counted: cases in which either gain is >= 1.2 or <= 0.83.
        median_error, p90_error: of |ln(predicted / measured)| over the counted cases.
    """

    cases: tuple[Case, ...]
    num_counted: int
    median_error: float | None
    p90_error: float | None


def calibration_of(paths: Iterable[Path]) -> Calibration:
    """Collect the cases of ledgers; a verdict that several ledgers hold counts once.

    Args:
        paths: run folders, or their trials.jsonl.

    Raises:
        ResourceError: if a ledger cannot be read.
    """
    found: list[tuple[Trial, str]] = []
    for path in paths:
        file = path / LEDGER_FILE if path.is_dir() else path
        found += [(trial, file.resolve().parent.name) for trial in trials_of(file)]
    return calibration_from(found)


def calibration_from(trials: Iterable[tuple[Trial, str]]) -> Calibration:
    """Collect the cases of trials, each with the name of its run."""
    by_content: dict[str, Case] = {}
    for trial, run in trials:
        if not trial.is_undone and (case := _case(trial, run)) is not None:
            by_content.setdefault(json.dumps(to_json(trial), sort_keys=True), case)
    cases = tuple(by_content.values())
    errors = [case.error for case in cases if case.counts]
    return Calibration(
        cases=cases,
        num_counted=len(errors),
        median_error=float(np.median(errors)) if errors else None,
        p90_error=float(np.quantile(errors, 0.9)) if errors else None,
    )


def calibration_table(calibration: Calibration) -> str:
    """Return a table of all cases, with a summary of the errors."""
    if not calibration.cases:
        return "No rung has been predicted and measured yet: run `stepladder climb` first."
    lines = [_line(("rung", "predicted", "measured", "off by", "run"))]
    for case in calibration.cases:
        off = gain(math.exp(case.error)) if case.counts else "–"
        measured = gain_interval(case.measured)
        lines.append(_line((case.rung, gain(case.predicted), measured, off, case.run)))
    return "\n".join([*lines, "", calibration_words(calibration)])


def calibration_words(calibration: Calibration) -> str:
    """Return a summary of the prediction errors in a sentence or two."""
    num, rest = calibration.num_counted, len(calibration.cases) - calibration.num_counted
    near = f"{rest} gain{'' if rest == 1 else 's'} closer to 1 not counted."
    if calibration.median_error is None or calibration.p90_error is None:
        return f"No gain is at least {COUNTS_FROM}× or at most {COUNTS_BELOW}×: {near}"
    median, p90 = (gain(math.exp(e)) for e in (calibration.median_error, calibration.p90_error))
    said = (
        f"{num} gain{'' if num == 1 else 's'} of at least {COUNTS_FROM}× or at most "
        f"{COUNTS_BELOW}×, predicted or measured: off by a factor of {median} in the median"
    )
    said += f", {p90} at the 90th percentile." if num >= _MIN_FOR_DECILE else "."
    return f"{said} {near}" if rest else said


def _case(trial: Trial, run: str) -> Case | None:
    prediction, measured = trial.prediction, trial.verdict.speed
    if prediction is None or measured is None:
        return None
    gains = (prediction.gain, measured.estimate)
    if not all(_SMALLEST < value < 1 / _SMALLEST for value in gains):
        return None
    return Case(
        rung=trial.rung,
        predicted=prediction.gain,
        measured=measured,
        run=run,
        machine=trial.machine,
        error=abs(math.log(prediction.gain / measured.estimate)),
        counts=any(value >= COUNTS_FROM or value <= COUNTS_BELOW for value in gains),
    )


def _line(cells: tuple[str, ...]) -> str:
    *firsts, last = (clean(cell) for cell in cells)
    padded = (cell.ljust(size) for cell, size in zip(firsts, _COLUMNS, strict=True))
    return f" {''.join(padded)}{last}".rstrip()

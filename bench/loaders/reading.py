"""Measure loaders: create formats, choose the best settings, then rotated rounds."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.loaders.child import Child, ContenderError, Pythons, lines_of, module
from bench.loaders.contract import Job, Line, Shuffle
from bench.measure import rotated_trials, summary
from stepladder.stats import speedup_interval

OURS = "stepladder"
LIMITS = (Shuffle.NONE,)
TRIALS_OF_A_SETTING = 2
MIN_ROUNDS = 8


@dataclass(frozen=True)
class Plan:
    """The plan of one group.

    Attributes:
        job: the pictures.
        shuffles: of the lines to measure; ours and the limits are always measured.
        rounds: number of rounds.
        min_s: minimum seconds of a trial.
        only: modules to measure; empty: all.
    """

    job: Job
    shuffles: tuple[Shuffle, ...]
    rounds: int
    min_s: float
    only: tuple[str, ...]
    pythons: Pythons

    def lines(self) -> list[tuple[str, Line]]:
        return [
            (name, line)
            for name, line in lines_of(self.job.kind)
            if not self.only or name in self.only
            if name == "ours" or line.shuffle in (*self.shuffles, *LIMITS)
        ]

    def key(self, line: Line) -> str:
        """Return a unique name of a line among all kinds."""
        return f"{self.job.kind}: {line.name}"

    def child(self, name: str) -> Child:
        return Child(name, self.pythons.of(name), self.job.folder / "logs" / f"{name}.log")


class Choices:
    """The settings that were tried and the best one of each line, kept on disk between runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.by_line: dict[str, dict[str, Any]] = (
            json.loads(path.read_text()) if path.is_file() else {}
        )

    def keep(self, key: str, choice: dict[str, Any]) -> None:
        self.by_line[key] = choice
        self._path.write_text(json.dumps(self.by_line, indent=1))


def make_formats(plan: Plan, *, missing: dict[str, str]) -> None:
    """Write the formats that the lines read, unless they exist."""
    for name, line in plan.lines():
        writer = module(name).WRITER
        if writer is None or line.name in missing:
            continue
        done = plan.job.place(f"{writer}.json")
        if done.is_file():
            continue
        if plan.pythons.version(writer) is None:
            package = module(writer).PACKAGE
            missing[line.name] = f"{package}, which writes its files, is not installed"
            continue
        shutil.rmtree(plan.job.place(writer), ignore_errors=True)
        try:
            with plan.child(writer) as child:
                answer = child.write(plan.job, module(writer).WRITE_SETTINGS[0])
        except ContenderError as error:
            missing[line.name] = f"its files could not be written: {error}"
            continue
        done.write_text(json.dumps(answer))
        print(f"{line.name}: files written in {answer['seconds']:.1f} s", flush=True)


def choose_settings(plan: Plan, choices: Choices, missing: dict[str, str]) -> None:
    """Try each setting in a fresh process, keep the fastest, and verify its pictures."""
    for name, line in plan.lines():
        if plan.key(line) in choices.by_line or line.name in missing:
            continue
        tried: list[dict[str, Any]] = []
        for setting in line.settings:
            entry: dict[str, Any] = {"setting": dict(setting)}
            try:
                with plan.child(name) as child:
                    child.open(plan.job, setting)
                    child.ask("trial", min_s=0)  # the first epoch warms caches and workers
                    rates = [_rate(child, plan.min_s) for _ in range(TRIALS_OF_A_SETTING)]
                    entry["pictures_per_s"] = statistics.median(rates)
            except ContenderError as error:
                entry["error"] = str(error)
            tried.append(entry)
        ran = [entry for entry in tried if "pictures_per_s" in entry]
        if not ran:
            missing[line.name] = tried[0]["error"]
            continue
        best = max(ran, key=lambda entry: entry["pictures_per_s"])
        choice = {"setting": best["setting"], "tried": tried, "check": None}
        with contextlib.suppress(ContenderError), plan.child(name) as child:
            child.open(plan.job, best["setting"])
            choice["check"] = child.ask("check")
        choices.keep(plan.key(line), choice)
        print(f"{line.name}: {best['pictures_per_s']:,.0f}/s with {best['setting']}", flush=True)
        print(f"  {choice['check']}", flush=True)


def measure(plan: Plan, choices: Choices, missing: dict[str, str]) -> dict[str, list[float]]:
    """Run the rounds; a line's figures are pictures per second."""
    contenders: dict[str, Callable[[], float]] = {}
    with contextlib.ExitStack() as stack:
        for name, line in plan.lines():
            choice = choices.by_line.get(plan.key(line))
            if choice is None or line.name in missing:
                continue
            child = stack.enter_context(plan.child(name))
            try:
                child.open(plan.job, choice["setting"])
                child.ask("trial", min_s=0)
            except ContenderError as error:
                missing[line.name] = str(error)
                continue
            contenders[line.name] = partial(_rate, child, plan.min_s)
        return whole_rounds(contenders, plan.rounds, missing)


def whole_rounds(
    contenders: Mapping[str, Callable[[], float]], rounds: int, missing: dict[str, str]
) -> dict[str, list[float]]:
    """Run the rounds; contenders that fail are left out of the figures and added to `missing`."""

    def guarded(name: str, trial: Callable[[], float]) -> float:
        try:
            return trial()
        except ContenderError as error:
            missing[name] = f"failed in a round: {error}"
            return math.nan

    trials = {name: partial(guarded, name, trial) for name, trial in contenders.items()}
    figures = rotated_trials(trials, rounds)
    return {name: rates for name, rates in figures.items() if name not in missing}


def _rate(child: Child, min_s: float) -> float:
    answer = child.ask("trial", min_s=min_s)
    assert answer["touched"] > 0, "no page was touched"
    return float(answer["pictures"] / answer["seconds"])


def compare(figures: dict[str, list[float]], ours: str = OURS) -> dict[str, dict[str, Any]]:
    """Return our speedup over each line, paired by round, with the lower 95 % bound."""
    found = {}
    for name, rates in figures.items():
        entry: dict[str, Any] = {"per_s": summary(rates), "figures": rates}
        if name != ours and ours in figures:
            ratios = [a / b for a, b in zip(figures[ours], rates, strict=True)]
            entry["ours_faster_by"] = summary(ratios)
            if len(rates) >= MIN_ROUNDS:
                seconds = [[1 / rate for rate in side] for side in (rates, figures[ours])]
                entry["lower_95"] = speedup_interval(seconds[0], seconds[1]).low
        found[name] = entry
    return found

"""The page of a climb with a script, and its last lines on the terminal."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepladder.ladder.summary.wording import (
    accuracy_words,
    decision_words,
    gain,
    gain_interval,
    measured_words,
    predicted_words,
    reason_words,
)
from stepladder.records.ladder import Decision, Trial
from stepladder.records.script import PATCH_FILE, ScriptClimb
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.headline import Fact
from stepladder.reporting.html import template
from stepladder.reporting.ladder.table import LadderRow
from stepladder.reporting.links import REPORT_FILE, save_page
from stepladder.reporting.pages.watch_page import WATCH_PAGE
from stepladder.scripts.rungs import SCRIPT_RUNGS
from stepladder.training.output.wording import rough_time

_TRIED: Final = (Decision.KEPT, Decision.DROPPED, Decision.UNDECIDED)


@dataclass(frozen=True, kw_only=True)
class DiffLine:
    """A line of the diff, and what it is: added, removed, place or same."""

    text: str
    style: str


def closing_lines(found: ScriptClimb, folder: Path) -> list[str]:
    """Return the last lines of a climb: the result, the diff, what to type next."""
    lines = [f"{result_words(found)}."]
    if found.patch:
        proof = f", {gain_interval(found.patched)} as measured" if found.patched else ""
        lines.append(f"diff: {folder / PATCH_FILE}{proof}; to apply it: {apply_words(folder)}")
    for rung, why in found.only_outside.items():
        lines.append(f"not in the diff: {rung}: {why}")
    if found.only_outside:
        lines.append(f"to run with all of them: {run_words(found, folder)}")
    lines += [f"note: {text}" for text in found.notes]
    if found.num_alarms:
        alarms = f"{found.num_alarms} finding{'' if found.num_alarms == 1 else 's'}"
        lines.append(f"{alarms} in the script itself: {folder / WATCH_PAGE}")
    lines.append(f"report: {folder / REPORT_FILE}")
    return lines


def result_words(found: ScriptClimb) -> str:
    """Return the result in one sentence, without its full stop."""
    if not found.kept:
        return "nothing was kept: the script is as fast as it was"
    if found.speedup is None or found.step_s is None or found.result_s is None:
        return f"kept: {', '.join(found.kept)}; too few steps to time them together"
    steps = f"{1e3 * found.step_s:.3g} → {1e3 * found.result_s:.3g} ms a step"
    return f"{gain_interval(found.speedup)} as fast ({steps}): {', '.join(found.kept)}"


def apply_words(folder: Path) -> str:
    """Return the command that applies the diff."""
    return f"patch -p1 < {folder / PATCH_FILE}"


def run_words(found: ScriptClimb, folder: Path) -> str:
    """Return the command that runs the script with all that was kept."""
    args = f" -- {' '.join(found.args)}" if found.args else ""
    return f"stepladder run --with {folder} {found.script}{args}"


def write_script_page(found: ScriptClimb, trials: Sequence[Trial], folder: Path) -> Path:
    """Write FOLDER/report.html, which is self-contained."""
    path = folder / REPORT_FILE
    save_page(path, render_script(found, trials, folder))
    return path


def render_script(found: ScriptClimb, trials: Sequence[Trial], folder: Path) -> str:
    """Return the page as HTML."""
    tried = [trial for trial in trials if trial.verdict.decision in _TRIED]
    others = [trial for trial in trials if trial.verdict.decision not in _TRIED]
    return template("script.html").render(
        found=found,
        name=" ".join([Path(found.script).name, *found.args]),
        figure=_figure(found),
        noise=_noise(found),
        caption=_caption(found),
        facts=_facts(found, tried),
        rows=[_row(trial) for trial in tried],
        others=[_row(trial) for trial in others],
        diff=[_diff_line(line) for line in found.patch.splitlines()],
        patched=gain_interval(found.patched) if found.patched is not None else "",
        apply=apply_words(folder),
        run=run_words(found, folder),
        method=_method(found),
    )


def _figure(found: ScriptClimb) -> str:
    if not found.kept:
        return "Nothing kept"
    if found.speedup is None:
        return f"{len(found.kept)} kept"
    return f"{gain(found.speedup.estimate)} faster"


def _noise(found: ScriptClimb) -> str:
    if found.speedup is None or found.step_s is None or found.result_s is None:
        return ""
    bounds = gain_interval(found.speedup).partition(" ")[2]
    return f"{bounds}, {1e3 * found.step_s:.3g} → {1e3 * found.result_s:.3g} ms a step"


def _caption(found: ScriptClimb) -> str:
    if not found.kept:
        return "No speed-up that was tried is faster beyond noise and learns as well."
    return f"A step of the script with {_listed(found.kept)}, against the script as it is."


def _listed(names: Sequence[str]) -> str:
    words = [name.replace("_", " ") for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _facts(found: ScriptClimb, tried: Sequence[Trial]) -> list[Fact]:
    facts = [Fact(value=rough_time(found.climb_s), label="duration of the climb")]
    if tried:
        facts.append(Fact(value=f"{len(found.kept)} of {len(tried)}", label="tried rungs kept"))
    alarms = str(found.num_alarms) if found.num_alarms else "none"
    facts.append(Fact(value=alarms, label="findings in the script"))
    return facts


def _method(found: ScriptClimb) -> str:
    if not found.num_pairs:
        return ""
    steps = f"{found.steps_per_block} step{'' if found.steps_per_block == 1 else 's'}"
    return (
        f"The original and the result ran in two processes, with the same seed, in turn: "
        f"{found.num_pairs} pairs of blocks of {steps}, after the first steps of each. The process "
        "that does not run is stopped. A step has all that the script does between two steps of "
        "its optimizer: reading data, printing, validation."
    )


def _row(trial: Trial) -> LadderRow:
    decision = trial.verdict.decision
    about = {rung.name: (inspect.getdoc(type(rung)) or "") for rung in SCRIPT_RUNGS}
    return LadderRow(
        level=trial.level,
        name=short(trial.rung, 40),
        predicted=predicted_words(trial.prediction) if trial.prediction else "",
        measured=measured_words(trial.verdict) if trial.verdict.speed else "",
        accuracy=accuracy_words(trial.verdict),
        style=decision.value,
        decision=decision_words(decision),
        reason=short(reason_words(trial), 300),
        about=about.get(trial.rung, "").partition("\n")[0],
    )


def _diff_line(text: str) -> DiffLine:
    if text.startswith(("+++", "---", "@@")):
        return DiffLine(text=text, style="place")
    styles = {"+": "added", "-": "removed"}
    return DiffLine(text=text, style=styles.get(text[:1], "same"))

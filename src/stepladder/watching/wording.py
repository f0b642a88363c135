"""The report in words, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stepladder.checks.evidence.growth import NUM_CALLS, norms_in_words
from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import Clearing, WatchReport
from stepladder.training.output.wording import duration, percent

PHASE_WORDS: Final[Mapping[str, str]] = {
    "data_wait": "waiting for data (upper bound)",
    "forward": "forward and loss",
    "backward": "backward",
    "optimizer": "optimiser step",
    "validation": "validation",
    "checkpoint": "saving files",
    "unexplained": "unexplained",
}


def summary(report: WatchReport, *, page: str = "") -> str:
    """Say in a few lines what was seen: ending, alarms, where time goes, the one next step."""
    lines = [f"stepladder watch: {headline(report)}"]
    lines += [_alarm(finding) for finding in report.alarms]
    if report.times:
        parts = [
            f"{PHASE_WORDS.get(t.name, t.name)} {percent(t.share, 0)}"
            for t in report.times
            if t.share >= 0.005 or t.name == "unexplained"
        ]
        lines.append(f"  time: {step_words(report)}: " + ", ".join(parts))
    if report.next is not None:
        lines.append(f"  next: {next_words(report)}")
    if report.probe_s is not None:
        clearing = f"; {clearing_words(report.clearing)}" if report.clearing is not None else ""
        lines.append(f"  probe: {duration(report.probe_s)} after the last step{clearing}")
    lines += [f"  not seen: {text}" for text in report.not_seen]
    if report.watcher_error is not None:
        lines.append(f"  the watcher switched itself off: {report.watcher_error}")
    if page:
        lines.append(f"  report: {page}")
    return "\n".join(lines) + "\n"


def headline(report: WatchReport) -> str:
    """Say how much was seen and how it ended, in one line."""
    errors = sum(finding.outcome is Outcome.FAILED for finding in report.findings)
    warned = sum(finding.outcome is Outcome.WARNED for finding in report.findings)
    counts = f"{_count(errors, 'error')}, {_count(warned, 'warning')}"
    steps = _count(report.num_steps, "step")
    return f"{steps} in {duration(report.wall_s)}, {report.ending}: {counts}"


def step_words(report: WatchReport) -> str:
    """Say how long a step takes."""
    if report.step_s is None:
        return "not known"
    return f"{1000 * report.step_s:.3g} ms a step, watching apart"


def next_words(report: WatchReport) -> str:
    """Say the one next step with its gain."""
    step = report.next
    if step is None:
        return "too few steps were seen to advise"
    if step.gain is None:
        return step.text
    most = "at most " if report.is_bound else ""
    return f"{step.rung}, {most}{step.gain:.2f} times as fast: {step.text}"


def overhead_words(report: WatchReport) -> str:
    """Say what watching took."""
    each = 1e6 * report.overhead_s / report.num_steps if report.num_steps else 0.0
    own_s = report.overhead_s
    took = duration(own_s) if own_s >= 1 else f"{1e3 * own_s:.0f} ms"
    text = f"watching took {took}, {each:.0f} µs a step"
    if isinstance(counted := report.facts.get("num_steps_only_counted"), int) and counted:
        text += f"; {counted:,} of {report.num_steps:,} steps were only counted"
    return text + (f"; the probe took {duration(report.probe_s)}" if report.probe_s else "")


def clearing_words(clearing: Clearing) -> str:
    """Say how gradients are cleared, and what those of one batch then do on a copy."""
    text = f"gradients of {clearing.optimizer} are {_cleared_by(clearing)}"
    if clearing.norms:
        norms = norms_in_words(clearing.norms)
        return f"{text}; the norm of one batch's gradient, {NUM_CALLS} times on a copy: {norms}"
    return f"{text}; not gone through again on a copy: {clearing.why_not}"


def _cleared_by(clearing: Clearing) -> str:
    num, of = len(clearing.uncleared), clearing.num_weights
    if num == of:
        return "kept from step to step"
    left = f", but those of {num} of {of} weights are kept" if num else ""
    if clearing.how is None:
        return f"cleared or changed without zero_grad(){left}"
    where = f" in {clearing.where}" if clearing.where is not None else ""
    return f"cleared by {clearing.how}{where}{left}"


def _alarm(finding: Finding) -> str:
    word = "ERROR" if finding.outcome is Outcome.FAILED else "warning"
    where = f" {finding.where}:" if finding.where else ""
    return f"  {word}: {finding.check}:{where} {finding.evidence}\n    {finding.fix}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"

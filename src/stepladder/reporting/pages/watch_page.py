"""The page and the terminal output of `stepladder watch`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from markupsafe import Markup

from stepladder.checks.evidence.growth import NUM_CALLS, norms_in_words
from stepladder.records.climb import NextStep
from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import Clearing, Regression, WatchReport
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.headline import TimeSpent, spent
from stepladder.reporting.html import template
from stepladder.reporting.links import save_page
from stepladder.reporting.pages.finding_rows import QUIET, FindingRow, finding_row
from stepladder.reporting.pages.watched_ranks import dead_words, rank_lines, rank_rows
from stepladder.training.output.wording import duration, percent
from stepladder.watching.contract import Detector
from stepladder.watching.detectors import DETECTORS
from stepladder.watching.ranks.detectors import RANK_DETECTORS, RankDetector

WATCH_PAGE = "watch.html"

PHASE_WORDS: Final[Mapping[str, str]] = {
    "data_wait": "waiting for data (upper bound)",
    "forward": "forward and loss",
    "backward": "backward",
    "optimizer": "optimizer step",
    "validation": "validation",
    "checkpoint": "saving files",
    "own_code": "the script's other lines",
    "unexplained": "unexplained",
}


def watch_text(report: WatchReport, *, page: str = "") -> str:
    """Return a report as text: ending, alarms, time by phase, next step."""
    crash = crash_words(report)
    lines = [f"stepladder watch: {crash}", f"  {headline(report)}"]
    if crash is None:
        lines = [f"stepladder watch: {headline(report)}"]
    lines += [_alarm(finding) for finding in report.alarms]
    lines += rank_lines(report)
    if report.times:
        parts = [
            f"{PHASE_WORDS.get(t.name, t.name)} {percent(t.share, 0)}"
            for t in report.times
            if t.share >= 0.005 or t.name == "unexplained"
        ]
        lines.append(f"  time: {step_words(report)}: " + ", ".join(parts))
    if report.next is not None:
        lines.append(f"  next: {next_words(report)}")
        lines += [f"  then: {step_words_of(step)}" for step in report.others]
    if report.probe_s is not None:
        clearing = f"; {clearing_words(report.clearing)}" if report.clearing is not None else ""
        lines.append(f"  probe: {duration(report.probe_s)} after the last step{clearing}")
    lines += [f"  note: {text}" for text in report.not_seen]
    if report.watcher_error is not None:
        lines.append(f"  watching stopped because of an error: {report.watcher_error}")
    if page:
        lines.append(f"  report: {page}")
    return "\n".join(lines) + "\n"


def regression_lines(found: Regression, baseline: str) -> list[str]:
    """Return what became worse since an earlier run, as lines for the terminal.

    Args:
        baseline: folder of the earlier run.
    """
    allowed = f"at most {found.allowed:.2f}× is allowed"
    if found.slower is None:
        lines = [f"compared with {baseline}: times cannot be compared: {found.why_not}"]
    else:
        ratio = found.slower
        times = f"{ratio.estimate:.2f}× [{ratio.low:.2f}, {ratio.high:.2f}] as long"
        verdict = "SLOWER" if found.is_slower else "not slower beyond noise"
        lines = [f"compared with {baseline}: a step takes {times}; {allowed}: {verdict}"]
    if found.new_faults:
        lines.append(f"  NEW: {', '.join(found.new_faults)}: not found in the earlier run")
    return lines


def crash_words(report: WatchReport) -> str | None:
    """Return what ended the script if it did not end by itself, or None."""
    if report.dead_rank is not None:
        return dead_words(report.ranks[report.dead_rank], len(report.ranks))
    if report.crash is not None:
        at = f" at {report.crashed_at}" if report.crashed_at is not None else ""
        return f"the script crashed{at}: {report.crash}"
    return (
        None if not report.exit_code else f"the script did not run to completion: {report.ending}"
    )


def headline(report: WatchReport) -> str:
    """Return the steps, the ending and the number of findings in one line."""
    errors = sum(finding.outcome is Outcome.FAILED for finding in report.findings)
    warned = sum(finding.outcome is Outcome.WARNED for finding in report.findings)
    counts = f"{_count(errors, 'error')}, {_count(warned, 'warning')}"
    steps = _count(report.num_steps, "step")
    ending = "until then" if crash_words(report) is not None else report.ending
    return f"{steps} in {duration(report.wall_s)}, {ending}: {counts}"


def step_words(report: WatchReport) -> str:
    """Return the time per step."""
    if report.step_s is None:
        return "unknown"
    return f"{1000 * report.step_s:.3g} ms per step, without the overhead of watching"


def next_words(report: WatchReport) -> str:
    """Return the next step with its gain."""
    step = report.next
    if step is None:
        return "too few steps for advice; let the script run longer"
    return step_words_of(step, is_bound=report.is_bound)


def step_words_of(step: NextStep, *, is_bound: bool = True) -> str:
    """Return one step with its gain."""
    if step.gain is None:
        return step.text
    most = "at most " if is_bound else ""
    return f"{step.rung}, {most}{step.gain:.2f} times as fast: {step.text}"


def overhead_words(report: WatchReport) -> str:
    """Return the overhead of watching."""
    each = 1e6 * report.overhead_s / report.num_steps if report.num_steps else 0.0
    own_s = report.overhead_s
    took = duration(own_s) if own_s >= 1 else f"{1e3 * own_s:.0f} ms"
    text = f"watching took {took}, {each:.0f} µs per step"
    if isinstance(counted := report.facts.get("num_steps_only_counted"), int) and counted:
        text += f"; {counted:,} of {report.num_steps:,} steps were only counted"
    return text + (f"; the probe took {duration(report.probe_s)}" if report.probe_s else "")


def clearing_words(clearing: Clearing) -> str:
    """Return how gradients are cleared, and the gradient norms of repeated calls on a copy."""
    text = f"gradients of {clearing.optimizer} are {_cleared_by(clearing)}"
    if clearing.norms:
        norms = norms_in_words(clearing.norms)
        return f"{text}; gradient norm of the same batch, {NUM_CALLS} times on a copy: {norms}"
    return f"{text}; not repeated on a copy: {clearing.why_not}"


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


def write_watch_page(report: WatchReport, folder: Path) -> Path:
    """Write FOLDER/watch.html, which is self-contained."""
    path = folder / WATCH_PAGE
    save_page(path, render_watch(report))
    return path


def render_watch(report: WatchReport) -> str:
    """Return the page as HTML."""
    alarms = [f for f in report.findings if f.outcome not in QUIET]
    quiet = [f for f in report.findings if f.outcome in QUIET]
    return template("watch.html").render(
        report=report,
        name=" ".join([_script(report.script), *report.args]),
        figure=_figure(report),
        crash=crash_words(report),
        caption=_caption(report),
        alarms=[_row(finding) for finding in alarms],
        quiet=[_row(finding) for finding in quiet],
        ranks=rank_rows(report.ranks),
        time=_time(report),
        device=_device(report),
        loss=_loss_chart(report),
        next=next_words(report),
        others=[step_words_of(step) for step in report.others],
        step=step_words(report),
        overhead=overhead_words(report),
        clearing=clearing_words(report.clearing) if report.clearing is not None else None,
        replays=[_replay(one.name, one.example_s, one.why_not) for one in report.replays],
    )


def _script(given: str) -> str:
    """Return the script as given, without the folders of an absolute path."""
    return Path(given).name if Path(given).is_absolute() else given


def _figure(report: WatchReport) -> str:
    num = len(report.alarms)
    if report.dead_rank is not None:
        return f"Rank {report.dead_rank} died"
    if report.crash is not None:
        return "The script crashed"
    if not report.num_steps:
        return "No steps seen"
    return f"{num} alarm{'' if num == 1 else 's'}" if num else "No alarms"


def _caption(report: WatchReport) -> str:
    state = report.ending if report.is_complete else "the script was still running"
    steps = f"{report.num_steps:,} step{'' if report.num_steps == 1 else 's'}"
    return f"{steps} of the optimizer in {duration(report.wall_s)}; {state}."


def _row(finding: Finding) -> FindingRow:
    known: list[Detector | RankDetector] = [*DETECTORS, *RANK_DETECTORS]
    source = next((d.source for d in known if d.name == finding.check), "")
    return finding_row((finding,), source=source)


def _time(report: WatchReport) -> TimeSpent | None:
    sizes = {time.name: time.total_s for time in report.times}
    return spent("Host, wall time", sizes, words=PHASE_WORDS, say=_rough)


def _device(report: WatchReport) -> TimeSpent | None:
    sizes = {t.name: t.device_s for t in report.times if t.device_s is not None}
    return spent("Device, a sampled step", sizes, words=PHASE_WORDS, say=_rough)


def _rough(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else duration(seconds)


def _loss_chart(report: WatchReport) -> Markup | None:
    series = Series(
        name="loss",
        style="train",
        xs=[float(s) for s in report.loss_steps],
        ys=list(report.loss_values),
    )
    if len(report.loss_steps) < 2:
        return None
    return line_chart([series], title="Loss by step", x_label="step", may_be_log=True)


def _replay(name: str, example_s: float | None, why_not: str | None) -> tuple[str, str]:
    words = f"{1e3 * example_s:.3g} ms per example" if example_s is not None else why_not or ""
    return name, words

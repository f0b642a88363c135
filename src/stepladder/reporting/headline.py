"""The top of a report: the result, its noise and its cost; and what was not measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from stepladder.diagnosis.fit.baseline import baseline_finding
from stepladder.diagnosis.runs.run_state import best_validation
from stepladder.records.findings import Outcome
from stepladder.reporting.charts.bars import Part, stacked_bar
from stepladder.reporting.tables import RunRecords, count, fraction, number
from stepladder.reporting.titles import titled
from stepladder.training.output.events import redacted
from stepladder.training.output.wording import (
    accuracy_noise,
    beside_steps,
    duration,
    examples_word,
    pace,
    percent,
    rough_time,
    stop_words,
)

_SHORT_S = 60.0  # shorter timelines also show milliseconds
PHASE_WORDS = {
    "setup": "set-up",
    "features": "computing features",
    "data_wait": "waiting for data",
    "to_device": "copy to the device",
    "augment": "augmentation",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer step",
    "validation": "validation",
    "checkpoint": "checkpoints",
    "logging": "logging",
    "test": "final evaluation",
    "unexplained": "unexplained",
}


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A value and its label."""

    value: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The top of the page.

    Attributes:
        figure: the result, such as `75.2 %`.
        noise: such as `± 1.7`, in percentage points, or empty.
        doubts: what is in doubt about the figure, a sentence each.
        caption: what the figure is.
        against_default: what the figure is against the default of `train`; a sentence or empty.
        ending: how long the run was and why it stopped; a sentence or empty.
        method: how it was measured, one sentence each.
        next: what to do next, a sentence.
        status: finished, interrupted, diverged or unfinished.
        machine: the machine of the figure, in words; empty: it does not depend on it.
    """

    figure: str
    noise: str
    caption: str
    ending: str
    status: str
    facts: tuple[Fact, ...]
    method: tuple[str, ...] = ()
    next: str = ""
    doubts: tuple[str, ...] = ()
    against_default: str = ""
    machine: str = ""


@dataclass(frozen=True, kw_only=True)
class PhaseRow:
    """One phase in the table under the bar."""

    style: str
    name: str
    time: str
    share: str


@dataclass(frozen=True, kw_only=True)
class TimeSpent:
    """The time of one timeline by phase."""

    title: str
    bar: Markup
    rows: tuple[PhaseRow, ...]


def headline(records: RunRecords) -> Headline:
    """Return the headline: test accuracy, else val accuracy, else the best validation so far."""
    summary = records.summary
    figure, noise, caption, method = _result(records)
    return Headline(
        figure=figure,
        noise=noise,
        caption=caption,
        ending=_ending(records),
        status=str(summary.get("status") or "unfinished"),
        facts=tuple(_facts(records)),
        method=(method,) if method else (),
        next=_next_words(records),
    )


def _result(records: RunRecords) -> tuple[str, str, str, str]:
    """Return figure, noise, caption, and how the noise was measured."""
    summary = records.summary
    for key, count_key, word in (
        ("test_accuracy", "num_test", "Test accuracy{}."),
        ("val_accuracy", "num_val", "Validation accuracy{}; there is no test result."),
    ):
        share, num = fraction(summary.get(key)), count(summary.get(count_key))
        if share is not None:
            noise = accuracy_noise(share, num)
            size = f"{num:,} {examples_word(summary)}"
            caption = word.format(f" over {size}" if num else "")
            method = f"± is one standard error over the choice of {size}." if noise else ""
            return percent(share), noise, caption, method
    best = [event for event in records.of("validation") if event.get("is_best")]
    if best and (share := fraction(best[-1].get("val_accuracy"))) is not None:
        caption = "Validation accuracy at the best epoch so far; there is no test result."
        return percent(share), "", caption, ""
    for split, word in (("test", "Test"), ("val", "Validation")):
        if (loss := number(summary.get(f"{split}_loss"))) is not None:
            return f"{loss:.4g}", "", f"{word} loss; the task has no accuracy.", ""
    return "No result yet", "", "The run has not evaluated any held-out data yet.", ""


def _next_words(records: RunRecords) -> str:
    status = records.summary.get("status")
    if status == "diverged":
        return "Lower the learning rate (`--batch.lr`), and train to another folder (`--run.dir`)."
    if status != "finished":
        return "If the run is not active, run the same command again to resume it."
    if failed := failed_check(records):
        return f"Fix what the check {titled(failed)} found; see “Checks of the job” below."
    if records.diagnosis is None:
        return "Run `stepladder diagnose` on this folder to see what would improve the result."
    if records.diagnosis.remedies:
        return f"Try {titled(records.diagnosis.remedies[0].name)}; see “Diagnosis” below."
    return "Use the model with `stepladder predict` or `stepladder export`."


def failed_check(records: RunRecords) -> str | None:
    """Return the first check of the job that failed; None if none did."""
    alarms = records.checks.alarms if records.checks else ()
    return next((row.name for row in alarms if row.style == Outcome.FAILED.value), None)


def _ending(records: RunRecords) -> str:
    reason, epochs = records.summary.get("stop_reason"), number(records.summary.get("epochs"))
    if not reason:
        events = [event for kind in records.events.values() for event in kind]
        last = max(events, key=lambda event: number(event.get("elapsed_s")) or 0.0, default=None)
        if last is None or number(last.get("step")) is None:
            return ""
        after = duration(number(last.get("elapsed_s")))
        return f"The last logged event is step {last['step']}, {after} after the start."
    after = f" after {epochs:,.0f} epoch{'s' if epochs != 1 else ''}" if epochs else ""
    return f"Stopped{after}: {stop_words(str(reason))}."


def _facts(records: RunRecords) -> list[Fact]:
    summary, what = records.summary, examples_word(records.summary)
    facts = _time_facts(summary, what)
    best = best_validation(summary, records.of("validation"))
    if best is not None and best.epoch is not None:
        total = number(summary.get("epochs"))
        suffix = f" of {total:,.0f}" if total is not None else ""
        used = "best epoch" if records.ends_with_best else "best epoch; the last weights are used"
        facts.append(Fact(value=f"{best.epoch:,.0f}{suffix}", label=used))
    val, num_val = fraction(summary.get("val_accuracy")), count(summary.get("num_val"))
    if fraction(summary.get("test_accuracy")) is not None and val is not None:
        shown = f"{100 * val:.1f} {accuracy_noise(val, num_val)}".strip()
        label = f"validation, {num_val:,} {what}" if num_val else "validation accuracy"
        facts.append(Fact(value=f"{shown} %", label=label))
    if (macro := fraction(summary.get("test_macro_accuracy"))) is not None:
        facts.append(Fact(value=percent(macro), label="mean over classes"))
    if (energy := number(summary.get("energy_wh"))) is not None:
        facts.append(Fact(value=f"{energy:.3g} Wh", label="energy"))
    return facts


def _time_facts(summary: Mapping[str, object], what: str) -> list[Fact]:
    """Return time, throughput and waiting for data; the last two refer to the steps only."""
    facts = []
    beside = beside_steps(summary)
    training, where, whose = "to a trained model", "in training", ""
    if beside is not None:
        training, where, whose = f"{training}, {beside}", "in the steps", "of the steps' time "
    if (train_s := number(summary.get("train_s"))) is not None:
        facts.append(Fact(value=duration(train_s), label=training))
    if (rate := number(summary.get("images_per_s"))) is not None:
        facts.append(Fact(value=f"{pace(rate)} / s", label=f"{what}, {where}"))
    if (wait := fraction(summary.get("data_wait_frac"))) is not None:
        facts.append(Fact(value=percent(wait), label=f"{whose}spent waiting for data"))
    return facts


def time_spent(records: RunRecords) -> list[TimeSpent]:
    """Return the time by phase, for the host and, if known, for the device."""
    found = []
    for key, title in (("phases_s", "Host, wall time"), ("device_phases_s", "Device")):
        phases = records.summary.get(key)
        sizes = {
            str(name): size
            for name, value in (phases.items() if isinstance(phases, dict) else ())
            if (size := number(value)) is not None
        }
        say = rough_time if sum(sizes.values()) < _SHORT_S else duration
        if (timeline := spent(title, sizes, say=say)) is not None:
            found.append(timeline)
    return found


def spent(
    title: str,
    sizes: Mapping[str, float],
    *,
    words: Mapping[str, str] = PHASE_WORDS,
    say: Callable[[float], str] = duration,
) -> TimeSpent | None:
    """Draw seconds by name as one bar with a legend; None if nothing is above 0.

    Args:
        words: titles by name; names without a title are grey.
        say: formats seconds.
    """
    whole = sum(sizes.values())
    order = sorted(sizes, key=lambda name: name == "unexplained")
    parts = [
        Part(
            name=words.get(name, name),
            style=f"ph-{name}" if name in words else "ph-other",
            size=sizes[name],
            share=sizes[name] / whole if whole > 0 else 0.0,
        )
        for name in order
    ]
    bar = stacked_bar(parts, title=f"{title}: time by phase")
    if bar is None:
        return None
    rows = tuple(
        PhaseRow(
            style=part.style,
            name=part.name,
            time=f"-{say(-part.size)}" if part.size < 0 else say(part.size),
            share=percent(part.share),
        )
        for part in parts
    )
    return TimeSpent(title=title, bar=bar, rows=rows)


def not_measured(records: RunRecords) -> list[str]:
    """Return what is missing in the report, and why."""
    summary = records.summary
    said = list(records.missing)
    if not summary and records.is_summary_damaged:
        said.append("Result and times: summary.json is damaged.")
    elif not summary:
        said.append("Result and times: the run has not ended.")
    elif _has_loss_only(summary):
        said.append("Test accuracy: the task has no accuracy; see its loss.")
    elif fraction(summary.get("test_accuracy")) is None:
        said.append(
            "Test accuracy: there is no test split. Validation accuracy is optimistic, "
            "because it was used to choose the best weights."
            if not summary.get("num_test")
            else f"Test accuracy: the run is {summary.get('status')}, so test was not evaluated."
        )
    if summary and number(summary.get("energy_wh")) is None:
        said.append("Energy: no energy counter is readable on this machine.")
    if not any("gpu_percent" in event for event in records.of("system")):
        reason = (
            "the run used the CPU" if summary.get("device") == "cpu" else "not reported by a GPU"
        )
        said.append(f"GPU usage: {reason}.")
    if not records.of("system"):
        said.append("CPU and memory usage: the run was too short for a sample.")
    if not records.of("validation"):
        said.append("Validation: no validation was completed.")
    if why := summary.get("no_advice_because"):
        said.append(f"Advice on speed: not available, because {why}.")
    said.append(
        "Variation between seeds: this is a single run. The ± only covers the choice of examples."
    )
    return said


def _has_loss_only(summary: Mapping[str, object]) -> bool:
    """Return True if test has a loss but no accuracy: the task has no classes."""
    was_measured = bool(summary.get("num_test")) and number(summary.get("test_loss")) is not None
    return was_measured and summary.get("test_accuracy") is None


def warnings_of(records: RunRecords, most: int = 20) -> list[str]:
    """Return the distinct warnings of the summary and of all attempts."""
    listed = records.summary.get("warnings")
    found = [str(text) for text in listed] if isinstance(listed, list) else []
    found += [str(event.get("message", "")) for event in records.of("warning")]
    baseline = baseline_finding(records.outcomes.get("val", {}))
    if baseline.is_alarm and records.summary.get("status") == "finished":
        found.append(f"{baseline.evidence[0].upper()}{baseline.evidence[1:]}. {baseline.fix}")
    for event in records.of("diverged")[:1]:
        found.append(f"The loss was not finite at step {event.get('first_bad_step')}.")
    unique = list(dict.fromkeys(redacted(text[:400]) for text in found if text))
    more = [f"… and {len(unique) - most} more in events.jsonl."] if len(unique) > most else []
    return unique[:most] + more

"""The climb as text: its headline, what was tried, and what was not."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.ladder.summary.calibration import calibration_from, calibration_words
from stepladder.ladder.summary.climb_summary import (
    ONE_EACH,
    default_words,
    doubts,
    errors_words,
    examples_words,
    is_within_noise,
    losses_words,
    over_seeds_words,
    pairs_words,
    spread_words,
    times_words,
    unchanged_words,
)
from stepladder.ladder.summary.machine import machine_words
from stepladder.ladder.summary.wording import (
    accuracy_words,
    baseline_epochs,
    decision_words,
    gain,
    gain_interval,
    loss_interval,
    measured_words,
    plus_minus,
    points,
    predicted_words,
    reason_words,
)
from stepladder.records.climb import Baseline, ClimbSummary
from stepladder.records.ladder import Aim, Decision, Interval, Trial
from stepladder.records.profile import Provenance
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.headline import Fact, Headline
from stepladder.reporting.ladder.climb_data import ClimbRecords, positive
from stepladder.reporting.titles import titled
from stepladder.rungs import REMEDIES, RUNGS, Rung
from stepladder.training.output.wording import percent, rough_time

MAX_ROWS = 60
_MAX_REASON = 300


@dataclass(frozen=True, kw_only=True)
class LadderRow:
    """A rung in the table; cells may be empty.

    Attributes:
        style: the decision, as a CSS class.
        decision: the decision as text.
        about: what the rung does, in its first row.
    """

    level: int
    name: str
    predicted: str
    measured: str
    accuracy: str
    style: str
    decision: str
    reason: str
    about: str


def ladder_headline(climb: ClimbRecords, status: str) -> Headline:
    """Return the headline: the result of the climb, or how far it got.

    Args:
        status: status of the final training, or unfinished.
    """
    figure, noise = _figure(climb)
    caption, source = _caption(climb)
    ending, *notes = _result_words(climb.summary)
    has_ended = climb.summary.result is not None
    return Headline(
        figure=figure,
        noise=noise,
        caption=caption,
        ending=ending,
        status=status,
        facts=tuple(_facts(climb)),
        method=tuple(text for text in (source, *notes) if text),
        next=_next_words(climb, status),
        doubts=tuple(f"{text[0].upper()}{text[1:]}." for text in doubts(climb.summary)),
        against_default=default_words(climb.summary),
        machine=machine_words(climb.summary.machine) if has_ended else "",
    )


def ladder_rows(trials: Sequence[Trial]) -> list[LadderRow]:
    """Return a row per trial."""
    about = {rung.name: _first_line(rung) for rung in (*REMEDIES, *RUNGS)}
    return [_row(trial, about.pop(trial.rung, "")) for trial in trials[:MAX_ROWS]]


def calibration_note(climb: ClimbRecords) -> str:
    """Return how accurate the predictions of this climb were; empty if unknown."""
    calibration = calibration_from((trial, "") for trial in climb.trials)
    return calibration_words(calibration) if calibration.cases else ""


def _first_line(rung: Rung) -> str:
    return (inspect.getdoc(type(rung)) or "").partition("\n")[0]


def _row(trial: Trial, about: str) -> LadderRow:
    decision = trial.verdict.decision
    return LadderRow(
        level=trial.level,
        name=short(trial.rung, 40),
        predicted=predicted_words(trial.prediction) if trial.prediction else "",
        measured=measured_words(trial.verdict) if trial.verdict.speed else "",
        accuracy=accuracy_words(trial.verdict),
        style=decision.value,
        decision=decision_words(decision),
        reason=short(reason_words(trial), _MAX_REASON),
        about=about,
    )


def _figure(climb: ClimbRecords) -> tuple[str, str]:
    before, after = climb.summary.baseline, climb.summary.result
    ratio = positive(climb.summary.speedup)
    if before is None or after is None or ratio is None:
        num = len(climb.kept)
        so_far = "" if climb.is_summary_damaged else "so far"
        return f"{num} rung{'' if num == 1 else 's'} kept", so_far
    if climb.summary.is_as_written:
        return "No rung kept", rough_time(after.total_s)
    times = times_words(climb.summary)
    bounds = climb.summary.speedup_bounds
    if pairs := pairs_words(climb.summary):
        times = f"{times}, {pairs}"
    if over_seeds := over_seeds_words(climb.summary):
        times = f"{over_seeds}, {times}"
    if bounds is not None:
        times = f"{gain_interval(bounds).partition(' ')[2]}, {times}"
    if climb.summary.aim is Aim.ACCURACY:
        return _accuracy_figure(climb.summary), times
    if is_within_noise(climb.summary):
        return "No clear difference", times
    if ratio >= 1.05:
        return f"{gain(ratio)} faster", times
    return ("As fast as before" if ratio > 0.95 else f"{gain(ratio)} as fast"), times


def _accuracy_figure(summary: ClimbSummary) -> str:
    """Return the result of a climb for accuracy: on test, else on held-out examples."""
    change = summary.test_change
    if change is not None:
        return f"{points(change.estimate)} points on test"
    return next(iter(reversed(errors_words(summary))), "Not compared").capitalize()


def _next_words(climb: ClimbRecords, status: str) -> str:
    if climb.summary.result is None or status != "finished":
        return "If the climb is not active, run the same command again to resume it."
    if climb.summary.next is not None:
        name = titled(short(climb.summary.next.rung))
        return f"{name} is the most promising step beyond this machine; see below."
    return "Train with the recipe in `config.yaml`, or use the model with `stepladder predict`."


def _caption(climb: ClimbRecords) -> tuple[str, str]:
    """Return what the figure is, and how its times were measured."""
    summary = climb.summary
    if climb.is_summary_damaged:
        return "The result of the climb is unknown, because climb.json is damaged.", ""
    if summary.baseline is None or summary.result is None:
        return (
            "The climb has not ended, so the total gain is not known yet.",
            "The total gain is not the product of the gains of single rungs.",
        )
    if summary.is_as_written:
        said = unchanged_words(summary)
        return f"{said[0].upper()}{said[1:]}.", "The time is that of the final training."
    source = _source_words(summary, summary.baseline)
    if summary.aim is Aim.ACCURACY:
        errors = ", ".join(errors_words(summary)) or "the errors of both were not measured"
        return f"The original job, compared with all kept remedies: {errors}.", source
    return "Time to a trained model: the original job, and with all kept speed-ups.", source


def _source_words(summary: ClimbSummary, baseline: Baseline) -> str:
    """Return how the times were measured."""
    words = spread_words(summary)
    noise = f" ({words})" if words else ""
    if summary.num_pairs:
        source = (
            f"Blocks of both were timed in turn after the climb, {summary.num_pairs} pairs, and "
            f"extrapolated to their epochs{noise}."
        )
        if summary.result is not None:
            source += f" The final training itself took {rough_time(summary.result.total_s)}."
        return f"{source}{_load_words(summary)}"
    if summary.result is not None and summary.result.paired_s is not None:
        source = "Both were extrapolated to their epochs, with the times of the same steps."
        return f"{source}{_load_words(summary)}"
    if not baseline.is_extrapolated:
        return f"Both were run in full{noise}.{_load_words(summary)}"
    epochs = baseline.measured_epochs
    measured = f"{epochs:.2g} measured epochs" if epochs is not None else "fewer epochs"
    source = f"The first time is extrapolated from {measured}{noise}; the second is measured."
    return f"{source}{_load_words(summary)}"


def _load_words(summary: ClimbSummary) -> str:
    """Return how much other processes used of the machine, by phase; empty if unknown."""
    names = {"trials": "trials", "training": "final training", "pairs": "pairs"}
    parts = [
        f"{load.cores_missing:.1f} during the {names[load.name]}"
        for load in summary.loads
        if load.name in names
    ]
    return f" Cores used by other processes: {', '.join(parts)}." if parts else ""


def _result_words(summary: ClimbSummary) -> tuple[str, ...]:
    """Return the result on test in a sentence, and notes on how it was measured."""
    before, after = summary.baseline, summary.result
    if before is None or after is None or summary.is_as_written:
        return ("",)
    num = f", over {examples_words(summary)}, evaluated once" if summary.num_test else ""
    replayed = before.provenance is Provenance.REPLAYED
    how = "The first accuracy is by replay: only the head was trained." if replayed else ""
    notes = (how, _alike_words(summary))
    loss = summary.loss_change
    if before.test_accuracy is not None and after.test_accuracy is not None:
        shares = f"{percent(before.test_accuracy)} → {percent(after.test_accuracy)}"
        change = summary.test_change
        if change is None:
            return f"Test accuracy {shares}{num}: not compared.", how
        also = f"{_loss_words(summary, loss)}; lower is better." if loss else ""
        difference = f" (difference {plus_minus(change)} points {ONE_EACH}{num})"
        return f"Test accuracy {shares}{difference}.", also, *notes
    if loss is not None:
        return f"{_loss_words(summary, loss)}{num}; lower is better.", *notes
    return ("The results on test were not compared.",)


def _alike_words(summary: ClimbSummary) -> str:
    if not summary.learns_alike:
        return ""
    return (
        "The kept rungs change only the rounding; two training runs of one recipe may differ as "
        "much."
    )


def _loss_words(summary: ClimbSummary, change: Interval) -> str:
    losses = losses_words(summary)
    if not losses or summary.baseline is None:
        return f"Test loss changed by {loss_interval(change)}"
    return f"Test loss {losses} (difference {loss_interval(change, summary.baseline.test_loss)})"


def _facts(climb: ClimbRecords) -> list[Fact]:
    summary = climb.summary
    facts = []
    if summary.climb_s is not None:
        facts.append(Fact(value=rough_time(summary.climb_s), label="duration of the climb"))
    num_tried = len({trial.rung for trial in climb.trials})
    if num_tried:
        facts.append(Fact(value=f"{len(climb.kept)} of {num_tried}", label="tried rungs were kept"))
    before, after = summary.baseline, summary.result
    if before and after and before.epochs is not None and after.epochs is not None:
        epochs = f"{baseline_epochs(before)} → {after.epochs:.3g}"
        facts.append(Fact(value=epochs, label="epochs"))
    if before and before.val_accuracy is not None:
        val = percent(before.val_accuracy)
        if after and after.val_accuracy is not None:
            val = f"{val} → {percent(after.val_accuracy)}"
        facts.append(Fact(value=val, label="validation accuracy"))
    if summary.max_accuracy_loss is not None:
        points = f"{100 * summary.max_accuracy_loss:.3g}"
        allowed = f"{points} point{'' if points == '1' else 's'}"
        facts.append(Fact(value=allowed, label="accuracy loss allowed per rung"))
    if summary.budget_s is not None:
        facts.append(Fact(value=rough_time(summary.budget_s), label="budget"))
    if summary.num_from_ledger:
        facts.append(
            Fact(value=str(summary.num_from_ledger), label="verdicts reused from earlier climbs")
        )
    return facts


def has_undecided(climb: ClimbRecords) -> bool:
    """Return True if a rung is undecided because of noise."""
    return any(trial.verdict.decision is Decision.UNDECIDED for trial in climb.trials)

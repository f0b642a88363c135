"""Every trial in detail: its samples, its prediction, and the options it changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.ladder.summary.wording import (
    accuracy_words,
    decision_words,
    epoch_bounds,
    measured_words,
)
from stepladder.records.files import Json
from stepladder.records.ladder import Prediction, Trial, Verdict
from stepladder.records.profile import EpochRange, TrainingTime
from stepladder.reporting.charts.curves import Figure
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.charts.scales import tick_label
from stepladder.reporting.ladder.charts import sample_chart, time_unit
from stepladder.reporting.ladder.profile import PART_WORDS
from stepladder.training.output.events import redacted
from stepladder.training.output.wording import rough_time

MAX_TRIALS = 40
_MAX_NUMBERS = 40
_NOTHING = {"", "0", "0 s"}  # a part without any time is left out
_TOTAL = "total"
_KEYS = (("train", "before"), ("val", "with the rung"))


@dataclass(frozen=True, kw_only=True)
class PartRow:
    """A part of the time to a trained model: before, predicted, and measured."""

    name: str
    before: str
    predicted: str
    after: str


@dataclass(frozen=True, kw_only=True)
class TrialDetail:
    """One trial in detail.

    Attributes:
        figures: charts of its samples.
        samples: its samples, as (name, numbers).
        change: options, as (name, before, after).
        parts: parts of the time; empty if it was not measured.
        inputs: inputs of the prediction, as (name, number).
        predicted_by: source of the prediction, a sentence.
        facts: cost, seed, code, machine.
    """

    level: int
    name: str
    style: str
    decision: str
    words: str
    figures: tuple[Figure, ...]
    samples: tuple[tuple[str, str], ...]
    change: tuple[tuple[str, str, str], ...]
    parts: tuple[PartRow, ...]
    inputs: tuple[tuple[str, str], ...]
    predicted_by: str
    facts: str


def trial_details(trials: Sequence[Trial]) -> list[TrialDetail]:
    """Return the details of at most the first forty trials."""
    return [_detail(trial) for trial in trials[:MAX_TRIALS]]


def _detail(trial: Trial) -> TrialDetail:
    verdict = trial.verdict
    word = "accuracy " if verdict.accuracy is not None else ""
    words = (measured_words(verdict), f"{word}{accuracy_words(verdict)}")
    prediction = trial.prediction
    inputs = prediction.inputs.items() if prediction else ()
    return TrialDetail(
        level=trial.level,
        name=short(trial.rung, 40),
        style=verdict.decision.value,
        decision=decision_words(verdict.decision),
        words=", ".join(word for word in words if word),
        figures=tuple(_figures(trial)),
        samples=tuple(_samples(trial)),
        change=tuple(
            (short(name, 60), _value(old), _value(new))
            for name, (old, new) in list(trial.change.items())[:_MAX_NUMBERS]
        ),
        parts=tuple(_parts(trial)),
        inputs=tuple((short(k, 40), f"{v:.4g}") for k, v in list(inputs)[:_MAX_NUMBERS]),
        predicted_by=_predicted_by(prediction),
        facts=_facts(trial),
    )


def _figures(trial: Trial) -> list[Figure]:
    size_s, unit = time_unit((*trial.before_s, *trial.after_s))
    blocks = sample_chart(
        [value / size_s for value in trial.before_s],
        [value / size_s for value in trial.after_s],
        title=f"Time to a trained model by block in {unit}, before and with the rung",
    )
    epochs = sample_chart(
        trial.before_epochs,
        trial.after_epochs,
        title="Epochs by seed, before and with the rung",
    )
    accuracies = sample_chart(
        [100 * share for share in trial.before_accuracy],
        [100 * share for share in trial.after_accuracy],
        title="Held-out accuracy by training in %, before and with the rung",
    )
    how = ", by replay" if trial.verdict.is_replayed else ""
    found = []
    if blocks is not None:
        found.append(
            Figure(title=f"Time to a trained model, by block ({unit})", svg=blocks, keys=_KEYS)
        )
    if epochs is not None:
        found.append(Figure(title=f"Epochs, by seed{how}", svg=epochs, keys=_KEYS))
    if accuracies is not None:
        title = f"Held-out accuracy, by training{how} (%)"
        found.append(Figure(title=title, svg=accuracies, keys=_KEYS))
    return found


def _samples(trial: Trial) -> list[tuple[str, str]]:
    pairs = zip(trial.before_s, trial.after_s, strict=False)
    ratios = [old / new for old, new in pairs if new]
    rows = (
        ("seconds before", trial.before_s),
        ("seconds with the rung", trial.after_s),
        ("times faster", ratios),
        ("epochs before", trial.before_epochs),
        ("epochs with the rung", trial.after_epochs),
        ("accuracy before", trial.before_accuracy),
        ("accuracy with the rung", trial.after_accuracy),
    )
    return [(name, _numbers(values)) for name, values in rows if values]


def _numbers(values: Sequence[float]) -> str:
    shown = ", ".join(f"{value:.4g}" for value in values[:_MAX_NUMBERS])
    return shown if len(values) <= _MAX_NUMBERS else f"{shown}, … ({len(values)} in total)"


def _parts(trial: Trial) -> list[PartRow]:
    predicted = trial.prediction.time if trial.prediction else None
    times = (trial.before, predicted, trial.after)
    if trial.before is None and trial.after is None and predicted is None:
        return []
    ranges = (trial.before_range, None, trial.after_range)
    by_time = [_part_values(*pair) for pair in zip(times, ranges, strict=True)]
    names = dict.fromkeys(name for values in by_time for name in values if name != _TOTAL)
    return [
        PartRow(name=name, before=cells[0], predicted=cells[1], after=cells[2])
        for name in (*names, _TOTAL)
        if any(set(cells := [values.get(name, "") for values in by_time]) - _NOTHING)
    ]


def _part_values(time: TrainingTime | None, over_seeds: EpochRange | None) -> dict[str, str]:
    if time is None:
        return {}
    once = {
        PART_WORDS.get(name, f"{short(name)}, once"): rough_time(s)
        for name, s in time.one_time_s.items()
    }
    return {
        "time per step": rough_time(time.step_s),
        "steps per epoch": tick_label(time.steps_per_epoch),
        "epochs": _epochs(time, over_seeds),
        "time per validation": rough_time(time.validation_s),
        "validations": tick_label(time.num_validations),
        "checkpoints": rough_time(time.checkpoint_s),
        **once,
        _TOTAL: rough_time(time.total_s),
    }


def _epochs(time: TrainingTime, over_seeds: EpochRange | None) -> str:
    """Return the mean number of epochs that the times are for, and its range over seeds."""
    mean = tick_label(float(f"{time.epochs:.3g}"))
    return mean if over_seeds is None else f"{mean} ({epoch_bounds(over_seeds)})"


def _predicted_by(prediction: Prediction | None) -> str:
    if prediction is None:
        return "Not predicted."
    note = f": {short(prediction.note, 300)}" if prediction.note else ""
    return f"Recorded before the trial; {prediction.provenance.value}{note}."


def _facts(trial: Trial) -> str:
    facts = [f"the trial took {rough_time(trial.took_s)}" if trial.took_s else ""]
    facts.append(_gap_words(trial.verdict))
    facts.append(f"seed {trial.seed}")
    named = (("code", trial.commit), ("machine", trial.machine), ("recipe before", trial.recipe))
    facts += [f"{name} {short(value, 17)}" for name, value in named if value]
    return "; ".join(fact for fact in facts if fact)


def _gap_words(verdict: Verdict) -> str:
    """Return the change of the generalisation gap; empty if it was not measured."""
    before, after = verdict.gap_before, verdict.gap_after
    if before is None or after is None:
        return ""
    if verdict.accuracy is not None:
        how = f"{100 * before:.1f} to {100 * after:.1f} points (training minus held-out accuracy)"
    else:
        how = f"{before:.2g} to {after:.2g} (held-out minus training loss)"
    return f"generalisation gap {how}"


def _value(value: Json) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return redacted(short(text, 80))

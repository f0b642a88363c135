"""The page and the terminal output of `stepladder diagnose`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from stepladder.diagnosis.diagnose import Diagnosed
from stepladder.diagnosis.fit.curves import Curves
from stepladder.diagnosis.fit.remedies import BY_HAND, said_of
from stepladder.records.diagnosis import (
    Chain,
    Confidence,
    Diagnosis,
    Fit,
    FitKind,
    LearningCurve,
    LrVerdict,
    RangeTest,
    Use,
)
from stepladder.records.findings import Outcome
from stepladder.reporting.charts.curves import Figure, machine_figures
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.charts.scales import NUMBER, SHARE
from stepladder.reporting.headline import PHASE_WORDS, failed_check
from stepladder.reporting.html import template
from stepladder.reporting.links import save_page
from stepladder.reporting.tables import RunRecords, read_run
from stepladder.training.output.wording import duration, percent

DIAGNOSIS_PAGE = "diagnosis.html"
_MIB = 1024**2
_LEAST_SHOWN = 0.1  # MiB/s or Wh: the y axis covers at least this range
# Title, unit, and (key of the sample, its name, its style).
_TRAFFIC = (
    (
        "Disk",
        "MiB/s",
        (
            ("disk_read_bytes_per_s", "read", "val"),
            ("disk_write_bytes_per_s", "written", "train"),
        ),
    ),
    ("Network (whole machine)", "MiB/s", (("network_bytes_per_s", "in and out", "val"),)),
    ("Energy", "Wh", (("energy_wh", "since the start", "val"),)),
)
KINDS = {
    FitKind.UNDERFIT: "underfitting",
    FitKind.GOOD_FIT: "good fit",
    FitKind.OVERFIT: "overfitting",
    FitKind.NOT_YET_KNOWN: "fit not yet known",
}
_SURENESS = {
    Confidence.SURE: "certain",
    Confidence.LIKELY: "likely",
    Confidence.WEAK: "with weak evidence",
}
_VERDICTS = {
    LrVerdict.TOO_LOW: "too low",
    LrVerdict.IN_RANGE: "within the usable range",
    LrVerdict.TOO_HIGH: "too high",
    LrVerdict.NOT_TOLD: "unknown, as the loss never decreased by more than its noise",
}


def headline(fit: Fit) -> str:
    """Return a fit in a few words."""
    words = KINDS[fit.kind]
    if fit.is_overconfident:
        words += " and over-confident"
    if fit.kind is not FitKind.NOT_YET_KNOWN:
        words += f", {_SURENESS[fit.confidence]}"
    if fit.is_learning_rate_too_high:
        words += ": the learning rate looks too high"
    return words


def said_of_range(test: RangeTest) -> str:
    """Return the result of a range test."""
    verdict = _VERDICTS[test.verdict]
    if test.verdict is LrVerdict.IN_RANGE and test.low is not None and test.lr < test.low:
        verdict = "slightly below the usable range, but it may still work"
    said = f"learning rate {test.lr:.3g}: {verdict}"
    if test.low is not None and test.high is not None and test.suggested is not None:
        said += (
            f" ({test.low:.2g} to {test.high:.2g}; {test.suggested:.2g} is well within), "
            f"measured with {len(test.lrs)} steps in {duration(test.took_s)}"
        )
    return said


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as text for a terminal."""
    return "\n".join(_lines(diagnosis))


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"{diagnosis.run} ({diagnosis.status}): {headline(diagnosis.fit)}"
    yield from (f"  {sentence}" for sentence in diagnosis.fit.evidence)
    yield f"  {diagnosis.terms}"
    if diagnosis.range_test is not None:
        yield f"  {said_of_range(diagnosis.range_test)}"
    if diagnosis.learning_curve is not None:
        yield f"  {said_of(diagnosis.learning_curve)}"
    for finding in diagnosis.findings:
        if finding.outcome is not Outcome.NOT_APPLICABLE:
            yield f"  {finding.evidence}"
    if diagnosis.remedies:
        yield ""
        yield "Try in this order:"
        for idx, remedy in enumerate(diagnosis.remedies, start=1):
            yield f"  {idx}. {remedy.name}: {remedy.why}"
        commands = dict.fromkeys(remedy.command for remedy in diagnosis.remedies if remedy.command)
        yield from (f"     {command}" for command in list(commands)[:3])
    if diagnosis.chain is not None:
        yield ""
        yield from _chain_lines(diagnosis.chain)
    if diagnosis.machine.said:
        yield ""
        yield "The machine:"
        yield from (f"  {sentence}" for sentence in diagnosis.machine.said)
    if diagnosis.could_not:
        yield ""
        yield "Unknown:"
        yield from (f"  {sentence}" for sentence in diagnosis.could_not)


def _chain_lines(chain: Chain) -> Iterator[str]:
    yield f"Stages (final error {chain.end_error:.4g}, {chain.num_examples:,} examples):"
    for stage in chain.stages:
        words = [f"{percent(stage.time_frac)} of the time"]
        if stage.own_error is not None:
            words.append(f"own error {stage.own_error:.4g}")
        if stage.gain is not None:
            words.append(f"final error {stage.gain:.4g} ± {stage.gain_sem:.2g} lower if perfect")
        yield f"  {stage.name}: {', '.join(words)}"
    first = chain.improve_first
    yield f"  improve first: {first}" if first else "  no stage has an effect larger than the noise"


def write_diagnosis_page(run: Path, found: Diagnosed) -> Path:
    """Write RUN/diagnosis.html and return its path."""
    path = run / DIAGNOSIS_PAGE
    save_page(path, render_diagnosis(found, read_run(run)))
    return path


def render_diagnosis(found: Diagnosed, records: RunRecords) -> str:
    """Return the page as HTML."""
    diagnosis = found.diagnosis
    test, curve = diagnosis.range_test, diagnosis.learning_curve
    measured = []
    if test is not None:
        measured.append((range_figure(test), said_of_range(test)))
    if curve is not None:
        measured.append((learning_curve_figure(curve), said_of(curve)))
    return template("diagnosis.html").render(
        name=diagnosis.run,
        status=diagnosis.status,
        verdict=headline(diagnosis.fit).capitalize(),
        fit=diagnosis.fit,
        terms=diagnosis.terms,
        curves=curve_figures(found.curves, diagnosis),
        measured=measured,
        remedies=diagnosis.remedies,
        by_hand=[remedy.name for remedy in diagnosis.remedies if remedy.name in BY_HAND],
        chain=diagnosis.chain,
        machine=diagnosis.machine,
        phases=[
            (PHASE_WORDS.get(name, name), percent(share))
            for name, share in diagnosis.machine.phases.items()
        ],
        uses=[_use_row(use) for use in diagnosis.machine.uses],
        machine_figures=[*machine_figures(records), *traffic_figures(records)],
        findings=[
            finding.evidence
            for finding in diagnosis.findings
            if finding.outcome is not Outcome.NOT_APPLICABLE
        ],
        could_not=diagnosis.could_not,
        checks=records.checks,
        failed=failed_check(records),
        took=duration(diagnosis.took_s),
        error=_error,
    )


def curve_figures(curves: Curves, diagnosis: Diagnosis) -> list[Figure]:
    """Draw training as logged and evaluated like validation, and validation with its noise."""
    best = diagnosis.fit.best_step
    figures = []
    for name, keys in (
        ("Loss", ("train_loss", "equal_train_loss", "val_loss")),
        ("Accuracy", ("train_accuracy", "equal_train_accuracy", "val_accuracy")),
    ):
        series = [
            _series(curves, keys[0], "training, as logged", "train"),
            _series(curves, keys[1], "training, evaluated like validation", "train equal"),
            _series(curves, keys[2], "validation", "val"),
        ]
        drawn = [item for item in series if item.xs]
        svg = line_chart(
            drawn,
            title=f"{name} of training and validation over steps",
            x_label="steps",
            may_be_log=name == "Loss",
            y_unit=NUMBER if name == "Loss" else SHARE,
            mark=None if best is None else (float(best), "best"),
            y_limits=None if name == "Loss" else (0.0, 1.0),
        )
        if svg is not None:
            figures.append(
                Figure(title=name, svg=svg, keys=tuple((item.style, item.name) for item in drawn))
            )
    return figures


def range_figure(test: RangeTest) -> Figure:
    """Draw the loss over the learning rate, with the rate of the run marked."""
    logs = [math.log10(lr) for lr in test.lrs]
    series = [Series(name="smoothed loss", style="val", xs=logs, ys=list(test.losses))]
    svg = line_chart(
        series,
        title="Training loss over the learning rate",
        x_label="log10 of the learning rate",
        mark=(math.log10(test.lr), "this run"),
        y_limits=(0.0, 2 * test.losses[0]) if test.losses else None,  # clip diverged losses
    )
    return Figure(title="Range test", svg=svg, note="" if svg else "Too few steps.")


def learning_curve_figure(curve: LearningCurve) -> Figure:
    """Draw the measured errors, and the fit up to twice the data."""
    sizes = sorted(set(curve.sizes))
    low, high = math.log(sizes[0]), math.log(2 * sizes[-1])
    xs = [math.exp(low + (high - low) * idx / 40) for idx in range(41)]
    fit = Series(
        name="fit, up to twice the data",
        style="train",
        xs=xs,
        ys=[curve.a * x**-curve.b + curve.c for x in xs],
    )
    means = [
        sum(error for size, error in zip(curve.sizes, curve.errors, strict=True) if size == n)
        / curve.sizes.count(n)
        for n in sizes
    ]
    measured = Series(
        name=f"measured, mean of {curve.num_seeds} training runs",
        style="val",
        xs=sizes,
        ys=means,
        tips=[
            f"{n:,}: {_error(mean, is_share=curve.is_share)}"
            for n, mean in zip(sizes, means, strict=True)
        ],
    )
    svg = line_chart(
        [fit, measured],
        title="Validation error over the number of training examples",
        x_label="training examples",
        y_unit=SHARE if curve.is_share else NUMBER,
        y_covers=(0.0, curve.high_at_double),
    )
    keys = ((fit.style, fit.name), (measured.style, measured.name))
    return Figure(title="Learning curve", svg=svg, keys=keys)


def traffic_figures(records: RunRecords) -> list[Figure]:
    """Draw disk, network and energy usage over the time of the run."""
    samples = records.of("system")
    figures = []
    for title, unit, parts in _TRAFFIC:
        scale = _MIB if unit == "MiB/s" else 1.0
        series = []
        for key, name, style in parts:
            pairs = [(event.get("elapsed_s"), event.get(key)) for event in samples]
            points = [
                (float(t), float(y) / scale)
                for t, y in pairs
                if isinstance(t, (int, float)) and isinstance(y, (int, float))
            ]
            if len(points) > 1:
                xs, ys = zip(*points, strict=True)
                series.append(Series(name=name, style=style, xs=xs, ys=ys))
        svg = line_chart(
            series,
            title=f"{title}, {unit} over seconds",
            x_label="seconds",
            y_covers=(0.0, _LEAST_SHOWN),
        )
        if svg is not None:
            keys = tuple((item.style, item.name) for item in series)
            figures.append(Figure(title=f"{title}, {unit}", svg=svg, keys=keys))
    return figures


def _series(curves: Curves, key: str, name: str, style: str) -> Series:
    points = [point for point in curves.points if getattr(point, key) is not None]
    noise = [point.val_loss_sem or 0.0 for point in points] if key == "val_loss" else None
    return Series(
        name=name,
        style=style,
        xs=[float(point.step) for point in points],
        ys=[float(getattr(point, key)) for point in points],
        noise=noise if noise and any(noise) else None,
        tips=[f"step {point.step:,}: {getattr(point, key):.4g}" for point in points]
        if "equal" in style
        else (),
    )


def _use_row(use: Use) -> tuple[str, str, str, str]:
    """Return name, mean and percentiles of a resource as text."""
    scale, unit = 1.0, use.unit
    if unit.startswith("bytes"):
        scale, unit = _MIB, unit.replace("bytes", "MiB")
    low, mean, high = (f"{value / scale:,.1f} {unit}" for value in (use.low, use.mean, use.high))
    return use.name, mean, low, high


def _error(value: float | None, *, is_share: bool = False) -> str:
    if value is None:
        return "–"
    return percent(value) if is_share else f"{value:.4g}"

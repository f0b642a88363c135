"""The validation as a table: every published point, good and bad."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from stepladder.planning.published.cases import Case
from stepladder.planning.published.validation import Checked, Validation

_FAR = 0.12
_VERY_FAR = 0.20


def validation_text(found: Validation) -> str:
    """Return all points, the fits and the summary as text."""
    rows: list[tuple[str, ...]] = [
        ("point", "role", "published", "predicted", "error", "by data sheet")
    ]
    for case in _cases(found):
        rows += [_row(point) for point in found.points if point.case is case]
    widths = [max(len(row[idx]) for row in rows) for idx in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if idx < 2 else cell.rjust(width)
            for idx, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    fits = [
        f"fit {idx}: {log.number} {log.value:.3g}, to {log.ids[0]} and {log.ids[1]} ({log.case})"
        for idx, log in enumerate(found.fits, start=1)
    ]
    return "\n".join([*lines, "", *fits, "", *summary_lines(found)]) + "\n"


def summary_lines(found: Validation) -> list[str]:
    """Return how far off the predictions are, in sentences."""
    predicted = found.of("predicted")
    if not predicted:
        return [f"{len(found.points)} published points, of which none is left to predict"]
    errors = [abs(point.error_frac) for point in predicted]
    near = sum(error <= _FAR for error in errors)
    bands = [*predicted, *found.of("fitted")]
    inside = sum(point.is_in_band for point in bands)
    width = median(point.band_frac for point in bands)
    lines = [
        f"{len(found.points)} published points: {len(found.of('base'))} are the smallest of their "
        f"case, {len(found.of('fitted'))} are fitted, {len(predicted)} predicted, "
        f"{len(found.of('shown'))} are shown and not counted",
        f"error of the predicted: median {100 * median(errors):.1f} %, {near} of {len(errors)} "
        f"within 12 %, the largest {100 * max(errors):.1f} %",
        f"with data sheets only: {inside} of {len(bands)} within the stated band, which is "
        f"±{100 * width:.0f} % in the median",
    ]
    strange = [point.point.id for point in found.points if point.point.is_superlinear]
    if strange:
        lines.append(
            f"faster than linear, so of another baseline, and not fitted: {', '.join(strange)}"
        )
    return lines


def validation_page(found: Validation) -> str:
    """Return the table of the documentation as Markdown."""
    head = ["Case and point", "Devices", "Published", "Predicted", "Error", "By data sheet", "Role"]
    rows = []
    for case in _cases(found):
        rows.append([f"**{case.name}**", *[""] * 6])
        for point in found.points:
            if point.case is case:
                cells = _row(point)
                inside = "" if point.is_in_band or point.role == "base" else " ✗"
                rows.append(
                    [cells[0], str(point.point.gpus), *cells[2:5], cells[5] + inside, cells[1]]
                )
    table = [_line(head), _line(["---", "--:", "--:", "--:", "--:", "--:", "---"])]
    table += [_line(row) for row in rows]
    fits = [
        f"{idx}. {log.case}: {_NUMBERS[log.number].format(log.value)}, to `{log.ids[0]}` and "
        f"`{log.ids[1]}`"
        for idx, log in enumerate(found.fits, start=1)
    ]
    summary = [f"- {line[0].upper()}{line[1:]}." for line in summary_lines(found)]
    return "\n".join([*summary, "", *table, "", "Fits, in their order:", "", *fits]) + "\n"


_NUMBERS = {
    "spread": "spread of a step over devices {:.2%}",
    "driver_example_s": "driver {:.2e} s for an example",
}


def _cases(found: Validation) -> Iterable[Case]:
    return dict.fromkeys(point.case for point in found.points)


def _row(point: Checked) -> tuple[str, ...]:
    low, high = sorted(point.band)
    shown = point.role != "base"
    return (
        point.point.id,
        point.role,
        f"{number(point.point.value)} {point.point.unit}",
        number(point.predicted) if shown else "",
        f"{100 * point.error_frac:+.1f} %" if shown else "",
        f"{number(low)} to {number(high)}" if shown else "",
    )


def number(value: float) -> str:
    """Return a number with three or four digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

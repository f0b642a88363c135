"""The page and the terminal output of `stepladder plan`."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from markupsafe import Markup

from stepladder.planning.answer import point_words
from stepladder.planning.front import price_of
from stepladder.records.from_json import read_record
from stepladder.records.plan import NETWORK_FACTORS, PLAN_FILE, Bounds, Plan, PlanInput, PlanPoint
from stepladder.reporting.charts import bars
from stepladder.reporting.charts.curves import Figure
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.charts.scales import NUMBER, Unit
from stepladder.reporting.html import Script, script, template
from stepladder.reporting.links import save_page
from stepladder.training.output.wording import clean, percent, rough_time

PLAN_PAGE: Final = "plan.html"
_MOST_LINES: Final = 9  # as many as there are colors
_MOST_ROWS: Final = 40  # in the terminal
_STYLES: Final = {
    "compute": "forward",
    "communication": "validation",
    "stragglers": "augment",
    "driver": "to_device",
    "data": "data_wait",
    "bubble": "checkpoint",
}
_HOUR_S: Final = 3600.0
_WIDE: Final = 10.0
"""Ratio of times from which an axis is logarithmic."""


def plan_text(found: Plan) -> str:
    """Return the trainings as a table, the refusals and the recommendation."""
    columns = _columns(found)
    rows = [_head(columns)]
    points = sorted(found.points, key=lambda one: one.total_s.likely)
    shown = points if len(points) <= _MOST_ROWS else _shown(points)
    rows += [_cells(point, columns) for point in shown]
    lines = [found.job, "", *_table(rows), ""]
    if len(shown) < len(points):
        lines.append(
            f"{len(points)} trainings were planned, of which these {len(shown)} are the best, and "
            f"the fastest of each way; {PLAN_FILE} has all"
        )
    lines.append("* no other is faster and cheaper; † where more devices stop paying")
    if found.now is not None:
        lines.append(f"now: {point_words(found.now)}")
    lines += [f"not possible: {text}" for text in found.refused[:5]]
    if len(found.refused) > 5:
        lines.append(f"and {len(found.refused) - 5} more that are not possible")
    lines += [f"note: {text}" for text in found.notes]
    lines.append(f"answer: {found.answer}")
    return clean("\n".join(lines)) + "\n"


def _shown(points: Sequence[PlanPoint]) -> list[PlanPoint]:
    """Return the best points, and the fastest of each way; sorted by time, as they are."""
    first = {(one.precision, _way(one)): one for one in reversed(points) if one.num > 1}
    return [one for one in points if one.is_best or one in first.values()]


def write_plan_page(folder: Path) -> Path:
    """Write FOLDER/plan.html from plan.json.

    Raises:
        DataError: if plan.json does not exist or cannot be read.
    """
    path = folder / PLAN_PAGE
    save_page(path, render_plan(read_record(Plan, folder / PLAN_FILE)))
    return path


def render_plan(found: Plan) -> str:
    """Return the page as HTML."""
    knee = next(point for point in found.points if point.is_knee)
    points = sorted(found.points, key=lambda one: one.total_s.likely)
    columns = _columns(found)
    best = [point for point in points if point.is_best]
    return template("plan.html").render(
        script=_script(),
        found=found,
        figure=rough_time(knee.total_s.likely),
        noise=_range(knee.total_s, rough_time),
        caption=_place(knee),
        head=_head(columns),
        figures=[_time_figure(points), _front_figure(points)],
        rows=[(_cells(point, columns), point, _as_json(point)) for point in points],
        legend=[
            (f"ph-{style}", name)
            for name, style in _STYLES.items()
            if any(point.parts_s.get(name, 0.0) > 0 for point in best)
        ],
        split=[(_place(point), _bar(point), point.limit) for point in best],
        inputs=[_input(one) for one in found.inputs],
        network=len(NETWORK_FACTORS) // 2,
        factors=json.dumps(NETWORK_FACTORS),
    )


def _script() -> Script:
    """Return the script of the charts and of the sliders."""
    own = files("stepladder.reporting").joinpath("templates/plan.js").read_text(encoding="utf-8")
    text = f"{script().text}\n{own}"
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Script(text=Markup(text), source=f"sha256-{digest}")


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Which columns a plan needs beside those of all plans."""

    has_cost: bool
    has_precisions: bool


def _columns(found: Plan) -> _Columns:
    return _Columns(
        has_cost=any(point.cost is not None for point in found.points),
        has_precisions=len({point.precision for point in found.points}) > 1,
    )


def _head(columns: _Columns) -> tuple[str, ...]:
    return (
        *("machines", "batch", "each", "exchange"),
        *(("precision",) if columns.has_precisions else ()),
        *("step", "epoch", "examples", "to the end", "efficiency"),
        *(("cost",) if columns.has_cost else ()),
        "limit",
    )


def _cells(point: PlanPoint, columns: _Columns) -> tuple[str, ...]:
    mark = "†" if point.is_knee else "*" if point.is_best else ""
    each = f"{point.micro_batch:,}"
    if point.accumulation > 1:
        each = f"{point.accumulation} × {each}"
    how = ", ".join(part for part in (point.all_reduce, _kind(point)) if part)
    cells = (
        f"{_place(point)}{mark}",
        f"{point.batch:,}",
        each,
        how,
        *((point.precision,) if columns.has_precisions else ()),
        step_words(point.step_s.likely),
        rough_time(point.epoch_s.likely),
        f"{100 * point.more_examples_frac:+.0f} %",
        f"{rough_time(point.total_s.likely)}{_range(point.total_s, rough_time)}",
        percent(point.efficiency, 0),
    )
    cost = "unknown" if point.cost is None else f"{point.cost.likely:,.3g}"
    return (*cells, *((cost,) if columns.has_cost else ()), point.limit.partition(": ")[2])


def step_words(seconds: float) -> str:
    """Return the time of a step in three digits."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _place(point: PlanPoint) -> str:
    devices = f" × {point.devices}" if point.devices > 1 else ""
    return f"{point.hosts} × {point.machine}{devices}"


def _kind(point: PlanPoint) -> str:
    """Return how the devices share the work, unless each has a copy of the model."""
    return point.kind.removeprefix("data parallel").removeprefix(", ")


def _range(bounds: Bounds, say: Callable[[float], str]) -> str:
    if bounds.worst <= 1.02 * bounds.best:
        return ""
    return f" ({say(bounds.best)} to {say(bounds.worst)})"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[idx]) for row in rows) for idx in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if idx in (0, last) else cell.rjust(width)
            for idx, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _groups(points: Sequence[PlanPoint]) -> dict[str, list[PlanPoint]]:
    """Return the points of each line, by devices; one device begins each way of sharing the work.

    A name has only what is not the same for all.
    """
    ways = dict.fromkeys(_way(one) for one in points if one.num > 1) or {"": None}
    machines, batches, precisions = (
        len({getattr(one, name) for one in points}) > 1
        for name in ("machine", "batch", "precision")
    )
    found: dict[str, list[PlanPoint]] = {}
    for point in points:
        for way in ways if point.num == 1 else (_way(point),):
            parts = [point.machine] if machines else []
            parts += [f"batch {point.batch:,}"] if batches else []
            parts += [point.precision] if precisions else []
            parts += [way] if way and (len(ways) > 1 or not parts) else []
            found.setdefault(", ".join(parts) or point.machine, []).append(point)
    return {name: sorted(line, key=lambda one: one.num) for name, line in found.items()}


def _way(point: PlanPoint) -> str:
    """Return how several devices work together; on how many of them, a line has to say itself."""
    return ", ".join(part for part in (point.all_reduce, _kind(point)) if part).partition(" on ")[0]


def _time_figure(points: Sequence[PlanPoint]) -> Figure:
    """Draw the time of an epoch by the number of devices, a line for each way of training."""
    lines = [
        Series(
            name=name,
            style=f"run{number + 1}",
            xs=[float(one.num) for one in line],
            ys=[one.epoch_s.likely for one in line],
            tips=[
                f"{_place(one)}, {name}: {rough_time(one.epoch_s.likely)} an epoch; {one.limit}"
                for one in line
            ],
        )
        for number, (name, line) in enumerate(list(_groups(points).items())[:_MOST_LINES])
    ]
    return Figure(
        title="Time of an epoch by devices",
        svg=line_chart(
            lines,
            title="Seconds of an epoch by the number of devices",
            x_label="devices",
            y_unit=Unit(suffix=" s"),
            may_be_log=True,
            is_log_x=len({one.num for one in points}) > 2,
        ),
        keys=tuple((line.style, line.name) for line in lines),
    )


def _front_figure(points: Sequence[PlanPoint]) -> Figure:
    """Draw price against time: the best trainings as a line, the others as dots."""
    front = sorted((one for one in points if one.is_best), key=lambda one: one.total_s.likely)
    is_priced = all(point.cost is not None for point in points)
    unit = "price" if is_priced else "device hours"

    def value(point: PlanPoint) -> float:
        return price_of(point, is_priced=is_priced)

    def tips(some: Sequence[PlanPoint]) -> list[str]:
        return [f"{point_words(one)}; {unit} {value(one):,.3g}" for one in some]

    hours = [one.total_s.likely / _HOUR_S for one in front]
    lines = [
        Series(
            name="no other is faster and cheaper",
            style="val",
            xs=hours,
            ys=[value(one) for one in front],
            tips=tips(front),
        )
    ]
    times = [one.total_s.likely for one in points]
    others = sorted((one for one in points if not one.is_best), key=lambda one: one.total_s.likely)
    if others:
        lines.insert(
            0,
            Series(
                name="others",
                style="ideal dots",
                xs=[one.total_s.likely / _HOUR_S for one in others],
                ys=[value(one) for one in others],
                tips=tips(others),
            ),
        )
    return Figure(
        title=f"{unit.capitalize()} by time",
        svg=line_chart(
            lines,
            title=f"{unit} of the whole training by its hours",
            x_label="hours to the end",
            y_unit=NUMBER,
            may_be_log=True,
            is_log_x=max(times) > _WIDE * min(times) > 0,
        ),
        keys=tuple((line.style, line.name) for line in reversed(lines)),
    )


def _bar(point: PlanPoint) -> Markup | None:
    step_s = sum(point.parts_s.values())
    parts = [
        bars.Part(
            name=f"{_place(point)}, {name}",
            style=f"ph-{_STYLES[name]}",
            size=seconds,
            share=seconds / step_s,
        )
        for name, seconds in point.parts_s.items()
    ]
    return bars.stacked_bar(parts, title=f"Step of {_place(point)} by part")


def _as_json(point: PlanPoint) -> str:
    """Return what the sliders need of a training."""
    facts = {
        "num": point.num,
        "batch": point.batch,
        "steps": [float(f"{one:.5g}") for one in point.network_steps_s],
        "perEpoch": point.epoch_s.likely / max(point.step_s.likely, 1e-12),
        "epochs": point.epochs.likely,
        "beside": point.beside_s,
        "price": None if point.cost is None else _hourly(point.cost.likely, point.total_s.likely),
    }
    return json.dumps(facts, separators=(",", ":"))


def _hourly(cost: float, total_s: float) -> float:
    """Return the price of an hour of all machines."""
    return float(f"{cost / max(total_s, 1e-9) * _HOUR_S:.6g}")


def _input(one: PlanInput) -> tuple[str, str, str, str]:
    bounds = one.bounds
    value = f"{_digits(bounds.likely)} {one.unit}".strip()
    if bounds.best != bounds.worst:
        low, high = sorted((bounds.best, bounds.worst))
        value += f" ({_digits(low)} to {_digits(high)})"
    return one.name, value, str(one.provenance), one.source


def _digits(value: float) -> str:
    """Return a number in four digits, or as a whole one."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"

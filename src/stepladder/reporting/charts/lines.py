"""Line charts as inline SVG, with their values as JSON, from which charts.js draws them again."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from markupsafe import Markup

from stepladder.reporting.charts.scales import NUMBER, Scale, Unit, fit_scale, tick_label
from stepladder.reporting.charts.svg import chart, circle, coordinate, element, path

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 22, 34
MAX_POINTS = 240
_STRETCHES = MAX_POINTS // 2  # of a thinned series, each with its lowest and highest point


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line.

    Attributes:
        name: its name in the legend.
        style: its CSS class.
        xs, ys: its points; points with a non-finite value are left out.
        noise: one standard error of each y, drawn as a band; None: no band.
        tips: tooltip of each point; empty: no tooltips and no dots.
        means: mean point of each stretch of a thinned series; empty: not thinned.
    """

    name: str
    style: str
    xs: Sequence[float]
    ys: Sequence[float]
    noise: Sequence[float] | None = None
    tips: Sequence[str] = field(default_factory=tuple)
    means: Sequence[tuple[float, float]] = field(default_factory=tuple)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    may_be_log: bool = False,
    y_unit: Unit = NUMBER,
    mark: tuple[float, str] | None = None,
    y_limits: tuple[float, float] | None = None,
    y_covers: tuple[float, ...] = (),
    is_log_x: bool = False,
) -> Markup | None:
    """Draw lines in one chart; None if no point is finite.

    Args:
        series: the lines; the last one is drawn on top.
        title: for screen readers.
        x_label: label of the x axis.
        may_be_log: allow a logarithmic y axis.
        y_unit: unit of the y axis.
        mark: an x to mark with a vertical line, and its label.
        y_limits: clip the y axis to these values.
        y_covers: values that the y axis must include, such as zero, so that noise is not magnified.
        is_log_x: draw the x axis logarithmically; all x are above 0.
    """
    lines = [_thinned(_finite(item)) for item in series]
    lines = [item for item in lines if item.xs]
    if not lines:
        return None
    xs = [x for item in lines for x in item.xs]
    x_scale = Scale(
        low=min(0.0, *xs) if min(xs) < 0.3 * max(xs) and not is_log_x else min(xs),
        high=max(xs) if max(xs) > min(xs) else max(xs) + 1,
        start=LEFT,
        end=WIDTH - RIGHT,
        is_log=is_log_x,
    )
    y_scale = _y_scale(lines, may_be_log, y_limits)
    low, high = min((y_scale.low, *y_covers)), max((y_scale.high, *y_covers))
    y_scale = replace(y_scale, low=low, high=high)
    parts = [*_y_axis(y_scale, y_unit), *_x_axis(x_scale, x_label)]
    parts += [_band(item, x_scale, y_scale) for item in lines if item.noise is not None]
    if mark is not None and not _ok(mark[0]):
        mark = None
    if mark is not None:
        parts.append(_mark(mark, x_scale))
    for item in lines:
        parts.append(_line(item, x_scale, y_scale))
        parts += _dots(item, x_scale, y_scale)
    facts = {
        "plot": (LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM, TOP),
        "xLabel": x_label,
        "wholeX": (x_scale.low, x_scale.high),
        "fullY": (y_scale.low, y_scale.high),
        "isLog": y_scale.is_log,
        **({"isLogX": True} if is_log_x else {}),
        "factor": y_unit.factor,
        "suffix": y_unit.suffix,
        "mark": mark,
        "lines": [_values(item) for item in lines],
    }
    as_json = json.dumps(facts, separators=(",", ":"), ensure_ascii=False)
    return chart("chart", (WIDTH, HEIGHT), parts, title, data_chart=as_json)


def _finite(item: Series) -> Series:
    keep = [i for i, (x, y) in enumerate(zip(item.xs, item.ys, strict=True)) if _ok(x) and _ok(y)]
    return _picked(item, keep)


def _picked(item: Series, keep: Sequence[int]) -> Series:
    """Keep the points at these positions; unknown noise becomes 0."""
    noise = item.noise
    return replace(
        item,
        xs=[item.xs[i] for i in keep],
        ys=[item.ys[i] for i in keep],
        noise=None if noise is None else [noise[i] if _ok(noise[i]) else 0.0 for i in keep],
        tips=[item.tips[i] for i in keep] if item.tips else (),
    )


def _ok(value: float) -> bool:
    return math.isfinite(value)


def _thinned(item: Series) -> Series:
    """Keep the lowest and highest point of each segment, so that no spike is lost."""
    num = len(item.xs)
    if num <= MAX_POINTS:
        return item
    keep: set[int] = {0, num - 1}
    means = []
    for idx in range(_STRETCHES):
        stretch = range(idx * num // _STRETCHES, (idx + 1) * num // _STRETCHES)
        keep |= {min(stretch, key=item.ys.__getitem__), max(stretch, key=item.ys.__getitem__)}
        means.append((fmean(item.xs[i] for i in stretch), fmean(item.ys[i] for i in stretch)))
    return replace(_picked(item, sorted(keep)), means=means)


def _y_scale(
    lines: Sequence[Series], may_be_log: bool, limits: tuple[float, float] | None
) -> Scale:
    values = [y for item in lines for y in item.ys]
    for item in lines:
        if item.noise is not None:
            pairs = list(zip(item.ys, item.noise, strict=True))
            values += [y - n for y, n in pairs] + [y + n for y, n in pairs]
    if may_be_log:  # a band that reaches zero must not prevent a logarithmic axis
        positive = [value for value in values if value > 0]
        values = positive or values
    scale = fit_scale(values, start=HEIGHT - BOTTOM, end=TOP, may_be_log=may_be_log)
    if limits is None:
        return scale
    low, high = max(scale.low, limits[0]), min(scale.high, limits[1])
    return replace(scale, low=low, high=high)


def _y_axis(scale: Scale, unit: Unit) -> list[Markup]:
    parts = []
    for tick in scale.ticks(6):
        y = coordinate(scale(tick))
        parts.append(path("grid", f"M{LEFT} {y}H{WIDTH - RIGHT}"))
        at = {"x": LEFT - 7, "y": y, "dy": ".32em", "text_anchor": "end"}
        parts.append(element("text", unit.label(tick), class_="tick", **at))
    return parts


def _x_axis(scale: Scale, label: str) -> list[Markup]:
    base = HEIGHT - BOTTOM
    parts = [path("axis", f"M{LEFT} {base}H{WIDTH - RIGHT}")]
    for tick in scale.ticks(6):
        x = coordinate(scale(tick))
        parts.append(path("axis", f"M{x} {base}v4"))
        at = {"x": x, "y": base + 16, "text_anchor": "middle"}
        parts.append(element("text", tick_label(tick), class_="tick", **at))
    at = {"x": WIDTH - RIGHT, "y": HEIGHT - 4, "text_anchor": "end"}
    return [*parts, element("text", label, class_="unit", **at)]


def _line(item: Series, x_scale: Scale, y_scale: Scale) -> Markup:
    points = _points(item.xs, item.ys, x_scale, y_scale)
    if len(points) == 1:
        x, y = points[0].split()
        return element("circle", class_=f"dot {item.style}", cx=x, cy=y, r=_radius(item))
    return path(f"line {item.style}", f"M{'L'.join(points)}")


def _dots(item: Series, x_scale: Scale, y_scale: Scale) -> list[Markup]:
    return [
        circle(f"dot {item.style}", x_scale(x), y_scale(y), _radius(item), tip)
        for x, y, tip in zip(item.xs, item.ys, item.tips, strict=bool(item.tips))
    ]


def _radius(item: Series) -> float:
    """Return the radius of the dots; 0 if a series is a line without dots."""
    if len(item.xs) == 1:
        return 3
    if not item.tips:
        return 0
    return 2.4 if len(item.xs) <= 40 else 1.4


def _values(item: Series) -> dict[str, object]:
    """Return a series for charts.js; ys are rounded to five significant digits."""
    values: dict[str, object] = {
        "name": item.name,
        "style": item.style,
        "xs": _rounded(item.xs, 7),
        "ys": _rounded(item.ys),
        "radius": _radius(item),
    }
    if item.noise is not None:
        values["noise"] = _rounded(item.noise)
    if item.means:
        values["meanXs"] = _rounded([x for x, _ in item.means])
        values["meanYs"] = _rounded([y for _, y in item.means])
    return values


def _rounded(values: Sequence[float], digits: int = 5) -> list[float]:
    rounded = (float(f"{value:.{digits}g}") for value in values)
    return [int(value) if value.is_integer() else value for value in rounded]


def _band(item: Series, x_scale: Scale, y_scale: Scale) -> Markup:
    noise = item.noise or ()
    above = [y + n for y, n in zip(item.ys, noise, strict=True)]
    below = [y - n for y, n in zip(item.ys, noise, strict=True)]
    points = _points(item.xs, above, x_scale, y_scale)
    points += reversed(_points(item.xs, below, x_scale, y_scale))
    return path(f"band {item.style}", f"M{'L'.join(points)}Z")


def _points(xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale) -> list[str]:
    return [f"{coordinate(x(a))} {coordinate(y(b))}" for a, b in zip(xs, ys, strict=True)]


def _mark(mark: tuple[float, str], scale: Scale) -> Markup:
    at = scale(mark[0])
    anchor = "end" if at > (LEFT + WIDTH) * 0.7 else "start"
    shift = -5 if anchor == "end" else 5
    line = path("mark", f"M{coordinate(at)} {TOP - 10}V{HEIGHT - BOTTOM}")
    place = {"x": coordinate(at + shift), "y": TOP - 4, "text_anchor": anchor}
    return line + element("text", mark[1], class_="marked", **place)

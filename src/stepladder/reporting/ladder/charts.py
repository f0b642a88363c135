"""Charts of trials: predicted and measured gains, and samples before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from stepladder.ladder.summary.wording import gain, gain_interval
from stepladder.records.ladder import Trial
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.charts.scales import Scale, fit_scale, log_ticks, tick_label
from stepladder.reporting.charts.svg import chart, circle, coordinate, element, path
from stepladder.reporting.ladder.climb_data import positive
from stepladder.reporting.titles import titled

BAND = 0.15  # half-width of the band around the diagonal

_SIDE, _LEFT, _TOP, _BOTTOM = 460, 44, 14, 40
_MAX_SAMPLES = 40
_CHARACTER = 5.8  # width of a character of a label
_BESIDE = 9  # maximum distance of a name from its dot without a line
_PLACES = sorted(  # of a name relative to its dot, nearest first
    ((shift, 4 + 15 * idx) for shift in range(_BESIDE, 150, 12) for idx in range(-6, 7)),
    key=lambda place: math.hypot(place[0] - _BESIDE, place[1] - 4),
)

_Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, kw_only=True)
class _Point:
    trial: Trial
    predicted: float
    measured: float
    low: float
    high: float


def prediction_chart(trials: Sequence[Trial]) -> Markup | None:
    """Draw measured over predicted gains on logarithmic axes; None without data."""
    points = [point for trial in trials if (point := _point(trial)) is not None]
    if not points:
        return None
    values = [v for p in points for v in (p.predicted, p.measured, p.low, p.high)]
    low, high = min(0.9, *values) / 1.12, max(1.3, *values) * 1.18
    x = Scale(low=low, high=high, start=_LEFT, end=_SIDE - 8, is_log=True)
    y = Scale(low=low, high=high, start=_SIDE - _BOTTOM, end=_TOP, is_log=True)
    parts = [_band(x, y, low, high), *_gain_axes(x, y), _axis_titles()]
    parts.append(path("equal", f"M{_xy(x(low), y(low))}L{_xy(x(high), y(high))}"))
    dots = [(point, x(point.predicted), y(point.measured)) for point in points]
    names: list[_Box] = []
    for point, px, py in sorted(dots, key=lambda dot: -dot[0].measured):  # most are near 1
        near = [(a - 12, b - 7, a + 12, b + 7) for other, a, b in dots if other is not point]
        parts.append(_name(point, px, py, near, names))
    for point in points:
        parts += _scatter(point, x, y)
    return chart("chart", (_SIDE, _SIDE), parts, "Predicted against measured gain of each rung")


def sample_chart(before: Sequence[float], after: Sequence[float], *, title: str) -> Markup | None:
    """Draw pairs of samples, before and after, in the order of measurement.

    Draws at most the first forty pairs. Returns None if no pair can be drawn.
    """
    pairs = [
        (idx, old, new)
        for idx, (old, new) in enumerate(zip(before, after, strict=False))
        if positive(old) and positive(new)
    ][:_MAX_SAMPLES]
    if not pairs:
        return None
    width, height, left, base = 380, 140, 44, 118
    values = [v for _, old, new in pairs for v in (old, new)]
    y = fit_scale(values, start=base, end=10, may_be_log=True)
    x = Scale(low=-0.5, high=max(pairs[-1][0], 1) + 0.5, start=left, end=width - 6)
    parts = []
    for tick in _few(y.ticks(4)):
        at = coordinate(y(tick))
        parts.append(path("grid", f"M{left} {at}H{width - 6}"))
        parts.append(_text("tick", left - 6, y(tick), tick_label(tick), anchor="end", dy=".32em"))
    for idx, old, new in pairs:
        cx = coordinate(x(idx))
        parts.append(path("pair", f"M{cx} {coordinate(y(old))}V{coordinate(y(new))}"))
        tip = f"{idx + 1}: {old:.4g} to {new:.4g}"
        parts.append(circle("dot train", x(idx), y(old), 3.2, tip))
        parts.append(circle("dot val", x(idx), y(new), 3.2, tip))
    parts.append(path("axis", f"M{left} {base}H{width - 6}"))
    for idx in {pairs[0][0], pairs[-1][0]}:
        parts.append(_text("tick", x(idx), base + 14, str(idx + 1), anchor="middle"))
    return chart("chart", (width, height), parts, title)


def time_unit(times_s: Sequence[float]) -> tuple[float, str]:
    """Return the unit of times in a chart: its length in seconds, and its name."""
    largest = max((value for value in times_s if positive(value)), default=1.0)
    units = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
    return next((unit for unit in units if largest >= 2 * unit[0]), (0.001, "milliseconds"))


def _point(trial: Trial) -> _Point | None:
    speed, prediction = trial.verdict.speed, trial.prediction
    predicted = positive(prediction.gain) if prediction else None
    measured = positive(speed.estimate) if speed else None
    if speed is None or predicted is None or measured is None:
        return None
    low, high = positive(speed.low) or measured, positive(speed.high) or measured
    return _Point(trial=trial, predicted=predicted, measured=measured, low=low, high=high)


def _band(x: Scale, y: Scale, low: float, high: float) -> Markup:
    """Draw the band in which the measured gain is within 15 % of the predicted one."""
    more, less = 1 + BAND, 1 / (1 + BAND)
    corners = [(low, low * more), (high / more, high), (high, high), (high, high * less)]
    corners += [(low / less, low), (low, low)]
    outline = "L".join(_xy(x(a), y(b)) for a, b in corners)
    return path("near", f"M{outline}Z")


def _gain_axes(x: Scale, y: Scale) -> list[Markup]:
    parts = []
    for tick in _few(_gain_ticks(x.low, x.high), 8):
        style = "axis" if tick == 1 else "grid"
        at_x, at_y = coordinate(x(tick)), coordinate(y(tick))
        parts.append(path(style, f"M{at_x} {_TOP}V{_SIDE - _BOTTOM}"))
        parts.append(path(style, f"M{_LEFT} {at_y}H{_SIDE - 8}"))
        label = f"{tick:g}×"
        parts.append(_text("tick", x(tick), _SIDE - _BOTTOM + 16, label, anchor="middle"))
        parts.append(_text("tick", _LEFT - 6, y(tick), label, anchor="end", dy=".32em"))
    return parts


def _gain_ticks(low: float, high: float) -> list[float]:
    near = [value for value in (0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10) if low <= value <= high]
    return near if high < 12 and low > 0.4 else log_ticks(low, high)


def _axis_titles() -> Markup:
    across = _text("unit", _SIDE - 8, _SIDE - 6, "predicted gain", anchor="end")
    up = Markup('<text class="unit" x="0" y="8">measured gain</text>')
    return across + up


def _scatter(point: _Point, x: Scale, y: Scale) -> list[Markup]:
    px, py = x(point.predicted), y(point.measured)
    style = point.trial.verdict.decision.value
    speed = point.trial.verdict.speed
    measured = gain_interval(speed) if speed else gain(point.measured)
    name = titled(point.trial.rung)
    tip = f"{name}: predicted {gain(point.predicted)}, measured {measured}, {style}"
    whisker = f"M{coordinate(px)} {coordinate(y(point.low))}V{coordinate(y(point.high))}"
    return [path("whisk", whisker), circle(f"try {style}", px, py, 4.5, tip)]


def _name(point: _Point, px: float, py: float, near: Sequence[_Box], names: list[_Box]) -> Markup:
    """Draw the name of a rung next to its dot, without overlapping other names and dots.

    If the nearest free position is further away, a line connects them.
    """
    name = short(titled(point.trial.rung))
    width = _CHARACTER * len(name)
    places = [
        (px + shift if anchor == "start" else px - shift, py + rise, anchor)
        for shift, rise in _PLACES
        for anchor in ("start", "end")
    ]
    for left, base, anchor in places:
        start = left if anchor == "start" else left - width
        box = (start, base - 10, start + width, base + 3)
        inside = box[0] >= _LEFT and box[2] <= _SIDE and _TOP < box[1] < _SIDE - _BOTTOM - 12
        if inside and not any(_meet(box, other) for other in (*near, *names)):
            names.append(box)
            text = _text("named", left, base, name, anchor=anchor)
            if abs(left - px) <= _BESIDE and abs(base - 4 - py) <= _BESIDE + 5:
                return text
            edge = left - 2 if anchor == "start" else left + 2
            return path("leader", f"M{_xy(px, py)}L{_xy(edge, base - 4)}") + text
    return Markup("")  # the tooltip of the dot has the name


def _meet(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _few(ticks: Sequence[float], most: int = 4) -> list[float]:
    return list(ticks[:: math.ceil(len(ticks) / most)]) if ticks else []


def _text(
    style: str, x: float, y: float, text: str, *, anchor: str = "start", dy: str = "0"
) -> Markup:
    at = {"x": coordinate(x), "y": coordinate(y), "dy": dy, "text_anchor": anchor}
    return element("text", text, class_=style, **at)


def _xy(x: float, y: float) -> str:
    return f"{coordinate(x)} {coordinate(y)}"

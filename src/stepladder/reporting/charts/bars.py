"""Bars as inline SVG: stacked shares, an accuracy with its noise, an estimate with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from stepladder.reporting.charts.svg import coordinate, element, path
from stepladder.stats import binomial_sem

_LENGTH = 1000  # units along a bar; the page stretches it to the column
_INTERVAL, _HEIGHT, _EDGE = 150, 14, 5  # size of an interval chart


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a whole.

    Attributes:
        style: its CSS class.
        size: in the unit of the whole; only values above 0 are drawn.
        share: fraction of the whole.
    """

    name: str
    style: str
    size: float
    share: float


def stacked_bar(parts: Sequence[Part], *, title: str) -> Markup | None:
    """Draw parts as one stacked bar; None if all are empty."""
    drawn = [part for part in parts if part.size > 0]
    whole = sum(part.size for part in drawn)
    if not whole > 0:
        return None
    pieces, at = [], 0.0
    for part in drawn:
        width = _LENGTH * part.size / whole
        tip = element("title", f"{part.name}: {100 * part.share:.1f} %")
        at_x, wide = coordinate(at), coordinate(width)
        pieces.append(
            element("rect", tip, class_=f"part {part.style}", x=at_x, width=wide, height=30)
        )
        at += width
    return Markup(
        '<svg class="stack" viewBox="0 0 {} 30" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>'
    ).format(_LENGTH, title, Markup("").join(pieces))


def accuracy_bar(accuracy: float, num: int) -> Markup:
    """Draw an accuracy in [0, 1] as a bar, with one standard error as a line."""
    noise = binomial_sem(accuracy, num) if num else 0.0
    low, high = max(0.0, accuracy - noise), min(1.0, accuracy + noise)
    return Markup(
        '<svg class="bar" viewBox="0 0 {length} 12" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="trough" width="{length}" height="12"/>'
        '<rect class="fill" width="{width}" height="12"/>'
        '<rect class="whisker" x="{low}" y="5" width="{span}" height="2"/></svg>'
    ).format(
        length=_LENGTH,
        width=round(_LENGTH * accuracy),
        low=round(_LENGTH * low),
        span=round(_LENGTH * (high - low)),
    )


def interval_line(
    estimate: float, low: float, high: float, *, scale: tuple[float, float], title: str
) -> Markup:
    """Draw an interval as a line and its estimate as a dot.

    Args:
        scale: the values at the left and right end, the same for all rows.
        title: for screen readers and as a tooltip.
    """
    span = scale[1] - scale[0]

    def at(value: float) -> float:
        share = (value - scale[0]) / span if span > 0 else 0.5
        return _EDGE + (_INTERVAL - 2 * _EDGE) * min(max(share, 0.0), 1.0)

    left, right, middle = at(low), at(high), coordinate(_HEIGHT / 2)
    return Markup(
        '<svg class="interval" viewBox="0 0 {0} {1}" width="{0}" role="img" aria-label="{2}">'
        "<title>{2}</title>{3}{4}{5}</svg>"
    ).format(
        _INTERVAL,
        _HEIGHT,
        title,
        path("axis", f"M0 {middle}H{_INTERVAL}"),
        path("bounds", f"M{coordinate(left)} {middle}H{coordinate(right)}"),
        element("circle", class_="dot val", cx=coordinate(at(estimate)), cy=middle, r=3.4),
    )

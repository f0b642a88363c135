"""An estimate between its bounds as inline SVG, on a scale that rows of a table share."""

from __future__ import annotations

from markupsafe import Markup

from stepladder.reporting.charts.lines import coordinate

_LENGTH, _HEIGHT, _EDGE = 150, 14, 5


def interval_line(
    estimate: float, low: float, high: float, *, scale: tuple[float, float], title: str
) -> Markup:
    """Draw bounds as a line and the estimate as a dot.

    Args:
        scale: the values at the left and the right end; the same for all rows.
        title: read out by screen readers, and shown to a pointer.
    """
    span = scale[1] - scale[0]

    def at(value: float) -> float:
        share = (value - scale[0]) / span if span > 0 else 0.5
        return _EDGE + (_LENGTH - 2 * _EDGE) * min(max(share, 0.0), 1.0)

    left, right, middle = at(low), at(high), _HEIGHT / 2
    return Markup(
        '<svg class="interval" viewBox="0 0 {} {}" width="{}" role="img" aria-label="{title}">'
        '<title>{title}</title><path class="axis" d="M0 {}H{}"/>'
        '<path class="bounds" d="M{} {}H{}"/><circle class="dot val" cx="{}" cy="{}" r="3.4"/>'
        "</svg>"
    ).format(
        _LENGTH,
        _HEIGHT,
        _LENGTH,
        coordinate(middle),
        _LENGTH,
        coordinate(left),
        coordinate(middle),
        coordinate(right),
        coordinate(at(estimate)),
        coordinate(middle),
        title=title,
    )

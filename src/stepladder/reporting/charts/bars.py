"""Bars as inline SVG: shares of a whole, and an accuracy with its noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from stepladder.reporting.charts.lines import coordinate
from stepladder.stats import binomial_sem

_LENGTH = 1000  # units along a bar; the page stretches it to the column


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a whole.

    Attributes:
        style: the CSS class that colours it.
        size: in the unit of the whole; what is not above 0 is not drawn.
        share: of the whole.
    """

    name: str
    style: str
    size: float
    share: float


def stacked_bar(parts: Sequence[Part], *, title: str) -> Markup | None:
    """Draw parts one after the other over the whole width, or give None if all are empty."""
    drawn = [part for part in parts if part.size > 0]
    whole = sum(part.size for part in drawn)
    if not whole > 0:
        return None
    pieces, at = [], 0.0
    for part in drawn:
        width = _LENGTH * part.size / whole
        pieces.append(
            Markup(
                '<rect class="part {}" x="{}" width="{}" height="30"><title>{}</title></rect>'
            ).format(
                part.style,
                coordinate(at),
                coordinate(width),
                f"{part.name}: {100 * part.share:.1f} %",
            )
        )
        at += width
    return Markup(
        '<svg class="stack" viewBox="0 0 {} 30" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>'
    ).format(_LENGTH, title, Markup("").join(pieces))


def accuracy_bar(accuracy: float, num: int) -> Markup:
    """Draw an accuracy in [0, 1] as a bar, and one standard error on both sides as a line."""
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

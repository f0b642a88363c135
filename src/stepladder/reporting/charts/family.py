"""The family tree of a population: who took the weights of whom, and the way to the winner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from stepladder.records.population import Moment
from stepladder.reporting.charts.svg import chart, circle, coordinate, element, path

WIDTH: Final = 940
LEFT, RIGHT, TOP, BOTTOM = 54, 16, 10, 34
_ROW: Final = 11.0
_MIN_HEIGHT: Final = 150.0
_MAX_TIPS: Final = 2_000  # circles with a tooltip; a larger tree has only those of the winner


def family_tree(moments: Sequence[Moment], way: Sequence[Moment]) -> Markup:
    """Draw a population: a column for each interval, a row for each member.

    Args:
        moments: all members in all intervals.
        way: the moments that the winner's weights went through.
    """
    num_rows = 1 + max(moment.member for moment in moments)
    num_columns = 1 + max(moment.generation for moment in moments)
    height = max(_MIN_HEIGHT, num_rows * _ROW) + TOP + BOTTOM

    def x(generation: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (generation + 0.5) / num_columns

    def y(member: float) -> float:
        return TOP + (height - TOP - BOTTOM) * (member + 0.5) / num_rows

    def lines(chosen: Sequence[Moment]) -> str:
        return "".join(
            f"M{coordinate(x(m.generation - 1))} {coordinate(y(m.parent))}"
            f"L{coordinate(x(m.generation))} {coordinate(y(m.member))}"
            for m in chosen
            if m.generation > 0
        )

    kept = [m for m in moments if m.parent == m.member]
    copied = [m for m in moments if m.parent != m.member]
    parts = [
        path("kin", lines(kept)),
        path("kin copied", lines(copied)),
        path("kin way", lines(way)),
    ]
    on_way = {(m.generation, m.member) for m in way}
    for moment in moments:
        is_on_way = (moment.generation, moment.member) in on_way
        if not is_on_way and (len(moments) > _MAX_TIPS or not _matters(moment)):
            continue
        style = "node way" if is_on_way else "node"
        style = style if moment.score.is_finite else "node lost"
        at = x(moment.generation), y(moment.member)
        parts.append(circle(style, *at, 3.5 if is_on_way else 2.5, _tip(moment)))
    for generation in _ticks(num_columns):
        parts.append(
            element(
                "text",
                str(generation + 1),
                class_="tick",
                x=coordinate(x(generation)),
                y=coordinate(height - BOTTOM + 16),
                text_anchor="middle",
            )
        )
    for member in _ticks(num_rows):
        parts.append(
            element(
                "text",
                str(member + 1),
                class_="tick",
                x=LEFT - 10,
                y=coordinate(y(member) + 4),
                text_anchor="end",
            )
        )
    label = "Who took the weights of whom, with the way to the winner"
    return chart("family", (WIDTH, coordinate(height)), parts, label)


def _matters(moment: Moment) -> bool:
    """Return whether a member took weights, began, or diverged here."""
    is_copy = moment.parent != moment.member
    return is_copy or moment.generation == 0 or not moment.score.is_finite


def _tip(moment: Moment) -> str:
    genes = ", ".join(f"{key} {shown(value)}" for key, value in moment.genes.items())
    score = moment.score
    if not score.is_finite:
        result = "diverged"
    elif score.accuracy is None:
        result = f"loss {score.loss:.4g}"
    else:
        result = f"loss {score.loss:.4g}, accuracy {100 * score.accuracy:.1f} %"
    return f"member {moment.member + 1}, interval {moment.generation + 1}: {result}; {genes}"


def shown(value: float | int | str) -> str:
    """Return a gene's value as text."""
    return value if isinstance(value, str) else f"{value:.3g}"


def _ticks(num: int) -> list[int]:
    """Return at most about ten positions, evenly spaced."""
    step = max(1, -(-num // 10))
    return list(range(0, num, step))

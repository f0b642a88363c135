"""The confusion matrix as inline SVG: in full for up to 30 classes, else as a coarse map."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from stepladder.reporting.charts.svg import chart, coordinate, element

MAX_CLASSES = 30
_COUNTS_UP_TO = 20  # classes; with more, numbers do not fit into a cell
_NUM_BINS = 48
_NUM_LEVELS = 8
_SIDE = 460.0
_NAME = 24  # characters of a class name
_CHARACTER = 6.4  # width of a character of a name
_EDGE = 16  # between a name and the frame, and beside it
_NAMED = 6  # of a coarse map, every sixth row has a name


def short(name: str, length: int = 26) -> str:
    """Truncate a name to a length, with an ellipsis."""
    return name if len(name) <= length else f"{name[: length - 1]}…"


def confusion_map(pairs: Mapping[tuple[int, int], int], classes: Sequence[str]) -> Markup:
    """Draw a confusion matrix.

    Args:
        pairs: counts by (label index, predicted index).
        classes: class names; a label is an index into it.
    """
    if len(classes) <= MAX_CLASSES:
        return _full(pairs, classes)
    return _coarse(pairs, classes)


def _full(pairs: Mapping[tuple[int, int], int], classes: Sequence[str]) -> Markup:
    cell = _SIDE / len(classes)
    rows = [(short(name, _NAME), cell * (idx + 0.5)) for idx, name in enumerate(classes)]
    edge, parts = _names(rows)
    totals: Counter[int] = Counter()
    for (label, _), count in pairs.items():
        totals[label] += count
    for (label, predicted), count in sorted(pairs.items()):
        share = count / totals[label]
        x, y = edge + predicted * cell, edge + label * cell
        is_right = label == predicted
        tip = f"{short(classes[label])}: {count} of {totals[label]} " + (
            "correct" if is_right else f"predicted as {short(classes[predicted])}"
        )
        opacity = 0.14 + 0.86 * (share if is_right else math.sqrt(share))
        parts.append(
            element(
                "rect",
                element("title", tip),
                class_="right" if is_right else "wrong",
                x=coordinate(x + 0.5),
                y=coordinate(y + 0.5),
                width=coordinate(cell - 1),
                height=coordinate(cell - 1),
                fill_opacity=f"{opacity:.2f}",
            )
        )
        if len(classes) <= _COUNTS_UP_TO:
            style = "count on" if share > 0.5 else "count"  # light text on a dark cell
            at = {"x": coordinate(x + cell / 2), "y": coordinate(y + cell / 2), "dy": ".35em"}
            parts.append(element("text", count, class_=style, **at, text_anchor="middle"))
    return _svg(edge + _SIDE + 2, parts)


def _coarse(pairs: Mapping[tuple[int, int], int], classes: Sequence[str]) -> Markup:
    """Sum neighbouring classes into one cell; one path for each of eight shades.

    Every sixth row and column has the name of its first class.
    """
    num_classes = len(classes)
    num = min(_NUM_BINS, num_classes)
    cells: Counter[tuple[int, int]] = Counter()
    for (label, predicted), count in pairs.items():
        cells[label * num // num_classes, predicted * num // num_classes] += count
    largest = max((n for (a, b), n in cells.items() if a != b), default=1)
    paths: dict[tuple[bool, int], list[str]] = {}
    cell = _SIDE / num
    firsts = [-(-idx * num_classes // num) for idx in range(0, num, _NAMED)]
    named = zip(firsts, range(0, num, _NAMED), strict=True)
    edge, parts = _names([(short(classes[a], _NAME), cell * (b + 0.5)) for a, b in named])
    side = coordinate(cell - 0.6)
    most = max(cells.values(), default=1)
    for (row, col), count in sorted(cells.items()):
        share = count / (most if row == col else largest)
        level = max(1, math.ceil(_NUM_LEVELS * math.sqrt(share)))
        start = f"M{coordinate(edge + col * cell + 0.3)} {coordinate(edge + row * cell + 0.3)}"
        paths.setdefault((row == col, min(level, _NUM_LEVELS)), []).append(
            f"{start}h{side}v{side}h-{side}z"
        )
    parts += [
        element(
            "path",
            class_="right" if is_right else "wrong",
            fill_opacity=f"{level / _NUM_LEVELS:.2f}",
            d="".join(drawn),
        )
        for (is_right, level), drawn in sorted(paths.items())
    ]
    return _svg(edge + _SIDE + 2, parts)


def _names(rows: Sequence[tuple[str, float]]) -> tuple[float, list[Markup]]:
    """Draw the frame, and the names of rows and columns.

    Args:
        rows: names and the positions of their middles along a side.

    Returns:
        The left edge of the frame, which is also its top, and the parts.
    """
    edge = _EDGE + _CHARACTER * max(len(name) for name, _ in rows)
    at = coordinate(edge)
    parts = [element("rect", class_="frame", x=at, y=at, width=_SIDE, height=_SIDE)]
    for name, middle in rows:
        along, beside = coordinate(edge + middle), coordinate(edge - 8)
        row = {"x": beside, "y": along, "dy": ".32em", "text_anchor": "end"}
        parts.append(element("text", name, class_="row", **row))
        turned = f"translate({along} {beside}) rotate(-90)"
        parts.append(element("text", name, class_="row", dy=".32em", transform=turned))
    return edge, parts


def _svg(size: float, parts: Sequence[Markup]) -> Markup:
    label = "Confusion matrix: rows are labels, columns are predictions"
    return chart("confusion", (coordinate(size), coordinate(size)), parts, label)

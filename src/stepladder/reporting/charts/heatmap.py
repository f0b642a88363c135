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
    return _coarse(pairs, len(classes))


def _full(pairs: Mapping[tuple[int, int], int], classes: Sequence[str]) -> Markup:
    num = len(classes)
    cell, top = _SIDE / num, 20.0
    left = 30 + 6.4 * max(len(short(name, 24)) for name in classes)
    totals: Counter[int] = Counter()
    for (label, _), count in pairs.items():
        totals[label] += count
    parts = [_frame(left, top)]
    for idx, name in enumerate(classes):
        middle = coordinate(top + (idx + 0.5) * cell)
        across = coordinate(left + (idx + 0.5) * cell)
        row = [short(name, 24), " ", element("tspan", idx + 1, class_="idx")]
        at = {"x": left - 8, "y": middle, "dy": ".32em", "text_anchor": "end"}
        parts.append(element("text", *row, class_="row", **at))
        parts.append(element("text", idx + 1, class_="idx", x=across, y=12, text_anchor="middle"))
    for (label, predicted), count in sorted(pairs.items()):
        share = count / totals[label]
        x, y = left + predicted * cell, top + label * cell
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
        if num <= _COUNTS_UP_TO:
            style = "count on" if share > 0.5 else "count"  # light text on a dark cell
            at = {"x": coordinate(x + cell / 2), "y": coordinate(y + cell / 2), "dy": ".35em"}
            parts.append(element("text", count, class_=style, **at, text_anchor="middle"))
    return _svg(left + _SIDE + 2, top + _SIDE + 2, parts)


def _coarse(pairs: Mapping[tuple[int, int], int], num_classes: int) -> Markup:
    """Sum neighbouring classes into one cell; one path for each of eight shades."""
    num = min(_NUM_BINS, num_classes)
    cells: Counter[tuple[int, int]] = Counter()
    for (label, predicted), count in pairs.items():
        cells[label * num // num_classes, predicted * num // num_classes] += count
    largest = max((n for (a, b), n in cells.items() if a != b), default=1)
    paths: dict[tuple[bool, int], list[str]] = {}
    cell = _SIDE / num
    side = coordinate(cell - 0.6)
    most = max(cells.values(), default=1)
    for (row, col), count in sorted(cells.items()):
        share = count / (most if row == col else largest)
        level = max(1, math.ceil(_NUM_LEVELS * math.sqrt(share)))
        start = f"M{coordinate(col * cell + 1)} {coordinate(row * cell + 1)}"
        paths.setdefault((row == col, min(level, _NUM_LEVELS)), []).append(
            f"{start}h{side}v{side}h-{side}z"
        )
    parts = [_frame(0, 0)]
    parts += [
        element(
            "path",
            class_="right" if is_right else "wrong",
            fill_opacity=f"{level / _NUM_LEVELS:.2f}",
            d="".join(drawn),
        )
        for (is_right, level), drawn in sorted(paths.items())
    ]
    return _svg(_SIDE + 2, _SIDE + 2, parts)


def _frame(left: float, top: float) -> Markup:
    return element("rect", class_="frame", x=left, y=top, width=_SIDE, height=_SIDE)


def _svg(width: float, height: float, parts: Sequence[Markup]) -> Markup:
    label = "Confusion matrix: rows are labels, columns are predictions"
    return chart("confusion", (coordinate(width), coordinate(height)), parts, label)

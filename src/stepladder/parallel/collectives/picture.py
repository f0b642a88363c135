"""Draw a schedule: who sends what to whom, step by step."""

from __future__ import annotations

import math
from html import escape
from typing import Final

from stepladder.parallel.collectives.schedule import Message, Schedule

_LANE: Final = 34  # pixels between ranks
_STEP: Final = 74  # and between steps
_LEFT: Final = 62
_TOP: Final = 40
_RIGHT: Final = 20
_BOTTOM: Final = 34
_LABEL: Final = 13  # from the start of an arrow to the middle of its numbers
_PAD: Final = 9  # between an arrow and the lines of its step
_KEY: Final = "solid: added up; dashed: copied; numbers: parts of the tensor"
_LETTER: Final = 6  # pixels of a letter, at most on average
_COLORS: Final = (
    *("#1f6fb2", "#c4561e", "#2a8a57", "#8a4fae"),
    *("#b8860b", "#c23b6b", "#3a8f9e", "#6b6b6b"),
)
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#333}.step{fill:#777}"
    ".part{font-size:10.5px;stroke:#fff;stroke-width:3px;paint-order:stroke}"
    ".lane{stroke:#ccc}.tick{stroke:#eee}line.copied{stroke-dasharray:4 3}"
)


Point = tuple[float, float]


def schedule_svg(schedule: Schedule) -> str:
    """Return a drawing as SVG: a line for each rank, time to the right, an arrow for each message.

    The color is that of the first chunk; the numbers are those of the chunks. A solid arrow is
    added up, a dashed one replaces what the receiver has.
    """
    end = _LEFT + _STEP * schedule.num_steps  # of the lanes
    width = max(end, _LEFT + _LETTER * len(_KEY)) + _RIGHT
    height = _TOP + _LANE * (schedule.num_ranks - 1) + _BOTTOM
    title = f"{schedule.name} of {schedule.num_ranks} ranks"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img"><title>{escape(title)}</title><style>{_STYLE}</style>',
        _markers(),
        f'<rect width="{width}" height="{height}" rx="6" fill="#fff"/>',
    ]
    for step in range(schedule.num_steps + 1):
        x = _LEFT + _STEP * step
        parts.append(_line("tick", (x, _TOP - 14), (x, height - _BOTTOM + 12)))
        if step < schedule.num_steps:
            middle = x + _STEP / 2
            parts.append(_text("step", middle, _TOP - 20, f"step {step + 1}", "middle"))
    for rank in range(schedule.num_ranks):
        y = _TOP + _LANE * rank
        parts.append(_line("lane", (_LEFT, y), (end, y)))
        parts.append(_text("rank", _LEFT - 10, y + 4, f"rank {rank}", "end"))
    parts += [_arrow(message, schedule.num_chunks) for message in schedule.messages]
    parts.append(_text("step", _LEFT, height - 8, _KEY, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _markers() -> str:
    """Return an arrowhead of each color."""
    heads = "".join(
        f'<marker id="head{number}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8Z" fill="{color}"/></marker>'
        for number, color in enumerate(_COLORS)
    )
    return f"<defs>{heads}</defs>"


def _arrow(message: Message, num_chunks: int) -> str:
    """Return the arrow of a message, with its chunks near its start."""
    start = _LEFT + _STEP * message.step + _PAD
    end = start + _STEP - 2 * _PAD
    top, bottom = _TOP + _LANE * message.source, _TOP + _LANE * message.target
    color = message.first * len(_COLORS) // max(num_chunks, len(_COLORS)) % len(_COLORS)
    if num_chunks <= len(_COLORS):
        color = message.first
    style = "added" if message.is_added else "copied"
    paint = f' stroke="{_COLORS[color]}" stroke-width="1.6" marker-end="url(#head{color})"'
    line = _line(style, (start, top), (end, bottom), paint)
    if num_chunks == 1:
        return line
    last = message.last - 1
    words = f"{message.first}" if last == message.first else f"{message.first}–{last}"
    share = _LABEL / math.hypot(end - start, bottom - top)
    x, y = start + share * (end - start), top + share * (bottom - top)
    return line + _text("part", x, y + 3.5, words, "middle")


def _line(style: str, start: Point, end: Point, paint: str = "") -> str:
    place = f'x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}"'
    return (
        f'<line class="{style}" {place} {paint}/>' if paint else f'<line class="{style}" {place}/>'
    )


def _text(style: str, x: float, y: float, words: str, anchor: str) -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
    return f'<text class="{style}" {place}>{escape(words)}</text>'

"""The ladder as a chart: time to a trained model after each rung, one strip per rung."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from stepladder.ladder.summary.climb_summary import over_seeds_words, ratio_words
from stepladder.ladder.summary.wording import baseline_time, decision_words, gain, gain_interval
from stepladder.records.ladder import Decision, Trial
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.charts.scales import Scale
from stepladder.reporting.charts.svg import coordinate, path
from stepladder.reporting.ladder.climb_data import ClimbRecords, positive
from stepladder.reporting.titles import titled
from stepladder.training.output.wording import rough_time

_LENGTH, _HEIGHT, _MIDDLE = (
    1000,
    40,
    20,
)  # of a strip, which is stretched to the width of the column
_APART = 115  # minimum distance of two labels, for "10 min" on a phone
_TIMES: tuple[tuple[float, str], ...] = (
    (1e-3, "1 ms"), (1e-2, "10 ms"), (0.1, "0.1 s"), (1, "1 s"), (10, "10 s"), (60, "1 min"),
    (600, "10 min"), (3600, "1 h"), (36_000, "10 h"), (345_600, "4 d"), (3_456_000, "40 d"),
    (3, "3 s"), (30, "30 s"), (180, "3 min"), (1800, "30 min"), (10_800, "3 h"), (86_400, "1 d"),
    (2, "2 s"), (5, "5 s"), (20, "20 s"), (40, "40 s"), (120, "2 min"), (300, "5 min"),
    (1200, "20 min"), (2400, "40 min"), (7200, "2 h"), (18_000, "5 h"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Step:
    """One row of the picture.

    Attributes:
        level: its level in the ladder, or empty.
        style: start, kept, dropped, undecided or end.
        time: time to a trained model with it.
        words: its gain and the decision.
    """

    level: str
    name: str
    style: str
    time: str
    words: str
    strip: Markup


@dataclass(frozen=True, kw_only=True)
class LadderPicture:
    """The rows, and the ticks as (position in percent of the length, label)."""

    steps: tuple[Step, ...]
    ticks: tuple[tuple[str, str], ...]
    has_negative: bool


@dataclass(frozen=True, kw_only=True)
class _Move:
    """The times of a trial: before, after with its interval, and predicted."""

    trial: Trial
    before_s: float
    after_s: float
    low_s: float
    high_s: float
    predicted_s: float | None

    @property
    def is_kept(self) -> bool:
        return self.trial.verdict.decision is Decision.KEPT


def ladder_picture(climb: ClimbRecords) -> LadderPicture | None:
    """Draw the steps from the original job to the result; None if no time is known."""
    moves = [move for trial in climb.trials if (move := _move(trial)) is not None]
    baseline, result = climb.summary.baseline, climb.summary.result
    start_s = positive(baseline.total_s) if baseline else None
    if start_s is None:
        start_s = moves[0].before_s if moves else None
    if start_s is None:
        return None
    paired_s = positive(result.paired_s) if result and result.paired_s else None
    end_s = paired_s or (positive(result.total_s) if result else None)
    scale = _scale(start_s, end_s, moves)
    ticks = _ticks(scale)
    grid = [scale(value) for value, _ in ticks]
    start = baseline_time(baseline) if baseline else rough_time(start_s)
    steps = [_start(start_s, start, scale, grid)]
    at_s = start_s
    for move in moves:
        steps.append(_step(move, at_s, scale, grid))
        at_s = move.after_s if move.is_kept else at_s
    if end_s is not None:
        over_seeds = over_seeds_words(climb.summary)
        words = over_seeds or (ratio_words(climb.summary) if paired_s else gain(start_s / end_s))
        words = "unchanged" if climb.summary.is_as_written else words
        steps.append(_end(words, at_s, end_s, scale, grid))
    return LadderPicture(
        steps=tuple(steps),
        ticks=tuple((coordinate(scale(value) / 10), label) for value, label in ticks),
        has_negative=any(not move.is_kept for move in moves),
    )


def _move(trial: Trial) -> _Move | None:
    speed = trial.verdict.speed
    before = positive(trial.before.total_s) if trial.before else None
    ratio = positive(speed.estimate) if speed else None
    if before is None or speed is None or ratio is None:
        return None
    low, high = positive(speed.low) or ratio, positive(speed.high) or ratio
    expected = positive(trial.prediction.gain) if trial.prediction else None
    times = [positive(before / value) for value in (ratio, low, high)]
    if times[0] is None:
        return None
    return _Move(
        trial=trial,
        before_s=before,
        after_s=times[0],
        low_s=times[2] or times[0],
        high_s=times[1] or times[0],
        predicted_s=positive(before / expected) if expected else None,
    )


def _scale(start_s: float, end_s: float | None, moves: Sequence[_Move]) -> Scale:
    times = [start_s, *([end_s] if end_s else [])]
    for move in moves:
        times += [move.before_s, move.low_s, move.high_s, move.after_s]
        times += [move.predicted_s] if move.predicted_s else []
    low, high = min(times), max(times)
    air = max((high / low) ** 0.04, 1.02)
    return Scale(low=low / air, high=high * air, start=0, end=_LENGTH, is_log=True)


def _ticks(scale: Scale) -> list[tuple[float, str]]:
    """Return round times as ticks, as many as fit; the roundest have priority."""
    found: list[tuple[float, str]] = []
    for tick in _TIMES:
        is_inside = scale.low <= tick[0] <= scale.high
        if is_inside and all(abs(scale(tick[0]) - scale(other)) >= _APART for other, _ in found):
            found.append(tick)
    if len(found) < 2:
        found = [(value, rough_time(value)) for value in scale.ticks()]
    return sorted(found)[:8]


def _start(start_s: float, time: str, scale: Scale, grid: Sequence[float]) -> Step:
    x = scale(start_s)
    parts = [path("way", f"M{coordinate(x)} {_MIDDLE}V{_HEIGHT}"), _dot("start", x)]
    strip = _strip(parts, grid, f"original: {time}")
    return Step(level="0", name="original", style="start", time=time, words="", strip=strip)


def _step(move: _Move, at_s: float, scale: Scale, grid: Sequence[float]) -> Step:
    trial, verdict = move.trial, move.trial.verdict
    style = verdict.decision.value
    at, before, after = (scale(value) for value in (at_s, move.before_s, move.after_s))
    parts = [path("way", f"M{coordinate(at)} 0L{coordinate(before)} {_MIDDLE}")]
    if move.is_kept:
        parts.append(path("way", f"M{coordinate(after)} {_MIDDLE}V{_HEIGHT}"))
    else:
        parts.append(path("way", f"M{coordinate(before)} {_MIDDLE}L{coordinate(at)} {_HEIGHT}"))
    if move.predicted_s is not None:
        x = coordinate(scale(move.predicted_s))
        parts.append(path("predicted", f"M{x} 7V33"))
    parts.append(path(f"move {style}", f"M{coordinate(before)} {_MIDDLE}H{coordinate(after)}"))
    low, high = scale(move.low_s), scale(move.high_s)
    parts.append(path(f"bounds {style}", f"M{coordinate(low)} {_MIDDLE}H{coordinate(high)}"))
    parts.append(_dot(style, after))
    if not move.is_kept:
        parts.append(_dot("hole", after))
    words = gain_interval(verdict.speed) if verdict.speed else ""
    time = rough_time(move.after_s)
    tip = f"{titled(trial.rung)}: {rough_time(move.before_s)} to {time}, {words}"
    return Step(
        level=str(trial.level),
        name=short(trial.rung),
        style=style,
        time=time,
        words=words if move.is_kept else f"{words} {decision_words(verdict.decision)}",
        strip=_strip(parts, grid, tip),
    )


def _end(words: str, at_s: float, end_s: float, scale: Scale, grid: Sequence[float]) -> Step:
    at, end = scale(at_s), scale(end_s)
    parts = [
        path("way", f"M{coordinate(at)} 0V{_MIDDLE}H{coordinate(end)}"),
        _dot("end", end),
    ]
    time = rough_time(end_s)
    strip = _strip(parts, grid, f"end to end: {time}")
    return Step(level="", name="end to end", style="end", time=time, words=words, strip=strip)


def _strip(parts: Sequence[Markup], grid: Sequence[float], tip: str) -> Markup:
    lines = Markup("").join(path("grid", f"M{coordinate(x)} 0V{_HEIGHT}") for x in grid)
    return Markup(
        '<svg class="strip" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{tip}"><title>{tip}</title>{}{}</svg>'
    ).format(_LENGTH, _HEIGHT, lines, Markup("").join(parts), tip=tip)


def _dot(style: str, x: float) -> Markup:
    """Draw a dot as a line of zero length, which stays round when the strip is stretched."""
    return path(f"point {style}", f"M{coordinate(x)} {_MIDDLE}h.01")

"""The verdict of a comparison: which training runs are better than the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from stepladder.diagnosis.logs.meaning.column_names import is_lower_better
from stepladder.records.audit import Difference
from stepladder.records.compare import Comparison, PairedResult
from stepladder.records.ladder import Interval
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.pages.audit_page import change_words
from stepladder.reporting.titles import in_words

MAX_P = 0.05
_NAME = 28
_NO_DIFFERENCE, _NO_VERDICT = "No significant difference", "No verdict"


class Standing(StrEnum):
    """How a training run compares with the first; ALIKE: the difference may be chance."""

    BETTER = "better"
    WORSE = "worse"
    ALIKE = "alike"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A training run compared with the first.

    Attributes:
        figure: the change alone, such as `+2.1 points`; empty if unknown.
        bounds: its interval, such as `95 %: +0.3 to +3.9`; empty if unknown.
        metric: what changed, such as `accuracy`.
        basis: the examples, or the logs; why there is no verdict if it is unknown.
    """

    name: str
    standing: Standing
    figure: str = ""
    bounds: str = ""
    metric: str = ""
    basis: str = ""


def verdict(comparison: Comparison) -> tuple[str, str]:
    """Return the verdict in a few words, and in one sentence."""
    first = short(comparison.runs[0].audited.log.name, _NAME)
    others = compared_runs(comparison)
    return _of_one(first, others[0]) if len(others) == 1 else _of_several(first, others)


def compared_runs(comparison: Comparison) -> list[Compared]:
    """Compare each run with the first: by paired examples if possible, else by the logs."""
    by_name = {difference.second: difference for difference in comparison.differences}
    found = []
    for pair in comparison.pairs:
        difference = by_name.get(pair.second)
        if not pair.why_not and (pair.p is not None or pair.loss is not None):
            found.append(_by_pairs(pair))
        elif difference is not None:
            found.append(_by_logs(difference, comparison))
        else:
            name, why = short(pair.second, _NAME), pair.why_not or "they have no common metric"
            found.append(Compared(name=name, standing=Standing.UNKNOWN, basis=why))
    return found


def _by_pairs(pair: PairedResult) -> Compared:
    metric, change, unit, factor = "accuracy", pair.accuracy, " points", 100.0
    if pair.p is None or change is None:
        assert pair.loss is not None
        metric, change, unit, factor = "loss", pair.loss, "", 1.0
        is_clear = not change.low <= 0 <= change.high
    else:
        is_clear = pair.p < MAX_P
    is_better = (change.estimate < 0) == (metric == "loss")
    digits = 1 if factor > 1 else 4
    return Compared(
        name=short(pair.second, _NAME),
        standing=_standing(is_better, is_clear=is_clear),
        figure=f"{factor * change.estimate:+.{digits}f}{unit}",
        bounds=_bounds(change, factor, digits),
        metric=metric,
        basis=f"on the same {pair.num:,} {in_words(pair.split or '')} examples",
    )


def _by_logs(difference: Difference, comparison: Comparison) -> Compared:
    words = change_words(difference, [run.audited for run in comparison.runs])
    figure, _, bounds = words.partition(" (")
    is_better = (difference.change < 0) == is_lower_better(difference.metric)
    is_known = difference.is_clear is not None
    return Compared(
        name=short(difference.second, _NAME),
        standing=_standing(is_better, is_clear=bool(difference.is_clear))
        if is_known
        else Standing.UNKNOWN,
        figure=figure,
        bounds=bounds.removesuffix(")"),
        metric=in_words(difference.metric),
        basis="according to the logs" if is_known else "the logs do not support a verdict",
    )


def _standing(is_better: bool, *, is_clear: bool) -> Standing:
    if not is_clear:
        return Standing.ALIKE
    return Standing.BETTER if is_better else Standing.WORSE


def _bounds(change: Interval, factor: float, digits: int) -> str:
    low, high = factor * change.low, factor * change.high
    return f"95 %: {low:+.{digits}f} to {high:+.{digits}f}"


def _of_one(first: str, other: Compared) -> tuple[str, str]:
    if other.standing is Standing.UNKNOWN:
        return _NO_VERDICT, f"{other.name} cannot be compared with {first}: {other.basis}."
    said = f"{other.figure} ({other.bounds})" if other.bounds else other.figure
    if other.standing is Standing.ALIKE:
        caption = f"{other.name} compared with {first}, {other.basis}: {other.metric} {said}."
        return _NO_DIFFERENCE, caption
    bounds = f" ({other.bounds})" if other.bounds else ""
    caption = f"{other.name} is {other.standing} than {first}, {other.basis}{bounds}."
    is_points = other.figure.endswith("points")
    return other.figure if is_points else f"{other.metric.capitalize()} {other.figure}", caption


def _of_several(first: str, others: Sequence[Compared]) -> tuple[str, str]:
    num = len(others)
    better = sum(other.standing is Standing.BETTER for other in others)
    worse = sum(other.standing is Standing.WORSE for other in others)
    if better or worse:
        figure = f"{better} of {num} better" if better else f"None of {num} better"
        figure += f", {worse} worse" if worse else ""
    else:
        is_known = any(other.standing is Standing.ALIKE for other in others)
        figure = _NO_DIFFERENCE if is_known else _NO_VERDICT
    words = {Standing.ALIKE: "not significant", Standing.UNKNOWN: "no verdict"}
    said = [
        f"{other.name} {other.figure} ({words.get(other.standing, other.standing.value)})"
        for other in others
    ]
    return figure, f"Compared with {first}: {', '.join(' '.join(one.split()) for one in said)}."

"""Accuracy of each class, and confusions between classes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from markupsafe import Markup

from stepladder.reporting.charts.bars import accuracy_bar
from stepladder.reporting.charts.heatmap import MAX_CLASSES, confusion_map, short
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.charts.scales import SHARE
from stepladder.reporting.tables import RunRecords
from stepladder.training.output.wording import percent

MAX_ROWS = 30
MAX_PAIRS = 15
SPLIT_WORDS = {"test": "test", "val": "validation"}


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """One class: its name, and its accuracy as text and as a bar."""

    name: str
    full_name: str
    accuracy: str
    num_right: int
    num: int
    bar: Markup


@dataclass(frozen=True, kw_only=True)
class ConfusedPair:
    """Number of pictures of a class that were predicted as another."""

    label: str
    predicted: str
    count: int
    num: int


@dataclass(frozen=True, kw_only=True)
class ClassResults:
    """Content of the classes section.

    Attributes:
        split_word: name of the split.
        rows: classes by increasing accuracy; of many classes, only the lowest.
        profile: all accuracies as a line, if `rows` is not complete.
        absent: names of classes without a picture in the split.
    """

    split_word: str
    num_classes: int
    num_pictures: int
    rows: tuple[ClassRow, ...]
    profile: Markup | None
    absent: tuple[str, ...]
    num_absent: int
    pairs: tuple[ConfusedPair, ...]
    map: Markup
    is_coarse: bool


def class_results(records: RunRecords) -> ClassResults | None:
    """Return the results by class on test, or on val without test; None without predictions."""
    split = next((name for name in ("test", "val") if records.outcomes.get(name)), None)
    if split is None:
        return None
    outcomes = records.outcomes[split]
    classes = _classes(records, outcomes)
    totals: Counter[str] = Counter()
    for (label, _), count in outcomes.items():
        totals[label] += count
    present = [name for name in classes if totals[name]]
    shares = {name: outcomes[name, name] / totals[name] for name in present}
    ranked = sorted(present, key=lambda name: (shares[name], -totals[name], name))
    shown = ranked if len(ranked) <= MAX_ROWS else ranked[: MAX_ROWS - 6]
    index = {name: idx for idx, name in enumerate(classes)}
    return ClassResults(
        split_word=SPLIT_WORDS[split],
        num_classes=len(classes),
        num_pictures=sum(totals.values()),
        rows=tuple(_row(name, outcomes[name, name], totals[name]) for name in shown),
        profile=_profile([shares[name] for name in ranked]) if len(shown) < len(ranked) else None,
        absent=tuple(short(name) for name in classes if not totals[name])[:MAX_ROWS],
        num_absent=len(classes) - len(present),
        pairs=_pairs(outcomes, totals),
        map=confusion_map({(index[a], index[b]): n for (a, b), n in outcomes.items()}, classes),
        is_coarse=len(classes) > MAX_CLASSES,
    )


def _classes(records: RunRecords, outcomes: Counter[tuple[str, str]]) -> list[str]:
    listed = records.summary.get("classes")
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    return names + sorted({name for pair in outcomes for name in pair} - set(names))


def _row(name: str, num_right: int, num: int) -> ClassRow:
    return ClassRow(
        name=short(name),
        full_name=short(name, 120),
        accuracy=percent(num_right / num, 0),
        num_right=num_right,
        num=num,
        bar=accuracy_bar(num_right / num, num),
    )


def _pairs(outcomes: Counter[tuple[str, str]], totals: Counter[str]) -> tuple[ConfusedPair, ...]:
    wrong = [(pair, count) for pair, count in outcomes.items() if pair[0] != pair[1]]
    wrong.sort(key=lambda item: (-item[1], item[0]))
    return tuple(
        ConfusedPair(label=short(a), predicted=short(b), count=count, num=totals[a])
        for (a, b), count in wrong[:MAX_PAIRS]
    )


def _profile(shares: list[float]) -> Markup | None:
    ranks = [float(rank + 1) for rank in range(len(shares))]
    line = Series(name="accuracy", style="val", xs=ranks, ys=shares)
    return line_chart(
        [line],
        title="Accuracy of every class, from the lowest to the highest",
        x_label="classes, by increasing accuracy",
        y_unit=SHARE,
        y_limits=(0.0, 1.0),
    )

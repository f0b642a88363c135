"""Printed logs of gradient boosting: CatBoost, XGBoost, LightGBM and scikit-learn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stepladder.diagnosis.logs.meaning.attempts import split_attempts
from stepladder.diagnosis.logs.meaning.column_names import SPLIT_OF_WORD, read_number
from stepladder.diagnosis.logs.meaning.rows import Cells, Table
from stepladder.diagnosis.logs.printed.screen import screen_lines
from stepladder.records.audit import LogFormat

_NUM = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf"
_CATBOOST = re.compile(
    rf"(?P<step>\d+):\s+(?P<values>(?:(?:learn|test\d*): (?:{_NUM})\s+)+)"
    rf"(?:best: (?P<best>{_NUM}) \((?P<at>\d+)\)\s+)?"
    r"total: (?P<total>[\w. ]+?)(?:\s+remaining: [\w. ]+)?\s*"
)
_SET = re.compile(rf"(learn|test\d*): ({_NUM})")
_ROUND = re.compile(r"(?:\[\d\d:\d\d:\d\d\]\s+)?\[(\d+)\]\s+(?=\S)")
_XGBOOST = re.compile(rf"([\w.]+)-([\w@.-]+?):({_NUM})(?:\+(?:{_NUM}))?(?=\s|$)")
_LIGHTGBM = re.compile(
    rf"([\w.]+)'s (?:(train|valid) )?([\w@.-]+): ({_NUM})(?: \+ (?:{_NUM}))?(?=\s|$)"
)
_SKLEARN = re.compile(r"\[(\d+)/\d+\] \d+ trees?, .*")
_SKLEARN_VALUE = re.compile(rf"\b(train|val) (loss|score): ({_NUM})")
_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_DURATION = re.compile(r"([\d.]+)\s*(ms|us|[dhms])")
_ERRORS = {"error": "error_rate", "binary_error": "error_rate", "multi_error": "merror"}


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One iteration: the values by (set, metric), which are named as printed."""

    step: str
    values: Mapping[tuple[str, str], str]
    best: tuple[float, str] | None = None
    total_s: float | None = None


def is_boosting_log(text: str) -> bool:
    """Return True if lines are iterations of gradient boosting."""
    return any(_read(line) is not None for line in screen_lines(text))


def read_boosting_log(text: str, *, name: str, path: str) -> list[Table]:
    """Read such lines.

    CatBoost does not name its metric: whether more is better follows from its column `best`. Of
    several held-out sets the last one is judged, as XGBoost stops early by that one.
    """
    lines = [line for line in map(_read, screen_lines(text)) if line is not None]
    if any(metric == "" for line in lines for _, metric in line.values):
        table = _catboost(lines, name=name, path=path)
    else:
        table = _named(lines, name=name, path=path)
    attempts = split_attempts(table.cells)
    return [
        replace(
            table,
            name=name if len(attempts) == 1 else f"{name}#{idx + 1}",
            cells=attempt.cells,
            notes=(*table.notes, *attempt.notes(is_epoch_from_0=False)),
            resumed_at=attempt.resumed_at,
        )
        for idx, attempt in enumerate(attempts)
    ]


def _read(line: str) -> _Line | None:
    bare = line.strip()
    if found := _CATBOOST.fullmatch(bare):
        best = read_number(found["best"] or "")
        return _Line(
            step=found["step"],
            values={(part, ""): text for part, text in _SET.findall(found["values"])},
            best=None if best is None else (best, found["at"]),
            total_s=sum(
                float(num) * _UNITS[unit] for num, unit in _DURATION.findall(found["total"])
            ),
        )
    if found := _SKLEARN.fullmatch(bare):
        values = {(part, what): text for part, what, text in _SKLEARN_VALUE.findall(bare)}
        return _Line(step=found[1], values=values) if values else None
    if (head := _ROUND.match(bare)) is None:
        return None
    rest = bare[head.end() :]
    values = {(part, what): text for part, what, text in _XGBOOST.findall(rest)}
    for part, split, what, text in _LIGHTGBM.findall(rest):
        values[split or part, what] = text
    return _Line(step=head[1], values=values) if values else None


def _split(part: str) -> str:
    """Return the split of a set: train, val or test."""
    words = [word for word in re.split(r"[^a-z]+", part.lower()) if word]
    named = {SPLIT_OF_WORD.get(word.removeprefix("d")) or SPLIT_OF_WORD.get(word) for word in words}
    if "learn" in words or "train" in named:
        return "train"
    return "test" if "test" in named else "val"


def _named(lines: Sequence[_Line], *, name: str, path: str) -> Table:
    """Build the table of lines that name their metrics."""
    sets = list(dict.fromkeys(part for line in lines for part, _ in line.values))
    held_out = [part for part in sets if _split(part) != "train"]
    left = set(held_out[:-1])
    cells = [
        {"step": line.step}
        | {
            f"{_split(part)}_{_ERRORS.get(what, what)}": text
            for (part, what), text in line.values.items()
            if part not in left
        }
        for line in lines
    ]
    note = f"of the sets {', '.join(held_out)}, the last one is judged"
    return Table(
        name=name,
        path=path,
        format=LogFormat.TEXT,
        cells=cells,
        notes=(note,) if left else (),
    )


def _catboost(lines: Sequence[_Line], *, name: str, path: str) -> Table:
    """Build the table of CatBoost; the set that `best` is of is judged.

    Source: CatBoost's `eval_set`, which its log calls test.
    """
    judged, is_more = _judged(lines)
    if judged is None:
        cells = [{"step": line.step, "train_loss": line.values["learn", ""]} for line in lines]
        return Table(name=name, path=path, format=LogFormat.TEXT, cells=cells)
    column = "test" if is_more else "test_loss"
    trained = "learn" if is_more else "train_loss"
    better = "more" if is_more else "less"
    as_loss = "" if is_more else ", so it is read as a loss"
    return Table(
        name=name,
        path=path,
        format=LogFormat.TEXT,
        cells=list(_catboost_rows(lines, judged, column, trained)),
        metric=column if is_more else None,
        notes=(
            f"the log does not name its metric; by its column best, {better} is better{as_loss}",
        ),
        known={"is_val_test": True},
    )


def _judged(lines: Sequence[_Line]) -> tuple[str | None, bool]:
    """Return (the held-out set that `best` is of, whether more is better)."""
    sets = list(dict.fromkeys(part for line in lines for part, _ in line.values))
    held_out = [part for part in sets if part != "learn"]
    for part in held_out:
        pairs = [
            (value, line.best[0])
            for line in lines
            if line.best and (value := read_number(line.values.get((part, ""), ""))) is not None
        ]
        if pairs and all(best <= value for value, best in pairs):
            return part, False
        if pairs and all(best >= value for value, best in pairs):
            return part, True
    return next(iter(held_out), None), False


def _catboost_rows(
    lines: Sequence[_Line], judged: str, column: str, trained: str
) -> Iterator[Cells]:
    """Yield the rows, and those of the best iterations that were not printed."""
    printed = {line.step for line in lines}
    for line in lines:
        if line.best is not None and line.best[1] not in printed:
            printed.add(line.best[1])
            yield {"step": line.best[1], column: repr(line.best[0])}
        row = {"step": line.step}
        for part, to in (("learn", trained), (judged, column)):
            if (part, "") in line.values:
                row[to] = line.values[part, ""]
        if line.total_s is not None:
            row["elapsed_s"] = repr(line.total_s)
        yield row

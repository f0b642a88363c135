"""JSON logs: Hugging Face's trainer_state.json, and other files with lists of numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepladder.diagnosis.logs.keras_log import read_keras_history
from stepladder.diagnosis.logs.rows import Cells, Table, split_attempts
from stepladder.errors import DataError
from stepladder.records.audit import LogFormat

_CLOSING = {"{": "}", "[": "]"}
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{},]', re.DOTALL)  # strings, to skip their contents


def read_whole_entries(text: str) -> Any | None:
    """Read truncated JSON up to the last complete entry of a list.

    An incomplete entry is left out, with everything in it.

    Returns:
        The value; None if the text is invalid rather than truncated, or has no complete entry.
    """
    begun, end, left = "", 0, ""
    for token in _TOKENS.finditer(text):
        sign = token[0]
        if sign in _CLOSING:
            begun += sign
        elif sign in ("}", "]"):
            if not begun or _CLOSING[begun[-1]] != sign:
                return None
            begun = begun[:-1]
            if _is_in_first_list(begun) or (sign == "]" and "[" not in begun):
                end, left = token.end(), begun
        elif sign == "," and _is_in_first_list(begun):
            end, left = token.start(), begun
    if not begun or not end:
        return None
    try:
        return json.loads(text[:end] + "".join(_CLOSING[sign] for sign in reversed(left)))
    except json.JSONDecodeError:
        return None


def _is_in_first_list(begun: str) -> bool:
    """Return True if a position is in an outermost list: entries there are complete."""
    return begun.endswith("[") and begun.count("[") == 1


def read_json_log(text: str, *, name: str, path: str) -> list[Table]:
    """Read trainer_state.json, a Keras History, or a list with one object per evaluation.

    Of a file that was truncated, the complete entries are read.

    Raises:
        DataError: if it is not one of these, or has no complete entry.
    """
    try:
        return _tables(json.loads(text), name=name, path=path)
    except json.JSONDecodeError as error:
        value = read_whole_entries(text)
        if value is None:
            raise DataError(
                f"not valid JSON ({error.msg}, line {error.lineno})",
                where=path,
                why="The file may have been truncated while it was written.",
                fix="Pass an older checkpoint's trainer_state.json, or the log as CSV.",
            ) from None
    note = "the file is truncated; the complete entries are read"
    tables = _tables(value, name=name, path=path)
    return [replace(table, notes=(note, *table.notes)) for table in tables]


def _tables(value: Any, *, name: str, path: str) -> list[Table]:
    if isinstance(value, Mapping) and isinstance(value.get("log_history"), list):
        return [_trainer_state(value, name=name, path=path)]
    if isinstance(value, Mapping) and isinstance(value.get("history"), Mapping):
        value = value["history"]
    if isinstance(value, Mapping) and any(_is_numbers(items) for items in value.values()):
        return [read_keras_history(value, name=name, path=path)]
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return _objects(value, name=name, path=path)
    raise DataError(
        "unknown JSON log: it has neither log_history nor lists of numbers by metric",
        where=path,
        fix="Pass trainer_state.json, or a file written with json.dump(history.history, file).",
    )


def read_json_lines(text: str, *, name: str, path: str) -> list[Table]:
    """Read one object per line; an incomplete last line is ignored.

    Raises:
        DataError: if no line is an object.
    """
    found, num_bad = [], 0
    for line in filter(str.strip, text.splitlines()):
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            num_bad += 1
            continue
        if isinstance(value, Mapping):
            found.append(value)
    if not found:
        raise DataError(
            "no line is a JSON object",
            where=path,
            fix='Write one object per line, such as {"epoch": 1, "val_accuracy": 0.8}.',
        )
    notes = (f"{num_bad} lines are not valid JSON and are ignored",) if num_bad else ()
    return _objects(found, name=name, path=path, notes=notes)


def _objects(
    items: list[Mapping[str, Any]], *, name: str, path: str, notes: tuple[str, ...] = ()
) -> list[Table]:
    parts = split_attempts([_cells(item) for item in items])
    return [
        Table(
            name=name if len(parts) == 1 else f"{name}#{idx + 1}",
            path=path,
            format=LogFormat.CSV,
            cells=part,
            is_epoch_from_0=any(row.get("epoch") in ("0", "0.0") for row in part),
            notes=notes,
        )
        for idx, part in enumerate(parts)
    ]


def _trainer_state(value: Mapping[str, Any], *, name: str, path: str) -> Table:
    """Read the log_history; its epochs are fractional."""
    history = [item for item in value["log_history"] if isinstance(item, Mapping)]
    cells = []
    for item in history:
        row = dict(_cells(item))
        if "train_runtime" in row:  # the summary at the end: its train_loss is for the whole run
            row.pop("train_loss", None)
        cells.append(row)
    known: dict[str, object] = {"num_val": _num_evaluated(history)}
    epochs = value.get("num_train_epochs")
    if isinstance(epochs, (int, float)) and epochs >= 1:
        known["max_epochs"] = int(epochs)
    return Table(name=name, path=path, format=LogFormat.TRAINER_STATE, cells=cells, known=known)


def _num_evaluated(history: list[Mapping[str, Any]]) -> int | None:
    """Return the number of evaluated examples: seconds of an evaluation times examples per second.

    Both are rounded to three or four decimals; the number is used if all evaluations agree
    exactly.
    """
    found = set()
    for item in history:
        seconds, rate = item.get("eval_runtime"), item.get("eval_samples_per_second")
        if not isinstance(seconds, (int, float)) or not isinstance(rate, (int, float)):
            continue
        product, doubt = seconds * rate, 6e-5 * rate + 6e-4 * seconds
        if doubt > 0.5 or abs(product - round(product)) > doubt:
            return None
        found.add(round(product))
    return found.pop() if len(found) == 1 else None


def _cells(item: Mapping[str, Any]) -> Cells:
    return {
        str(key): value if isinstance(value, str) else repr(value)
        for key, value in item.items()
        if isinstance(value, (int, float, str)) and not isinstance(value, bool)
    }


def _is_numbers(items: object) -> bool:
    return isinstance(items, list) and any(isinstance(item, (int, float)) for item in items)

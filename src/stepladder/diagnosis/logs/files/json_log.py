"""JSON logs: Hugging Face's trainer_state.json, and other files with lists of numbers."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepladder.diagnosis.logs.files.ray_log import is_ray_log, read_ray_rows
from stepladder.diagnosis.logs.meaning.attempts import split_attempts
from stepladder.diagnosis.logs.meaning.column_names import (
    HELD_OUT,
    meaning,
    read_place,
    score_rank,
    split_of,
)
from stepladder.diagnosis.logs.meaning.rows import Cells, Table
from stepladder.diagnosis.logs.meaning.splits import name_splits
from stepladder.diagnosis.logs.printed.keras_log import read_keras_history
from stepladder.diagnosis.logs.printed.screen import screen_lines
from stepladder.errors import DataError
from stepladder.records.audit import LogFormat

_DICT = re.compile(r"\{\s*(['\"])[^'\"]+\1\s*:.*\}")
_NOT_FINITE = re.compile(r"(?<=[:\s])(-?(?:nan|inf))(?=\s*[,}])")
_EPOCH_BEFORE = re.compile(r"\bepoch\W{0,3}(\d+)", re.IGNORECASE)
_OF_END_RESULTS = ("train", "eval", "predict")
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
                f"the log is not valid JSON ({error.msg}, line {error.lineno})",
                where=path,
                why="The program that wrote it may have been stopped in the middle.",
                fix="Pass another copy of the log; of Hugging Face, the trainer_state.json of an "
                "older checkpoint.",
            ) from None
    note = "the file is truncated; the complete entries are read"
    tables = _tables(value, name=name, path=path)
    return [replace(table, notes=(note, *table.notes)) for table in tables]


def _tables(value: Any, *, name: str, path: str) -> list[Table]:
    if isinstance(value, Mapping) and isinstance(value.get("log_history"), list):
        return [_trainer_state(value, name=name, path=path)]
    if isinstance(value, Mapping) and _is_end_results(value):
        return [_end_results(value, name=name, path=path)]
    if isinstance(value, Mapping) and is_ray_log(list(value)):  # of a single report
        return _objects([value], name=name, path=path)
    if isinstance(value, Mapping) and isinstance(value.get("history"), Mapping):
        value = value["history"]
    if isinstance(value, Mapping) and all(isinstance(item, Mapping) for item in value.values()):
        if rows := _by_epoch(value) or _by_step(value):
            return _objects(rows, name=name, path=path)
        value = {f"{a}/{b}": items for a, inner in value.items() for b, items in inner.items()}
    if isinstance(value, Mapping) and any(_is_numbers(items) for items in value.values()):
        return [read_keras_history(value, name=name, path=path)]
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return _objects(value, name=name, path=path)
    raise DataError(
        "this JSON file is not a training log of a known format: it has neither the key "
        "log_history (Hugging Face) nor a list of numbers for each metric (Keras)",
        where=path,
        fix="Pass trainer_state.json of Hugging Face, or a file that Keras code wrote with "
        "json.dump(history.history, file).",
    )


def _by_epoch(entries: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each epoch; empty if the keys are no epochs."""
    if not all(str(key).strip().isdigit() for key in entries):
        return []
    return [{"epoch": int(key), **item} for key, item in entries.items()]


def _by_step(metrics: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each step of the metrics of Sacred, each with lists of its own; else []."""
    if not all({"steps", "values"} <= found.keys() for found in metrics.values()):
        return []
    rows: dict[float, dict[str, Any]] = {}
    for name, found in metrics.items():
        for step, value in zip(found["steps"], found["values"], strict=False):
            rows.setdefault(step, {"step": step})[name] = value
    return [rows[step] for step in sorted(rows)]


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
            "none of the lines of this log is a JSON object",
            where=path,
            fix='Write one JSON object per line, such as {"epoch": 1, "val_accuracy": 0.8}',
        )
    notes = (f"{num_bad} lines are not valid JSON and are ignored",) if num_bad else ()
    return _objects(found, name=name, path=path, notes=notes)


def _objects(
    items: Sequence[Mapping[str, Any]],
    *,
    name: str,
    path: str,
    notes: tuple[str, ...] = (),
    wrote: LogFormat = LogFormat.CSV,
) -> list[Table]:
    cells: Sequence[Cells] = [_row(item) for item in items]
    if cells and is_ray_log(list(cells[0])):
        rows, fields = read_ray_rows(cells)
        table = Table(name=name, path=path, format=wrote, cells=rows)
        return [replace(table, **fields | {"notes": (*notes, *fields.get("notes", ()))})]
    attempts = split_attempts(name_splits(cells))
    size = _num_evaluated(items)
    has_loss = any("loss" in key.lower() for item in items for key in item)
    return [
        Table(
            name=name if len(attempts) == 1 else f"{name}#{idx + 1}",
            path=path,
            format=wrote,
            cells=attempt.cells,
            is_evaluation=wrote is LogFormat.TEXT and not has_loss,
            is_epoch_from_0=(
                is_from_0 := any(row.get("epoch") in ("0", "0.0") for row in attempt.cells)
            ),
            notes=notes + attempt.notes(is_epoch_from_0=is_from_0),
            resumed_at=attempt.resumed_at,
            known={"num_val": size},
        )
        for idx, attempt in enumerate(attempts)
    ]


def _row(item: Mapping[str, Any]) -> Cells:
    """Return the cells of an object; the summary of Hugging Face's Trainer is not a row."""
    row = dict(_cells(item))
    if "train_runtime" in row:  # its train_loss is the mean of the whole run
        row.pop("train_loss", None)
    return row


def read_metrics_files(files: Sequence[Path], *, name: str, path: str) -> list[Table]:
    """Read a folder with one JSON object per epoch, as AllenNLP writes.

    Raises:
        DataError: if a file is not a JSON object.
    """
    items = []
    for file in files:
        try:
            value = json.loads(file.read_text(encoding="utf-8", errors="replace"))
        except json.JSONDecodeError:
            value = None
        if not isinstance(value, Mapping):
            raise DataError(
                "the folder is read as a log with one file per epoch, but this file is not a JSON "
                "object",
                where=str(file),
                fix="Remove the file from the folder, or write it again.",
            )
        items.append(value)
    items.sort(key=lambda item: read_place(str(item.get("epoch", 0))) or 0.0)
    return _objects(items, name=name, path=path)


def find_dicts(text: str) -> list[Mapping[str, Any]]:
    """Return the dictionaries, or JSON objects, that a text has in its lines.

    Hugging Face's Trainer prints them so.

    A number of the epoch before a dictionary belongs to it.
    """
    found: list[Mapping[str, Any]] = []
    for line in screen_lines(text):
        match = _DICT.search(line)
        if match is None:
            continue
        try:
            is_json = match[1] == '"'
            value = (
                json.loads(match[0])
                if is_json
                else ast.literal_eval(_NOT_FINITE.sub(r"'\1'", match[0]))
            )
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, Mapping) and value:
            place = _EPOCH_BEFORE.search(line[: match.start()])
            found.append({**({"epoch": int(place[1])} if place else {}), **value})
    return found


def read_dicts(items: Sequence[Mapping[str, Any]], *, name: str, path: str) -> list[Table]:
    """Read dictionaries that were printed, one per evaluation or interval of training."""
    return _objects(items, name=name, path=path, wrote=LogFormat.TEXT)


def _is_end_results(value: Mapping[str, Any]) -> bool:
    """Return True for the results that Hugging Face's example scripts save at the end."""
    return any(f"{split}_runtime" in value for split in _OF_END_RESULTS) or (
        any(
            key.startswith("eval_") and (meaning(key) in HELD_OUT or score_rank(key) is not None)
            for key in value
        )
        and all(isinstance(item, (int, float, str)) for item in value.values())
    )


def _end_results(value: Mapping[str, Any], *, name: str, path: str) -> Table:
    """Read the results after the last epoch; those of `predict` are of a test set."""
    if not any(key.startswith(("eval_", "predict_", "test_")) for key in value):
        raise DataError(
            "this file has only how long the training took and its mean loss; nothing was "
            "evaluated on other examples",
            where=path,
            fix="Pass trainer_state.json of this training, or of its newest checkpoint-… folder. "
            "It has one row for each evaluation.",
        )
    return Table(
        name=name,
        path=path,
        format=LogFormat.TRAINER_STATE,
        cells=[
            {re.sub("^predict_", "test_", key): text for key, text in _row(value).items()},
        ],
        notes=(
            "these are the results at the end only; how they changed is in trainer_state.json, of "
            "the training or of its newest checkpoint-… folder",
        ),
        known={"num_val": _num_evaluated([value])},
    )


def _trainer_state(value: Mapping[str, Any], *, name: str, path: str) -> Table:
    """Read the log_history; its epochs are fractional."""
    history = [item for item in value["log_history"] if isinstance(item, Mapping)]
    known: dict[str, object] = {"num_val": _num_evaluated(history)}
    epochs = value.get("num_train_epochs")
    if isinstance(epochs, (int, float)) and epochs >= 1:
        known["max_epochs"] = int(epochs)
    return Table(
        name=name,
        path=path,
        format=LogFormat.TRAINER_STATE,
        cells=[_row(item) for item in history],
        preferred=_best_column(history, value.get("best_metric")),
        known=known,
    )


def _best_column(history: Sequence[Mapping[str, Any]], best: object) -> str | None:
    """Return the metric that the best model was selected by: the only one with this best value."""
    if not isinstance(best, (int, float)):
        return None
    columns: dict[str, list[float]] = {}
    for item in history:
        for key, number in item.items():
            if split_of(key)[0] == "val" and isinstance(number, (int, float)):
                columns.setdefault(key, []).append(number)
    found = [key for key, values in columns.items() if best in (min(values), max(values))]
    return found[0] if len(found) == 1 else None


def _num_evaluated(history: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the number of evaluated examples: seconds of an evaluation times examples per second.

    Both are rounded to three or four decimals; the number is used if all evaluations agree
    exactly.
    """
    found = set()
    for item in history:
        for key in item:
            start = key.removesuffix("runtime")
            if start == key or split_of(key)[0] != "val":
                continue
            seconds, rate = item[key], item.get(f"{start}samples_per_second")
            if not isinstance(seconds, (int, float)) or not isinstance(rate, (int, float)):
                continue
            product, doubt = seconds * rate, 6e-5 * rate + 6e-4 * seconds
            if doubt > 0.5 or abs(product - round(product)) > doubt:
                return None
            if round(product) > 0:  # else the rate was not measured, or rounded to 0
                found.add(round(product))
    return found.pop() if len(found) == 1 else None


def _cells(item: Mapping[str, Any], prefix: str = "") -> Cells:
    """Return the numbers and texts of an object, with those of the objects in it."""
    cells: dict[str, str] = {}
    for key, value in item.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and not prefix:
            cells |= _cells(value, f"{name}/")
        elif isinstance(value, list) and "coco_eval" in name and value:  # AP is the first of 12
            cells |= _cells({name: value[0]})
        elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
            cells[name] = value if isinstance(value, str) else repr(value)
    return cells


def _is_numbers(items: object) -> bool:
    return isinstance(items, list) and any(isinstance(item, (int, float)) for item in items)

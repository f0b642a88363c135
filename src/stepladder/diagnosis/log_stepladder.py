"""Our own run folders as logs, for audits and for comparisons with those of others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from stepladder.errors import DataError
from stepladder.records import read_json, read_jsonl
from stepladder.records.audit import LogFormat, LogRow, RunLog
from stepladder.train.against import samples_seen
from stepladder.train.events import EVENTS_FILE, redacted

SUMMARY = "summary.json"
CONFIG = "config.yaml"
_WAIT = "time_metrics/data_loading(%)"


def read_run_log(path: Path) -> RunLog:
    """Read a run folder, or its events.jsonl alone, however the run ended.

    Raises:
        DataError: if there is no event in it.
    """
    folder = path if path.is_dir() else path.parent
    file = path if path.is_file() else path / EVENTS_FILE
    events = list(read_jsonl(file))
    if not any(event.get("event") in ("train", "validation") for event in events):
        raise DataError(
            "no training is in these events",
            where=str(file),
            fix="Give the folder of a run that came to its first validation.",
        )
    summary = _summary(folder / SUMMARY)
    settings = _settings(folder / CONFIG)
    batch = _number(summary.get("global_batch_size")) or _number(
        settings.get("batch.global_batch_size")
    )
    rows = tuple(_rows(events, num_train=_number(summary.get("num_train")), batch=batch))
    notes = () if summary else ("the run has no summary: it did not end, or has not yet",)
    epochs = [row.epoch for row in rows if row.epoch is not None]
    return RunLog(
        name=folder.resolve().name,
        path=str(path),
        format=LogFormat.STEPLADDER,
        rows=rows,
        num_train=_count(summary.get("num_train")),
        num_val=_count(summary.get("num_val")),
        num_test=_count(summary.get("num_test")),
        epochs=_number(summary.get("epochs")) or max(epochs, default=None),
        max_epochs=_count(settings.get("schedule.max_epochs")),
        total_s=_number(summary.get("train_s")) or _last_elapsed(events),
        test_accuracy=_number(summary.get("test_accuracy")),
        test_loss=_number(summary.get("test_loss")),
        stop_reason=_stop_reason(summary, events),
        data_wait_frac=_number(summary.get("data_wait_frac")),
        settings=settings,
        notes=notes,
    )


def _rows(
    events: Sequence[Mapping[str, Any]], *, num_train: float | None, batch: float | None
) -> list[LogRow]:
    """Give a row for each validation, with the means of training since the one before."""
    rows, train = [], list[Mapping[str, Any]]()
    has_validation = any(event.get("event") == "validation" for event in events)
    for event in events:
        if event.get("event") == "train":
            train.append(event)
        if event.get("event") == ("validation" if has_validation else "train"):
            rows.append(_row(event, train, num_train=num_train, batch=batch))
            train = []
    if has_validation and train:  # the run ended, or was cut, before it validated again
        rows.append(_row({**train[-1], "val_loss": None}, train, num_train=num_train, batch=batch))
    return rows


def _row(
    event: Mapping[str, Any],
    train: Sequence[Mapping[str, Any]],
    *,
    num_train: float | None,
    batch: float | None,
) -> LogRow:
    step, epoch = _number(event.get("step")), _number(event.get("epoch"))
    waits = [_number(item.get(_WAIT)) for item in train]
    known = [wait for wait in waits if wait is not None]
    return LogRow(
        epoch=epoch,
        step=None if step is None else int(step),
        samples_seen=samples_seen(event, num_train, batch),
        elapsed_s=_number(event.get("elapsed_s")),
        train_loss=_mean(train, "train_loss"),
        train_accuracy=_mean(train, "train_accuracy"),
        val_loss=_float(event.get("val_loss")),
        val_loss_sem=_number(event.get("val_loss_sem")),
        val_accuracy=_number(event.get("val_accuracy")),
        learning_rate=_number(train[-1].get("learning_rate")) if train else None,
        data_wait_frac=sum(known) / len(known) / 100 if known else None,
    )


def _mean(events: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [value for event in events if (value := _float(event.get(key))) is not None]
    return sum(values) / len(values) if values else None


def _stop_reason(summary: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str | None:
    stops = [event.get("reason") for event in events if event.get("event") == "stop"]
    reason = summary.get("stop_reason") or (stops[-1] if stops else None)
    return None if reason is None else str(reason)


def _last_elapsed(events: Sequence[Mapping[str, Any]]) -> float | None:
    times = [value for event in events if (value := _number(event.get("elapsed_s"))) is not None]
    return max(times, default=None)


def _summary(path: Path) -> Mapping[str, Any]:
    try:
        value = read_json(path)
    except (DataError, OSError):
        return {}
    return value if isinstance(value, Mapping) else {}


def _settings(path: Path) -> dict[str, str]:
    """Give the options of config.yaml by dotted name, secrets blanked."""
    try:
        value = yaml.safe_load(redacted(path.read_text(encoding="utf-8", errors="replace")))
    except (OSError, yaml.YAMLError):
        return {}
    found: dict[str, str] = {}
    for key, item in value.items() if isinstance(value, dict) else ():
        if isinstance(item, dict):
            found |= {f"{key}.{name}": _word(inner) for name, inner in item.items()}
        else:
            found[str(key)] = _word(item)
    return found


def _word(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _float(value: object) -> float | None:
    """Give a number, also one that is not finite, as events spell it."""
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    found = _float(value)
    return found if found is not None and math.isfinite(found) else None


def _count(value: object) -> int | None:
    found = _number(value)
    return int(found) if found else None

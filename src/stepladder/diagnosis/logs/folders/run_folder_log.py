"""stepladder run folders as logs, for audits and for comparisons with third-party logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from stepladder.diagnosis.runs.run_state import (
    SUMMARY,
    finite,
    is_of_own_task,
    mean_of,
    num_val_of,
    number,
    read_summary,
)
from stepladder.errors import DataError
from stepladder.records import read_jsonl
from stepladder.records.audit import CUT_SHORT, STILL_RUNNING, LogFormat, LogRow, RunLog
from stepladder.training.baseline import samples_seen
from stepladder.training.output.events import EVENTS_FILE, redacted
from stepladder.training.setup.run_lock import may_be_held

CONFIG = "config.yaml"
_RESTORE = "stopping.restore_best"
_STORE = "data.store"
_UNENDED = {STILL_RUNNING: "the run is still running: ", CUT_SHORT: "the run was interrupted: "}
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
            "this file records a run that ended before its first validation, so there is nothing "
            "to judge",
            where=str(file),
            fix="Pass the folder of a run that reached its first validation.",
        )
    summary, damage = read_summary(folder)
    settings, wrong = _settings(folder / CONFIG)
    if is_of_own_task(summary, events):
        settings.pop(_STORE, None)  # of the built-in Task
    damaged = tuple(sentence for sentence in (damage, wrong) if sentence)
    reason = _stop_reason(folder, summary, events)
    batch = _number(summary.get("global_batch_size")) or _number(
        settings.get("batch.global_batch_size")
    )
    rows = tuple(_rows(events, num_train=_number(summary.get("num_train")), batch=batch))
    notes = damaged
    if not summary and not damage:
        notes = (f"{_UNENDED.get(str(reason), '')}it has no {SUMMARY}", *damaged)
    kept, note = _kept(events, rows, summary, settings)
    epochs = [row.epoch for row in rows if row.epoch is not None]
    return RunLog(
        name=folder.resolve().name,
        path=str(path),
        format=LogFormat.STEPLADDER,
        rows=rows,
        num_train=_count(summary.get("num_train")),
        num_val=_count(summary.get("num_val")) or num_val_of(events),
        num_test=_count(summary.get("num_test")),
        epochs=_number(summary.get("epochs")) or max(epochs, default=None),
        max_epochs=_count(settings.get("schedule.max_epochs")),
        total_s=_number(summary.get("train_s")) or _last_elapsed(events),
        test_accuracy=_number(summary.get("test_accuracy")),
        test_loss=_number(summary.get("test_loss")),
        stop_reason=reason,
        data_wait_frac=_number(summary.get("data_wait_frac")),
        settings=settings,
        notes=(*notes, *([note] if note else [])),
        damaged=damaged,
        kept=kept,
    )


def _rows(
    events: Sequence[Mapping[str, Any]], *, num_train: float | None, batch: float | None
) -> list[LogRow]:
    """Return one row per validation, with the means of training since the previous one."""
    rows, train = [], list[Mapping[str, Any]]()
    has_validation = any(event.get("event") == "validation" for event in events)
    for event in events:
        if event.get("event") == "train":
            train.append(event)
        if event.get("event") == ("validation" if has_validation else "train"):
            rows.append(_row(event, train, num_train=num_train, batch=batch))
            train = []
    if has_validation and train:  # the run ended, or was interrupted, before it validated again
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
        train_loss=mean_of(train, "train_loss"),
        train_accuracy=mean_of(train, "train_accuracy"),
        val_loss=number(event.get("val_loss")),
        val_loss_sem=_number(event.get("val_loss_sem")),
        val_accuracy=_number(event.get("val_accuracy")),
        learning_rate=_number(train[-1].get("learning_rate")) if train else None,
        data_wait_frac=sum(known) / len(known) / 100 if known else None,
    )


def _stop_reason(
    folder: Path, summary: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return why the last attempt ended, or that it has not."""
    marks = [event for event in events if event.get("event") in ("start", "stop")]
    if marks and marks[-1]["event"] == "start":
        return STILL_RUNNING if may_be_held(folder) else CUT_SHORT
    reason = summary.get("stop_reason") or (marks[-1].get("reason") if marks else None)
    return None if reason is None else str(reason)


def _kept(
    events: Sequence[Mapping[str, Any]],
    rows: Sequence[LogRow],
    summary: Mapping[str, Any],
    settings: Mapping[str, str],
) -> tuple[LogRow | None, str]:
    """Find the validation of the weights that a run ended with, or has so far.

    Returns:
        (it, a note on what was assumed); None if the run has not validated.
    """
    validations = [event for event in events if event.get("event") == "validation"]
    is_best = summary.get("restore_best", settings.get(_RESTORE, "true") == "true")
    best = [event for event in validations if event.get("is_best")] if is_best else []
    steps = {(best or validations)[-1].get("step")} if validations else set()
    row = next((row for row in reversed(rows) if row.step in steps), None)
    accuracy, loss = _number(summary.get("val_accuracy")), _number(summary.get("val_loss"))
    if accuracy is not None or loss is not None:  # measured at its end, with the same weights
        if row is not None and loss is not None and row.val_loss != loss:
            row = replace(row, val_loss_sem=None)
        row = row or LogRow(epoch=_number(summary.get("epochs")))
        accuracy = row.val_accuracy if accuracy is None else accuracy
        return replace(
            row, val_accuracy=accuracy, val_loss=row.val_loss if loss is None else loss
        ), ""
    last = max((int(s) for e in events if (s := _number(e.get("step"))) is not None), default=0)
    if is_best or row is None or row.step is None or row.step >= last:
        return row, ""
    return (
        row,
        f"its last weights (step {last:,}) were not validated; those of step {row.step:,} were",
    )


def _last_elapsed(events: Sequence[Mapping[str, Any]]) -> float | None:
    times = [value for event in events if (value := _number(event.get("elapsed_s"))) is not None]
    return max(times, default=None)


def _settings(path: Path) -> tuple[dict[str, str], str]:
    """Return (options of config.yaml by dotted name, without secrets; what is wrong with it)."""
    damaged = f"{CONFIG} is damaged: its options are unknown"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        value = yaml.safe_load(redacted(text))
    except FileNotFoundError:
        is_folder = (path.parent / EVENTS_FILE).is_file()
        return {}, f"{CONFIG} is missing: its options are unknown" if is_folder else ""
    except (OSError, yaml.YAMLError):
        return {}, damaged
    if not isinstance(value, dict):
        return {}, damaged
    found: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            found |= {f"{key}.{name}": _word(inner) for name, inner in item.items()}
        else:
            found[str(key)] = _word(item)
    if not text.endswith("\n"):
        return found, f"{CONFIG} is damaged: it is truncated in the middle of a line"
    return found, ""


def _word(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return finite(value)


def _count(value: object) -> int | None:
    found = _number(value)
    return int(found) if found else None

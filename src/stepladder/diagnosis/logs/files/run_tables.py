"""Tables with one row per run, as trackers export them: MLflow, W&B, Neptune, ClearML, Comet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from stepladder.diagnosis.logs.meaning.column_names import (
    Meaning,
    meaning,
    plain_name,
    read_duration,
)
from stepladder.diagnosis.logs.meaning.rows import Cells

_NAMES = ("run_name", "tags_mlflow_run_name", "sys_name", "display_name", "experiment_name",
          "task_name", "name")  # fmt: skip
_IDS = ("run_id", "sys_id", "experiment_key", "id", "run")
_STATES = ("status", "state", "sys_state")
_TIMES = ("duration", "runtime", "sys_running_time", "running_time")
_STARTS = ("start_time", "created", "created_at", "creation_time", "sys_creation_time", "started")
_ENDS = ("end_time", "finished_at", "completed")
_DONE = frozenset({"finished", "completed", "complete", "success", "succeeded", "done", "inactive"})
_FAILED = frozenset({"failed", "fail", "failure", "crashed", "killed", "error", "errored"})
_SETTING = re.compile(r"^(?:params?|config|hparams)[./](?!.*(?:loss|acc))")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|d(?:ays?)?|h(?:ours?|rs?)?|"
                   r"m(?:in(?:ute)?s?)?|s(?:ecs?|econds?)?)(?![a-z])", re.IGNORECASE)  # fmt: skip
_SECONDS = {"ms": 1e-3, "mi": 60.0, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run of such a table.

    Attributes:
        name: of the run; with its id if another one has the same name.
        cells: its results and settings.
        total_s: how long it took; None: not in the table.
        state: column and value, if it has not finished; otherwise empty.
    """

    name: str
    cells: Cells
    total_s: float | None
    state: str


def run_rows(cells: Sequence[Cells], header: Sequence[str]) -> list[RunRow]:
    """Return the runs of a table with one row per run; empty for any other table.

    It has a column of names or ids that are all different, and one of states, or else of the start
    and the duration. The names are preferred.
    """
    columns = {plain_name(name): name for name in reversed(header)}
    name, id_, state, time, start, end = (
        next((columns[known] for known in wanted if known in columns), None)
        for wanted in (_NAMES, _IDS, _STATES, _TIMES, _STARTS, _ENDS)
    )
    if name is None and id_ is None:
        return []
    if state is None and (start is None or (time is None and end is None)):
        return []
    ids = [row.get(id_ or name or "", "") for row in cells]
    if len(set(ids)) < len(ids) and (id_ is not None or _has_places(header)):
        return []
    names = [row.get(name or "", "") or one for row, one in zip(cells, ids, strict=True)]
    used = {column for column in (name, id_, state, time, start, end) if column is not None}
    return [
        RunRow(
            name=title if names.count(title) == 1 or id_ is None else f"{title} ({one[:8]})",
            cells={
                _SETTING.sub("", column): text
                for column, text in row.items()
                if column not in used and meaning(column) is not Meaning.RUN
            },
            total_s=_total_s(row, time, start, end),
            state=_unfinished(row, state),
        )
        for row, title, one in zip(cells, names, ids, strict=True)
    ]


def _has_places(header: Sequence[str]) -> bool:
    return any(meaning(name) in (Meaning.EPOCH, Meaning.STEP) for name in header)


def _unfinished(row: Cells, column: str | None) -> str:
    text = row.get(column or "", "")
    return f"{column} {text}" if text and text.lower() not in _DONE else ""


def _total_s(row: Cells, time: str | None, start: str | None, end: str | None) -> float | None:
    if time is not None and row.get(time):
        parts = _PART.findall(row[time])
        if parts:
            return sum(float(num) * _seconds(unit.lower()) for num, unit in parts)
        return read_duration(row[time])
    if start is None or end is None:
        return None
    try:
        first, last = (datetime.fromisoformat(row.get(column, "")) for column in (start, end))
        return (last - first).total_seconds()
    except (ValueError, TypeError):
        return None


def _seconds(unit: str) -> float:
    if unit.startswith("milli"):
        return _SECONDS["ms"]
    return _SECONDS.get(unit[:2]) or _SECONDS[unit[0]]


def known_of(row: RunRow) -> Mapping[str, object]:
    """Return what the table says about a run beside its results."""
    is_failed = row.state.rpartition(" ")[2].lower() in _FAILED
    return {
        "total_s": row.total_s,
        "stop_reason": row.state or None,
        "ended_by": row.state if is_failed else None,
    }

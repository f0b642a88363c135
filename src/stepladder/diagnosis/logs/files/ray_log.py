"""Ray Tune: progress.csv and result.json, with one row per report of a trial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepladder.diagnosis.logs.meaning.column_names import (
    ACCURACIES,
    LOSSES,
    Meaning,
    has_split,
    meaning,
    score_rank,
)
from stepladder.diagnosis.logs.meaning.rows import Cells

_ITERATION = "training_iteration"
_BESIDE = frozenset({"trial_id", "time_this_iter_s", "iterations_since_restore"})
_ELAPSED = "time_total_s"
_CONFIG = ("config/", "config.")
_LEFT_OUT = frozenset(  # about the trial, not of the model
    {
        *_BESIDE,
        _ITERATION,
        _ELAPSED,
        "timestamp",
        "date",
        "done",
        "pid",
        "hostname",
        "node_ip",
        "time_since_restore",
        "timesteps_total",
        "timesteps_since_restore",
        "episodes_total",
        "should_checkpoint",
        "checkpoint_dir_name",
        "experiment_id",
        "experiment_tag",
        "warmup_time",
    }
)
_NOTE = (
    "Ray Tune does not say which examples {names} {is_of}; as the trial reported nothing else, "
    "{it_is} read as held-out. For training, report names such as train_loss"
)


def is_ray_log(columns: Sequence[str]) -> bool:
    """Return True if a table has the columns that Ray Tune adds to each report."""
    return _ITERATION in columns and bool(_BESIDE & set(columns))


def read_ray_rows(cells: Sequence[Cells]) -> tuple[list[Cells], dict[str, Any]]:
    """Return (the rows without what is about the trial, further fields of the table).

    An iteration is an epoch, unless the trial reported epochs itself. If no reported name has a
    split, the values are those of an evaluation, by which Ray Tune selects the best trial.
    """
    columns = list(dict.fromkeys(name for row in cells for name in row))
    own = [name for name in columns if name not in _LEFT_OUT and not name.startswith(_CONFIG)]
    place = {} if any(meaning(name) is Meaning.EPOCH for name in own) else {_ITERATION: "epoch"}
    place[_ELAPSED] = "elapsed_s"
    rows: list[Cells] = [
        {new: row[name] for name, new in place.items() if row.get(name)}
        | {name: text for name, text in row.items() if name in own}
        for row in cells
    ]
    fields: dict[str, Any] = {}
    values = [n for n in own if meaning(n) in ACCURACIES | LOSSES or score_rank(n) is not None]
    if values and not any(map(has_split, values)):
        is_one = len(values) == 1
        note = _NOTE.format(
            names=" and ".join(values),
            is_of="is of" if is_one else "are of",
            it_is="it is" if is_one else "they are",
        )
        fields = {"is_evaluation": True, "notes": (note,)}
    settings = {n[len(_CONFIG[0]) :]: cells[0][n] for n in columns if n.startswith(_CONFIG)}
    return rows, fields | ({"known": {"settings": settings}} if settings else {})

"""MLflow runs: in folders, or from a tracking URI."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from stepladder.diagnosis.logs.meaning.rows import Cells, Table
from stepladder.diagnosis.logs.meaning.steps import Point, with_steps
from stepladder.errors import DataError, MissingExtraError, ResourceError, UsageError
from stepladder.records.audit import LogFormat

_MAX_RUNS = 50
_BAD_STATES = {"4": "FAILED", "5": "KILLED", "FAILED": "FAILED", "KILLED": "KILLED"}
_PLANNED = ("epochs", "max_epochs", "num_epochs", "n_epochs", "num_train_epochs")


def is_mlflow_uri(word: str) -> bool:
    """Return True if an argument is the address of a run on an MLflow server."""
    return "://" in word or word.startswith("runs:/")


def mlflow_runs(path: Path) -> list[Path]:
    """Find the run folders in a run, an experiment or a file store, oldest first."""
    if not path.is_dir():
        return []
    for pattern in (".", "*", "*/*", "mlruns/*/*"):
        found = (
            [folder for folder in path.glob(pattern) if (folder / "metrics").is_dir()]
            if pattern != "."
            else ([path] if (path / "metrics").is_dir() else [])
        )
        found = [run for run in found if (run / "meta.yaml").is_file()]
        if found:
            return sorted(found, key=lambda run: (_start_ms(run) or 0.0, run.name))
    return []


def read_mlflow_folder(runs: list[Path]) -> list[Table]:
    """Read runs of a file store.

    Raises:
        DataError: if there are too many for one job.
    """
    if len(runs) > _MAX_RUNS:
        raise DataError(
            f"this MLflow folder contains {len(runs)} runs, but at most {_MAX_RUNS} can be read "
            "at once",
            where=str(runs[0].parent),
            fix=f"Pass the folders of single runs, such as {runs[0]}.",
        )
    return [_folder_table(run) for run in runs]


def read_mlflow_uri(word: str) -> Table:
    """Read one run through MLflow's client: `runs:/RUN_ID`, or `TRACKING_URI#RUN_ID`.

    Raises:
        MissingExtraError: if mlflow is not installed.
        UsageError: if the run id is missing.
        ResourceError: if the store cannot be reached, or does not have the run.
    """
    uri, _, run_id = word.rpartition("#")
    if word.startswith("runs:/"):
        uri, run_id = "", word.removeprefix("runs:/").partition("/")[0]
    if not run_id or "://" in run_id:
        raise UsageError(
            "the MLflow address does not say which run to read",
            where=word,
            fix=f"Add the id of the run: {word}#RUN_ID. Or set MLFLOW_TRACKING_URI, and pass "
            "runs:/RUN_ID.",
        )
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    if uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise MissingExtraError("Reading a run of MLflow", "mlflow") from error
    try:
        client: Any = MlflowClient(tracking_uri=uri or None)
        run = client.get_run(run_id)
        points = [
            (key, point.step, point.value, point.timestamp)
            for key in run.data.metrics
            for point in client.get_metric_history(run_id, key)
        ]
    except Exception as error:  # a third-party client may raise anything
        raise ResourceError(
            f"MLflow could not read the run ({str(error).splitlines()[0][:200]})",
            where=word,
            fix="Correct the address or the run id, or pass the folder of the run in mlruns.",
        ) from error
    placed, notes = with_steps(points)
    return Table(
        name=run.info.run_name or run_id[:8],
        path=word,
        format=LogFormat.MLFLOW,
        cells=_cells(placed, run.info.start_time),
        notes=notes,
        known={"settings": dict(run.data.params), **_ended(run.info.status, run.data.params)},
    )


def _folder_table(run: Path) -> Table:
    meta = _meta(run)
    points, num_bad = [], 0
    for file in sorted((run / "metrics").rglob("*")):
        if not file.is_file():
            continue
        key = str(file.relative_to(run / "metrics"))
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split()
            try:
                points.append((key, int(words[2]), float(words[1]), float(words[0])))
            except (IndexError, ValueError):
                num_bad += 1
    params = {
        str(file.relative_to(run / "params")): file.read_text(encoding="utf-8", errors="replace")
        for file in sorted((run / "params").rglob("*"))
        if file.is_file()
    }
    placed, notes = with_steps(points)
    notes += (f"{num_bad} lines of metrics could not be read",) if num_bad else ()
    return Table(
        name=str(meta.get("run_name") or run.name[:8]),
        path=str(run),
        format=LogFormat.MLFLOW,
        cells=_cells(placed, _start_ms(run)),
        notes=notes,
        known={**({"settings": params} if params else {}), **_ended(meta.get("status"), params)},
    )


def _ended(status: object, params: Mapping[str, str]) -> dict[str, object]:
    """Return the state of a run that failed, and the epochs that it was to train."""
    state = _BAD_STATES.get(str(status))
    if state is None:
        return {}
    planned = next((text for name in _PLANNED if (text := params.get(name, "")).isdigit()), None)
    return {
        "ended_by": f"status {state}",
        "max_epochs": None if planned is None else int(planned),
    }


def _cells(points: Sequence[Point], start_ms: float | None) -> list[Cells]:
    """Return one row per step; if a key occurs twice at a step, the later value is kept."""
    rows: dict[int, dict[str, str]] = {}
    first_ms = start_ms
    for key, step, value, at_ms in points:
        first_ms = at_ms if first_ms is None else first_ms
        row = rows.setdefault(step, {})
        row[key] = repr(value)
        row["elapsed_s"] = repr((at_ms - first_ms) / 1e3)
    return [{"step": str(step), **rows[step]} for step in sorted(rows)]


def _start_ms(run: Path) -> float | None:
    start = _meta(run).get("start_time")
    return float(start) if isinstance(start, (int, float)) else None


def _meta(run: Path) -> Mapping[str, Any]:
    try:
        value = yaml.safe_load((run / "meta.yaml").read_text(encoding="utf-8", errors="replace"))
    except (OSError, yaml.YAMLError):
        return {}
    return value if isinstance(value, Mapping) else {}

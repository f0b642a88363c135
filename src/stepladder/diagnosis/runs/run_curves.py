"""The curves of a run folder: finished, running or interrupted."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.config.load import load_job
from stepladder.config.options import JobConfig
from stepladder.diagnosis.fit.curves import (
    DEFAULT_PATIENCE,
    MAX_PATIENCE,
    MIN_PATIENCE,
    Curves,
    Point,
)
from stepladder.diagnosis.runs.run_state import (
    SUMMARY,
    best_validation,
    finite,
    mean_of,
    num_val_of,
    number,
    read_summary,
)
from stepladder.errors import DataError, StepladderError, UsageError
from stepladder.records import read_json, read_jsonl
from stepladder.training.output.events import EVENTS_FILE


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The files of a run, as plain data.

    Attributes:
        path: the folder.
        events: complete lines of events.jsonl, in order.
        summary: summary.json; empty if it does not exist.
        env: env.json; empty if it does not exist.
        job: config.yaml; None if it is missing or cannot be read.
        missing: what could not be read, one sentence each.
    """

    path: Path
    events: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any]
    env: Mapping[str, Any]
    job: JobConfig | None
    missing: tuple[str, ...] = ()

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the events of a kind."""
        return [event for event in self.events if event.get("event") == kind]

    @property
    def is_running(self) -> bool:
        """Return whether the last attempt has not ended: it is running, or was killed."""
        if not self.events:
            return not self.summary
        starts = [idx for idx, event in enumerate(self.events) if event.get("event") == "start"]
        since = self.events[starts[-1] :] if starts else self.events
        return not any(event.get("event") == "stop" for event in since)

    @property
    def is_interrupted(self) -> bool:
        """Return whether it was stopped by the user or the machine before its own end."""
        stops = self.of("stop")
        return bool(stops) and stops[-1].get("reason") == "signal"

    @property
    def is_diverged(self) -> bool:
        """Return whether a loss was not finite."""
        return self.summary.get("status") == "diverged" or bool(self.of("diverged"))


def read_run(run: Path) -> RunFiles:
    """Read the files of a run; what is missing or damaged is listed, not raised.

    Raises:
        DataError: if there is neither an event nor a summary.
    """
    missing: list[str] = []
    events = _events(run / EVENTS_FILE, missing)
    summary, damage = read_summary(run)
    if damage:
        missing.append(f"{damage}. List all damage: stepladder verify {shlex.quote(str(run))}")
    elif not summary:
        missing.append(f"{SUMMARY} is missing: the run is still running, or was interrupted")
    if not events and not summary:
        raise DataError(
            "no events of a run are recorded in this folder, so there is nothing to diagnose",
            where=str(run),
            fix="Let the run train until its first validation, or pass the folder of another run.",
        )
    job: JobConfig | None = None
    try:
        job = load_job(run / "config.yaml")
    except (StepladderError, OSError) as error:
        what = error.what if isinstance(error, StepladderError) else str(error)
        missing.append(f"config.yaml cannot be read ({what}): its options are unknown")
    return RunFiles(
        path=run,
        events=events,
        summary=summary,
        env=_object(run / "env.json"),
        job=job,
        missing=tuple(missing),
    )


def curves_of_run(
    files: RunFiles, *, num_val: int | None = None, target_error: float = 0.0
) -> Curves:
    """Return the curves of a run: one point per validation, with the training before it.

    Args:
        num_val: number of validation examples, if there is no summary.
        target_error: share of examples that cannot be predicted correctly, in [0, 1].

    Raises:
        UsageError: if target_error is not in [0, 1).
    """
    if not 0 <= target_error < 1:
        raise UsageError(
            f"{target_error} is not an error rate, which is a number from 0 to below 1",
            where="--target-error",
            fix="Pass the lowest error rate that is possible, such as 0.02 if 2 % of the labels "
            "are wrong.",
        )
    trains = files.of("train")
    windows = [(step, loss) for e in trains if (step := _step(e)) is not None
               and (loss := number(e.get("train_loss"))) is not None]  # fmt: skip
    best = best_validation(files.summary, files.of("validation"))
    return Curves(
        points=_points(files.of("validation"), trains),
        num_val=int(number(files.summary.get("num_val")) or 0)
        or num_val
        or num_val_of(files.events),
        num_classes=_num_classes(files),
        patience=_patience(files.job),
        train_windows=tuple(windows),
        is_running=files.is_running or files.is_interrupted,
        is_diverged=files.is_diverged,
        diverged_step=_step(diverged[-1]) if (diverged := files.of("diverged")) else None,
        best_step=None if best is None else best.step,
        keeps_best=_keeps_best(files),
        target_error=target_error,
    )


def _keeps_best(files: RunFiles) -> bool:
    """Return whether the run saves the best weights rather than the last ones."""
    kept = files.summary.get("restore_best")
    if kept is None and files.job is not None:
        kept = files.job.recipe.stopping.restore_best
    return kept is True


def _points(
    validations: Sequence[Mapping[str, Any]], trains: Sequence[Mapping[str, Any]]
) -> tuple[Point, ...]:
    points = []
    before = 0
    for event in validations:
        step = _step(event)
        if step is None:
            continue
        since = [t for t in trains if (s := _step(t)) is not None and before < s <= step]
        before = step
        points.append(
            Point(
                step=step,
                epoch=number(event.get("epoch")),
                train_loss=mean_of(since, "train_loss"),
                train_accuracy=mean_of(since, "train_accuracy"),
                val_loss=number(event.get("val_loss")),
                val_loss_sem=finite(event.get("val_loss_sem")),
                rise_sem=finite(event.get("improvement_sem")),
                val_accuracy=finite(event.get("val_accuracy")),
            )
        )
    return tuple(points)


def _step(event: Mapping[str, Any]) -> int | None:
    value = event.get("step")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _num_classes(files: RunFiles) -> int | None:
    """Count the classes, if this is a classification: accuracy is measured."""
    classes = files.summary.get("classes")
    has_accuracy = any("val_accuracy" in event for event in files.of("validation"))
    return len(classes) if isinstance(classes, list) and classes and has_accuracy else None


def _patience(job: JobConfig | None) -> int:
    if job is None or not job.recipe.stopping.early:
        return DEFAULT_PATIENCE
    return min(max(MIN_PATIENCE, job.recipe.stopping.patience), MAX_PATIENCE)


def _events(path: Path, missing: list[str]) -> tuple[Mapping[str, Any], ...]:
    try:
        events = tuple(read_jsonl(path))
    except OSError as error:
        missing.append(f"{path.name} cannot be read ({error.strerror}): there are no curves")
        return ()
    if not events:
        missing.append(f"{path.name} is missing or has no complete line: there are no curves")
    return events


def _object(path: Path) -> Mapping[str, Any]:
    try:
        value = read_json(path)
    except (DataError, OSError):
        return {}
    return value if isinstance(value, dict) else {}

"""TensorBoard's event files, read by TensorBoard's own reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepladder.diagnosis.logs.column_names import plain_name
from stepladder.diagnosis.logs.rows import Cells, Table
from stepladder.errors import DataError, MissingExtraError
from stepladder.records.audit import LogFormat

_PATTERN = "*tfevents*"
_SIDES = {"train": "", "validation": "val_", "val": "val_", "eval": "val_", "test": "test_"}


def has_event_files(path: Path) -> bool:
    """Return True if a path is an event file, or a folder that contains any at any depth."""
    return "tfevents" in path.name if path.is_file() else any(path.rglob(_PATTERN))


def read_tensorboard(path: Path, *, name: str) -> list[Table]:
    """Read the scalars of an event file or of a folder.

    Each folder of event files is a training; folders `train` and `validation` next to each other,
    as Keras writes them, are one.

    Raises:
        MissingExtraError: if tensorboard is not installed.
        DataError: if the files contain no scalars.
    """
    files = [path] if path.is_file() else sorted(path.rglob(_PATTERN))
    runs: dict[Path, dict[str, list[Path]]] = {}
    for file in files:
        folder = file.parent
        is_side = folder.name in _SIDES and (folder != path or path.is_file())
        place, side = (folder.parent, folder.name) if is_side else (folder, "")
        runs.setdefault(place, {}).setdefault(side, []).append(file)
    tables = []
    for folder, sides in runs.items():
        title = name if len(runs) == 1 else f"{name}/{_relative(folder, path)}"
        table = _table(sides, title=title, path=str(path))
        if table.cells:
            tables.append(table)
    if not tables:
        raise DataError(
            "the event files contain no scalars",
            where=str(path),
            fix="Pass the folder that the training's SummaryWriter wrote to.",
        )
    return tables


def _relative(folder: Path, root: Path) -> str:
    return str(folder.relative_to(root)) if folder.is_relative_to(root) else folder.name


def _table(sides: dict[str, list[Path]], *, title: str, path: str) -> Table:
    by_step: dict[int, dict[str, str]] = {}
    is_keras = False
    points = [
        (_SIDES.get(side, ""), point)
        for side, files in sides.items()
        for folder in dict.fromkeys(file.parent for file in files)
        for point in _scalars(folder if len(files) > 1 else files[0])
    ]
    first_s = min((wall for _, (_, _, _, wall) in points), default=0.0)
    for prefix, (tag, step, value, wall) in points:
        is_keras |= tag in ("epoch_loss", "epoch_accuracy")
        row = by_step.setdefault(step, {})
        text = plain_name(tag)
        row[f"{prefix}{text}" if prefix and not text.startswith(prefix) else tag] = repr(value)
        row["elapsed_s"] = repr(wall - first_s)
    place = "epoch" if is_keras else "step"
    cells: list[Cells] = [{place: str(step), **by_step[step]} for step in sorted(by_step)]
    return Table(
        name=title, path=path, format=LogFormat.TENSORBOARD, cells=cells, is_epoch_from_0=is_keras
    )


def _scalars(path: Path) -> Iterator[tuple[str, int, float, float]]:
    """Yield (tag, step, value, Unix time in seconds) of all scalars; other values are skipped."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise MissingExtraError("Reading TensorBoard files", "tensorboard") from error
    events: Any = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    for tag in tags.get("scalars", ()):
        for event in events.Scalars(tag):
            yield tag, event.step, float(event.value), event.wall_time
    for tag in tags.get("tensors", ()):
        for event in events.Tensors(tag):
            array = make_ndarray(event.tensor_proto)
            if array.size == 1 and array.dtype.kind in "fiu":
                yield tag, event.step, float(array.reshape(())), event.wall_time

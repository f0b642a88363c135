"""TensorBoard's event files, read by TensorBoard's own reader."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stepladder.diagnosis.logs.meaning.column_names import (
    SPLIT_OF_WORD,
    meaning,
    plain_name,
    read_number,
    split_of,
)
from stepladder.diagnosis.logs.meaning.rows import Cells, Table
from stepladder.diagnosis.logs.meaning.steps import Point, with_steps
from stepladder.errors import DataError, MissingExtraError
from stepladder.records.audit import LogFormat

_PATTERN = "*tfevents*"
_RECORD_HEAD = 12  # bytes


def has_event_files(path: Path) -> bool:
    """Return True if a path is an event file, or a folder that contains any at any depth."""
    return "tfevents" in path.name if path.is_file() else any(path.rglob(_PATTERN))


def read_tensorboard(path: Path, *, name: str) -> list[Table]:
    """Read the scalars of an event file or of a folder.

    Each folder of event files is a training. Folders named after a split belong to the one that
    they are in: `train` and `validation` of Keras, and those of `add_scalars` of PyTorch, such as
    `Loss_val`. Files of one folder follow each other: steps that start again at the first one are
    another training, and steps that go back to a later one replace the earlier values.

    Raises:
        MissingExtraError: if tensorboard is not installed.
        DataError: if the files contain no scalars.
    """
    files = [path] if path.is_file() else sorted(path.rglob(_PATTERN))
    runs: dict[Path, dict[Path, list[Path]]] = {}
    for file in files:
        folder = file.parent
        is_side = split_of(folder.name)[0] is not None and (folder != path or path.is_file())
        runs.setdefault(folder.parent if is_side else folder, {}).setdefault(folder, []).append(
            file
        )
    tables = []
    for place, folders in runs.items():
        attempts = _attempts(place, folders)
        cut = [
            f"the last record of {file.name} is incomplete and is ignored"
            for of_folder in folders.values()
            for file in of_folder
            if _is_cut(file)
        ]
        title = name if len(runs) == 1 else f"{name}/{_relative(place, path)}"
        for idx, (points, note) in enumerate(attempts):
            table = table_of(
                points,
                title=title if len(attempts) == 1 else f"{title}#{idx + 1}",
                path=str(path),
                notes=(*((note,) if note else ()), *cut),
            )
            if table.cells:
                tables.append(table)
    if not tables:
        raise DataError(
            "the TensorBoard files contain no scalars, such as a loss or an accuracy",
            where=str(path),
            fix="Pass the folder into which add_scalar of the training's SummaryWriter wrote.",
        )
    return tables


def _is_cut(file: Path) -> bool:
    """Return True if a file ends within a record: length (8 bytes), CRC (4), data, CRC (4)."""
    end = file.stat().st_size
    with file.open("rb") as records:
        while (at := records.tell()) < end:
            head = records.read(_RECORD_HEAD)
            if len(head) < _RECORD_HEAD:
                return True
            (length,) = struct.unpack("<Q", head[:8])
            if at + _RECORD_HEAD + length + 4 > end:
                return True
            records.seek(at + _RECORD_HEAD + length + 4)
    return False


def _relative(folder: Path, root: Path) -> str:
    return str(folder.relative_to(root)) if folder.is_relative_to(root) else folder.name


def _attempts(place: Path, folders: dict[Path, list[Path]]) -> list[tuple[list[Point], str]]:
    """Return the trainings of a folder: their points, and what was replaced."""
    by_folder = [
        _folder_attempts(files, folder if folder != place else None)
        for folder, files in folders.items()
    ]
    num = max(map(len, by_folder))
    attempts: list[tuple[list[Point], str]] = []
    for idx in range(num):
        own = [found[idx] for found in by_folder if idx < len(found)]
        note = next((note for _, note in own if note), "")
        attempts.append(([point for points, _ in own for point in points], note))
    return attempts


def _folder_attempts(files: Sequence[Path], side: Path | None) -> list[tuple[list[Point], str]]:
    """Read the files of one folder in the order in which they were written."""
    attempts: list[tuple[list[Point], str]] = []
    read = [
        [
            (named_by_folder(tag, side.name) if side is not None else tag, step, value, wall)
            for tag, step, value, wall in _scalars(file)
        ]
        for file in files
    ]
    for points in sorted(filter(None, read), key=lambda points: min(wall for *_, wall in points)):
        before = attempts[-1][0] if attempts else []
        shared = {tag for tag, *_ in before} & {tag for tag, *_ in points}
        steps = [step for tag, step, *_ in points if tag in shared]
        old = [step for tag, step, *_ in before if tag in shared]
        if not attempts or (steps and min(steps) <= min(old) < max(old)):
            attempts.append((points, ""))
            continue
        note = attempts[-1][1]
        if steps and min(steps) <= max(old):
            note = f"it was resumed at step {min(steps)}: earlier values from there on are replaced"
            before = [point for point in before if point[1] < min(steps)]
        attempts[-1] = ([*before, *points], note)
    return attempts


def named_by_folder(tag: str, folder: str) -> str:
    """Return a tag with the split of its folder.

    `add_scalars("Loss", {"val": …})` writes the tag `Loss` to the folder `Loss_val`. If the second
    name is that of a metric (`run_val_loss`), it is the tag.
    """
    main = tag.strip("/").replace("/", "_")
    rest = folder.removeprefix(f"{main}_") if folder.startswith(f"{main}_") else folder
    if meaning(rest) is not None:
        return rest
    words = plain_name(rest).split("_")
    split = next((SPLIT_OF_WORD[word] for word in words if word in SPLIT_OF_WORD), None)
    return tag if split is None or split_of(tag)[0] is not None else f"{split}_{tag}"


def table_of(points: Sequence[Point], *, title: str, path: str, notes: tuple[str, ...]) -> Table:
    """Return the table of one training: a row per step, in the order of the steps."""
    by_step: dict[int, dict[str, str]] = {}
    is_keras = False
    first_s = min((wall for *_, wall in points), default=0.0)
    placed, assumed = with_steps(points)
    for tag, step, value, wall in placed:
        is_keras |= "epoch_loss" in tag
        row = by_step.setdefault(step, {})
        row[tag] = repr(value)
        row["elapsed_s"] = repr(wall - first_s)
    place = "epoch" if is_keras else "step"
    cells: list[Cells] = [{place: str(step), **by_step[step]} for step in sorted(by_step)]
    return Table(
        name=title,
        path=path,
        format=LogFormat.TENSORBOARD,
        cells=cells,
        is_epoch_from_0=is_keras or any(read_number(row.get("epoch", "")) == 0 for row in cells),
        notes=(*assumed, *notes),
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

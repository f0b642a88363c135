"""CSV files of TensorBoard's download button: one file per run and tag."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from stepladder.diagnosis.logs.folders.tensorboard_log import named_by_folder, table_of
from stepladder.diagnosis.logs.meaning.column_names import SPLIT_OF_WORD, plain_name, read_number
from stepladder.diagnosis.logs.meaning.rows import Table
from stepladder.diagnosis.logs.meaning.steps import Point

_HEADER = ["wall_time", "step", "value"]
_NAME = re.compile(r"run[-_](?P<run>.*?)[-_]tag-(?P<tag>.+)")
_NUMBERED = re.compile(r" ?\(\d+\)$")  # of a browser's second download
_SPLIT = re.compile(rf"(?:^|[-_. ])({'|'.join(SPLIT_OF_WORD)})$", re.IGNORECASE)


def is_tag_file(path: Path) -> bool:
    """Return True if a file is one that TensorBoard's download button wrote."""
    if path.suffix.lower() != ".csv" or _NAME.match(path.stem) is None or not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        return [plain_name(name) for name in next(csv.reader(file), [])] == _HEADER


def tag_files(folder: Path) -> list[Path]:
    """Return all such files directly in a folder."""
    return [file for file in sorted(folder.glob("*.csv")) if is_tag_file(file)]


def files_of_run(file: Path) -> list[Path]:
    """Return the files in the same folder that are of the same training as one of them."""
    run = _run(file)[0]
    return [other for other in tag_files(file.parent) if _run(other)[0] == run]


def read_tag_files(files: Sequence[Path], *, name: str, path: str) -> list[Table]:
    """Read such files: runs whose names differ by their split only are one training.

    Args:
        name: of the training, if there is only one and its run has no name.
    """
    runs: dict[str, list[Path]] = {}
    for file in files:
        runs.setdefault(_run(file)[0], []).append(file)
    return [
        table_of(
            [point for file in own for point in _points(file)],
            title=run or name,
            path=path if len(runs) == 1 else str(own[0]),
            notes=(f"{len(own)} files of this run are read together",) if len(own) > 1 else (),
        )
        for run, own in runs.items()
    ]


def _run(file: Path) -> tuple[str, str]:
    """Return (the run in a file's name, its split): `run-NAME_train-tag-loss` is (NAME, train)."""
    found = _NAME.match(file.stem)
    whole = "" if found is None else found["run"].rstrip("-_. ")
    split = _SPLIT.search(whole)
    if found is None or split is None:
        return whole, ""
    run = whole[: split.start()]  # of add_scalars, which names a folder RUN_TAG_SPLIT
    return run.removesuffix(found["tag"]).rstrip("-_. "), split[1]


def _points(file: Path) -> list[Point]:
    found = _NAME.match(_NUMBERED.sub("", file.stem))
    tag = named_by_folder("" if found is None else found["tag"], _run(file)[1])
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as opened:
        rows = [list(map(read_number, row)) for row in list(csv.reader(opened))[1:]]
    return [
        (tag, int(row[1]), row[2], row[0])
        for row in rows
        if len(row) == 3 and row[0] is not None and row[1] is not None and row[2] is not None
    ]

"""Classify images with a trained run."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from stepladder.data.decoding.decode import decode_picture
from stepladder.data.decoding.formats import PICTURE_SUFFIXES
from stepladder.errors import DataError
from stepladder.exporting.trained import Trained, load_trained
from stepladder.records.near_paths import did_you_mean_path
from stepladder.task.contract import Task

SUFFIXES = tuple(sorted(PICTURE_SUFFIXES))
"""Suffixes of the files read from a folder; a file that is named directly may have any."""

BATCH_SIZE = 32
TOP = 5

Pixels: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class PicturePrediction:
    """The prediction of a picture.

    Attributes:
        label: the most likely class; empty if the picture cannot be read.
        probability: of that class, in [0, 1].
        top: the most likely classes with their probabilities, at most five, best first.
        error: why the picture cannot be read; None if it can.
    """

    path: Path
    label: str = ""
    probability: float = 0.0
    top: tuple[tuple[str, float], ...] = ()
    error: str | None = None


def predict(
    run: Path, pictures: Sequence[Path], *, task: Task | None = None
) -> list[PicturePrediction]:
    """Classify pictures, and all pictures in folders, with a run's best weights.

    An unreadable picture is reported in its place, and does not affect the others. A run of the
    user's own Task needs the task.

    Raises:
        DataError: if the run cannot be read, a path does not exist, a folder has no picture, or no
            picture can be read.
    """
    trained = load_trained(run, task=task)
    files = [file for path in pictures for file in _files(Path(path))]
    predictions: list[PicturePrediction] = []
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for start in range(0, len(files), BATCH_SIZE):
            part = files[start : start + BATCH_SIZE]
            decoded = list(pool.map(lambda file: _read(file, trained), part))
            predictions += _predict_batch(trained, part, decoded)
    if predictions and all(item.error for item in predictions):
        first = predictions[0]
        raise DataError(
            f"none of the pictures can be read; the first one, this file, {first.error}",
            where=str(first.path),
            fix="Pass files in JPEG, PNG or other picture formats, or folders of them.",
        )
    return predictions


def _predict_batch(
    trained: Trained, files: Sequence[Path], decoded: Sequence[Pixels | str]
) -> Iterator[PicturePrediction]:
    readable = [pixels for pixels in decoded if not isinstance(pixels, str)]
    probabilities = iter(_probabilities(trained, readable))
    for file, pixels in zip(files, decoded, strict=True):
        if isinstance(pixels, str):
            yield PicturePrediction(path=file, error=pixels)
            continue
        row = next(probabilities)
        best = np.argsort(-row, kind="stable")[:TOP]
        top = tuple((trained.classes[idx], float(row[idx])) for idx in best)
        yield PicturePrediction(path=file, label=top[0][0], probability=top[0][1], top=top)


def _probabilities(trained: Trained, pictures: Sequence[Pixels]) -> npt.NDArray[np.float32]:
    if not pictures:
        return np.empty((0, len(trained.classes)), dtype=np.float32)
    batch = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)  # (n, 3, h, w)
    with torch.inference_mode():
        logits = trained.model(batch).float()  # (n, C)
    probabilities: npt.NDArray[np.float32] = logits.softmax(dim=1).numpy()
    return probabilities


def _read(file: Path, trained: Trained) -> Pixels | str:
    """Return the pixels of a picture, or why it cannot be read."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return "is not a regular file"
        pixels: Pixels = decode_picture(
            file.read_bytes(),
            size=trained.size,
            fit=trained.fit,
            is_scaled=trained.is_scaled,
            white=trained.white,
        )
    except DataError as error:
        return error.what
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return pixels


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        if not path.exists():
            raise DataError(
                "this picture or folder does not exist",
                where=str(path),
                fix=did_you_mean_path(
                    path,
                    "Check the path. Pictures or folders come after the run: stepladder predict "
                    "RUN PATH [PATH ...]",
                    fits=Path.exists,
                ),
            )
        return [path]
    found = sorted(
        Path(folder) / name
        for folder, names in _walk(path)
        for name in names
        if not name.startswith(".") and name.lower().endswith(SUFFIXES)
    )
    if not found:
        raise DataError(
            "the folder contains no files that are pictures by their names",
            where=str(path),
            fix=f"Pass a folder with pictures, whose names end in {', '.join(SUFFIXES)}.",
        )
    return found


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        yield folder, names

"""Results of a finished run: predictions, the images with the largest losses, a summary."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stepladder.records import write_bytes, write_json
from stepladder.training.evaluate import Evaluation

PREDICTIONS_FILE = "predictions.csv"
THUMBS_FOLDER = "thumbs"
NUM_THUMBS = 12
THUMB_PIXELS = 112
COLUMNS = ("split", "id", "path", "label", "predicted", "probability", "loss")


def guard_cell(text: str) -> str:
    """Prefix a cell that a spreadsheet could read as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _name(classes: Sequence[str], idx: int) -> str:
    return classes[idx] if 0 <= idx < len(classes) else str(idx)


def prediction_rows(
    split: str, result: Evaluation, source: Any, classes: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """Yield the rows of predictions.csv for one split.

    Label, predicted and probability are empty if the task returns no class scores. Losses have nine
    digits, enough to distinguish any two float32 values.

    Args:
        source: its `describe(row)` returns the image's path.
    """
    for idx, row in enumerate(result.rows.tolist()):
        path, loss = guard_cell(source.describe(row)), f"{result.losses[idx]:.9g}"
        yield (split, str(row), path, *_class_cells(result, idx, classes), loss)


def _class_cells(result: Evaluation, idx: int, classes: Sequence[str]) -> tuple[str, str, str]:
    """Return label, predicted and probability of an example."""
    if result.predicted is None or result.targets is None or result.probability is None:
        return "", "", ""
    return (
        guard_cell(_name(classes, int(result.targets[idx]))),
        guard_cell(_name(classes, int(result.predicted[idx]))),
        f"{result.probability[idx]:.6f}",
    )


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The losses and hits of a split in predictions.csv, in the order of the split.

    Attributes:
        losses: (n,), float64.
        hits: 1 if an example was classified correctly, (n,); None without classes.
    """

    losses: NDArray[np.float64]
    hits: NDArray[np.float64] | None


def read_predictions(run: Path, split: str) -> Judged | None:
    """Read a split's losses and hits; None if there are no rows of it."""
    rows = []
    with (run / PREDICTIONS_FILE).open(encoding="utf-8", errors="replace", newline="") as file:
        for line in csv.DictReader(file):
            if line["split"] == split:
                hit = line["label"] == line["predicted"] if line["probability"] else None
                rows.append((int(line["id"]), float(line["loss"]), hit))
    if not rows:
        return None
    rows.sort(key=lambda row: row[0])
    hits = [hit for _, _, hit in rows if hit is not None]
    return Judged(
        losses=np.array([loss for _, loss, _ in rows]),
        hits=np.array(hits, np.float64) if len(hits) == len(rows) else None,
    )


def write_predictions(
    run: Path, results: Mapping[str, tuple[Evaluation, Any]], classes: Sequence[str]
) -> None:
    """Write predictions.csv: every held-out example with its prediction.

    Args:
        results: evaluation and source by split.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for split, (result, source) in results.items():
        writer.writerows(prediction_rows(split, result, source, classes))
    write_bytes(run / PREDICTIONS_FILE, text.getvalue().encode("utf-8", "surrogateescape"))


def write_thumbs(run: Path, result: Evaluation, source: Any, classes: Sequence[str]) -> None:
    """Write the images with the largest losses as small JPEGs, and their list as thumbs.json.

    Does nothing if the source has no images.
    """
    if not hasattr(source, "picture") or result.predicted is None or result.targets is None:
        return
    assert result.probability is not None
    folder = run / THUMBS_FOLDER
    folder.mkdir(exist_ok=True)
    records = []
    for rank, idx in enumerate(np.argsort(-result.losses, kind="stable")[:NUM_THUMBS].tolist()):
        row = int(result.rows[idx])
        image = Image.fromarray(source.picture(row))
        image.thumbnail((THUMB_PIXELS, THUMB_PIXELS))
        data = io.BytesIO()
        image.save(data, "JPEG", quality=82)
        name = f"{rank:02d}.jpg"
        write_bytes(folder / name, data.getvalue())
        records.append(
            {
                "file": name,
                "path": source.describe(row),
                "label": _name(classes, int(result.targets[idx])),
                "predicted": _name(classes, int(result.predicted[idx])),
                "probability": float(result.probability[idx]),
                "loss": float(result.losses[idx]),
            }
        )
    write_json(folder / "thumbs.json", records)


def metric_fields(split: str, result: Evaluation | None) -> dict[str, float | None]:
    """Return a split's metrics as summary fields, such as test_accuracy; None without a split."""
    names = ("accuracy", "macro_accuracy", "top5_accuracy")
    if result is None:
        return {f"{split}_{name}": None for name in ("loss", *names)}
    loss = result.loss().mean
    others = {f"{split}_{name}": value for name, value in result.values.items()}
    return {
        f"{split}_loss": loss if math.isfinite(loss) else None,
        **{f"{split}_{name}": None for name in names},
        **others,
    }

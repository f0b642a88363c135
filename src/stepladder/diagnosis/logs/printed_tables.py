"""Printed tables that a single trainer writes: spaCy's `train`, and YOLOv5's results.txt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from stepladder.diagnosis.logs.column_names import read_number
from stepladder.diagnosis.logs.rows import Cells, Table
from stepladder.diagnosis.logs.screen import screen_lines
from stepladder.records.audit import LogFormat

_SPACY = re.compile(r"E\s+#\s+(?:\S.*\s)?SCORE")
_OF_VECTORS = ("LOSS TOK2VEC", "LOSS TRANSFORMER")  # of the gradients that pass through them
_YOLO = re.compile(r"\s*(\d+)/(\d+)\s+[\d.]+[GM]((?:\s+-?(?:[\d.]+(?:e[-+]?\d+)?|nan|inf)){13})\s*")
_OF_YOLO = (
    *("train/box_loss", "train/obj_loss", "train/cls_loss", "train_loss", "targets", "img_size"),
    *("metrics/precision", "metrics/recall", "metrics/mAP_0.5", "metrics/mAP_0.5:0.95"),
    *("val/box_loss", "val/obj_loss", "val/cls_loss"),
)
_VAL_LOSSES = ("val/box_loss", "val/obj_loss", "val/cls_loss")
_NUM_LINES = 5  # that show the format of a file


def is_printed_table(text: str) -> bool:
    """Return True if the text has a table of spaCy, or only rows of YOLOv5."""
    lines = [line.strip() for line in screen_lines(text) if line.strip()]
    return any(map(_SPACY.fullmatch, lines)) or _is_yolo(lines)


def read_printed_table(text: str, *, name: str, path: str) -> list[Table]:
    """Read the trainings in such a text."""
    lines = [line.strip() for line in screen_lines(text) if line.strip()]
    if _is_yolo(lines):
        return [_yolo(lines, name=name, path=path)]
    starts = [idx for idx, line in enumerate(lines) if _SPACY.fullmatch(line)]
    parts = [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    return [
        _spacy(part, name=name if len(parts) == 1 else f"{name}#{idx + 1}", path=path)
        for idx, part in enumerate(parts)
    ]


def _is_yolo(lines: Sequence[str]) -> bool:
    return bool(lines) and all(map(_YOLO.fullmatch, lines[:_NUM_LINES]))


def _yolo(lines: Sequence[str], *, name: str, path: str) -> Table:
    """Build the table of a results.txt; the validation loss is the sum of its parts, as printed.

    Source: ultralytics/yolov5 4.0, train.py: epoch, memory, box, obj, cls and total loss, targets,
    image size, then precision, recall, mAP@.5, mAP@.5:.95, and the losses of validation.
    """
    cells: list[Cells] = []
    most = 0
    for found in filter(None, map(_YOLO.fullmatch, lines)):
        row = dict(zip(_OF_YOLO, found[3].split(), strict=True))
        val = [read_number(row[part]) for part in _VAL_LOSSES]
        most = max(most, int(found[2]) + 1)
        known = [loss for loss in val if loss is not None]
        total = {"val_loss": f"{sum(known):.6g}"} if len(known) == len(val) else {}
        cells.append({"epoch": found[1], **row, **total})
    return Table(
        name=name,
        path=path,
        format=LogFormat.TEXT,
        cells=cells,
        is_epoch_from_0=True,
        known={"max_epochs": most},
    )


def _spacy(lines: Sequence[str], *, name: str, path: str) -> Table:
    """Build the table of one training; spaCy selects its best model by the column SCORE.

    Source: spaCy 3, "Training Pipelines & Models": E epoch, # step, LOSS of each component since
    the last evaluation, and the scores on the development set.
    """
    header = re.split(r"\s{2,}", lines[0])
    return Table(
        name=name,
        path=path,
        format=LogFormat.TEXT,
        cells=list(_spacy_rows(header, lines[1:])),
        is_epoch_from_0=True,
        preferred="val_score",
    )


def _spacy_rows(header: Sequence[str], lines: Sequence[str]) -> Iterator[Cells]:
    for line in lines:
        texts = line.split()
        if len(texts) != len(header) or read_number(texts[0]) is None:
            continue
        row = dict(zip(header, texts, strict=True))
        losses = [
            read_number(text)
            for title, text in row.items()
            if title.startswith("LOSS ") and title not in _OF_VECTORS
        ]
        known = [loss for loss in losses if loss is not None]
        cells = {"epoch": row["E"], "step": row["#"], "val_score": row["SCORE"]}
        if known and row["#"] != "0":  # there it is of a single batch
            cells["train_loss"] = f"{sum(known):.6g}"
        yield cells

"""Printed tables that a single trainer writes: spaCy, and Ultralytics' console and results.txt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from stepladder.diagnosis.logs.meaning.attempts import split_attempts
from stepladder.diagnosis.logs.meaning.column_names import has_split, read_number
from stepladder.diagnosis.logs.meaning.rows import Cells, Table
from stepladder.diagnosis.logs.printed.screen import screen_lines
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
_CONSOLE = re.compile(r"Epoch\s+(?:GPU_mem|gpu_mem|mem)(?:\s+[\w@.:/-]+)+")
_BAR = re.compile(r":\s+\d+%.*|:\s*$")  # after the last column
_NO_LOSSES = frozenset(
    {"epoch", "gpu_mem", "mem", "instances", "labels", "targets", "size", "img_size"}
)
_OF_ALL = ("class", "classes")  # first column of the evaluations
_EPOCH_OF = re.compile(r"(\d+)/(\d+)\s+[\d.]+[GMK]B?(?=\s)")  # and the memory of the GPU
_NUM_LINES = 5  # that show the format of a file


def is_printed_table(text: str) -> bool:
    """Return True if the text has a table of spaCy or Ultralytics, or only rows of YOLOv5."""
    lines = [line.strip() for line in screen_lines(text) if line.strip()]
    return any(map(_SPACY.fullmatch, lines)) or _is_yolo(lines) or _is_console(lines)


def read_printed_table(text: str, *, name: str, path: str) -> list[Table]:
    """Read the trainings in such a text."""
    lines = [line.strip() for line in screen_lines(text) if line.strip()]
    if _is_yolo(lines):
        return [_yolo(lines, name=name, path=path)]
    if _is_console(lines):
        return _console(lines, name=name, path=path)
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


def _is_console(lines: Sequence[str]) -> bool:
    return any(map(_CONSOLE.fullmatch, lines))


def _console(lines: Sequence[str], *, name: str, path: str) -> list[Table]:
    """Build the tables of what Ultralytics prints; YOLOv5 counts epochs from 0, others from 1.

    Source: Ultralytics 8, engine/trainer.py, `progress_string`, and the validators' `get_desc`.
    """
    most = max((int(found[2]) for line in lines if (found := _EPOCH_OF.match(line))), default=0)
    attempts = split_attempts(list(_console_rows(lines)))
    return [
        Table(
            name=name if len(attempts) == 1 else f"{name}#{idx + 1}",
            path=path,
            format=LogFormat.TEXT,
            cells=attempt.cells,
            is_epoch_from_0=(is_from_0 := any(row["epoch"] == "0" for row in attempt.cells)),
            notes=attempt.notes(is_epoch_from_0=is_from_0),
            resumed_at=attempt.resumed_at,
            known={"max_epochs": most + is_from_0} if most else {},
        )
        for idx, attempt in enumerate(attempts)
    ]


def _console_rows(lines: Sequence[str]) -> Iterator[Cells]:
    """Yield a row for each epoch: its last state of the bar, and the evaluation of all classes.

    The evaluation of the best weights after the last epoch is left out.
    """
    trained: list[str] = []
    judged: list[str] = []
    row: dict[str, str] = {}
    for line in lines:
        texts = _BAR.sub("", line).split()
        first = texts[0].lower() if texts else ""
        if _CONSOLE.fullmatch(line):
            trained = [text.lower() for text in texts]
        elif (found := _EPOCH_OF.match(line)) and len(texts) == len(trained):
            if row and row["epoch"] != found[1]:
                yield row
                row = {}
            row |= _losses(trained, texts) | {"epoch": found[1]}
        elif first in _OF_ALL and len(texts) > 1:
            judged = [re.sub(r"^\w+\(|\)$", "", text) for text in texts]
        elif first == "all" and row and len(texts) == len(judged):
            values = zip(judged[1:], texts[1:], strict=True)
            row = {_named(name, "val"): text for name, text in values} | row
    if row:
        yield row


def _losses(names: Sequence[str], texts: Sequence[str]) -> dict[str, str]:
    """Return the columns of a row that are losses, or metrics of a classifier of YOLOv5.

    Its `top1_acc` is of the set of the held-out loss: `test_loss` if there is a folder `test`.
    """
    held_out = "test" if "test_loss" in names else "val"
    return {
        _named(name, held_out if name.endswith("_acc") else "train"): text
        for name, text in zip(names, texts, strict=True)
        if name not in _NO_LOSSES
    }


def _named(name: str, split: str) -> str:
    """Return a column's name with its split, as in results.csv: `mAP@.5:.95` is `mAP_0.5:0.95`."""
    name = name.replace("@.", "_0.").replace(":.", ":0.")
    return name if has_split(name) else f"{split}/{name}"


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

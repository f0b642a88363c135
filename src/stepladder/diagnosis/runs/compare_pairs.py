"""Two runs on the same held-out examples: what their predictions say together."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepladder.errors import DataError
from stepladder.records.compare import PairedResult
from stepladder.stats import Pairs, paired_change
from stepladder.stats.shares import mcnemar_p
from stepladder.training.output.results import PREDICTIONS_FILE

_SPLITS = ("test", "val")
_FIX = "Copy the file again from where the run was, or run the same training once more."
_COLUMNS = {"split", "label", "predicted", "loss"}
MIN_EXAMPLES = 2
_CONFIDENCE = 0.975  # of each bound: 95 % between both


@dataclass(frozen=True)
class _Example:
    """How one held-out example was judged.

    Attributes:
        is_right: None without classes.
        loss: None where it is no number.
    """

    label: str
    is_right: bool | None
    loss: float | None


_Table = dict[str, dict[str, _Example]]


def compare_pairs(
    first: Path | None, second: Path | None, *, names: tuple[str, str]
) -> PairedResult:
    """Compare two runs example by example, on test where both have it, else on validation.

    An example is known by its path, or without paths by its number in the split.

    Args:
        first, second: run folders; None: a log without predictions.
        names: of both.
    """
    tables: list[_Table] = []
    for name, folder in zip(names, (first, second), strict=True):
        try:
            table = _read(folder)
        except DataError as error:
            return _none(names, f"{PREDICTIONS_FILE} of {name} is damaged: {error.what}")
        if not table:
            return _none(names, f"{name} left no {PREDICTIONS_FILE}")
        tables.append(table)
    for split in _SPLITS:
        before, after = (table.get(split, {}) for table in tables)
        if before and after:
            return _compare(before, after, split=split, names=names)
    return _none(names, "they have no split in common")


def _compare(
    before: dict[str, _Example], after: dict[str, _Example], *, split: str, names: tuple[str, str]
) -> PairedResult:
    keys = [key for key in before if key in after and before[key].label == after[key].label]
    num_left_out = len(before.keys() | after.keys()) - len(keys)
    if len(keys) < MIN_EXAMPLES:
        return _none(names, f"they have {len(keys)} {split} examples in common")
    first, second = [before[key] for key in keys], [after[key] for key in keys]
    rows = np.arange(len(keys))
    accuracy = loss = only_first = only_second = p = None
    if all(one.is_right is not None for one in (*first, *second)):
        hits = [np.array([one.is_right for one in side], np.float64) for side in (first, second)]
        only_first = int(((hits[0] == 1) & (hits[1] == 0)).sum())
        only_second = int(((hits[0] == 0) & (hits[1] == 1)).sum())
        p = mcnemar_p(only_first, only_second)
        accuracy = paired_change([Pairs(rows, *hits)], is_share=True, confidence=_CONFIDENCE)
    if all(one.loss is not None for one in (*first, *second)):
        losses = [np.array([one.loss for one in side], np.float64) for side in (first, second)]
        if np.isfinite(losses).all():
            loss = paired_change([Pairs(rows, *losses)], confidence=_CONFIDENCE)
    return PairedResult(
        first=names[0],
        second=names[1],
        split=split,
        num=len(keys),
        num_left_out=num_left_out,
        only_first=only_first,
        only_second=only_second,
        p=p,
        accuracy=accuracy,
        loss=loss,
    )


def _none(names: tuple[str, str], why: str) -> PairedResult:
    return PairedResult(first=names[0], second=names[1], why_not=why)


def _read(folder: Path | None) -> _Table:
    """Read predictions.csv by split and example; empty where there is none.

    Raises:
        DataError: if it is damaged.
    """
    path = None if folder is None else folder / PREDICTIONS_FILE
    if path is None or not path.exists():
        return {}
    found: _Table = {}
    try:
        text = path.read_bytes().decode("utf-8", "replace")
        reader = csv.DictReader(io.StringIO(text, newline=""))
        if absent := sorted(_COLUMNS - {*(reader.fieldnames or ())}):
            raise DataError(f"it has no column {absent[0]}", fix=_FIX)
        for idx, row in enumerate(reader, start=1):
            split, key = row.get("split"), row.get("path") or row.get("id")
            if not split or not key or row.get("loss") is None:
                raise DataError(f"row {idx} is not whole", fix=_FIX)
            by_key = found.setdefault(split, {})
            by_key[key if key not in by_key else f"{key}#{row.get('id')}"] = _example(row, idx)
    except (OSError, csv.Error) as error:
        raise DataError(str(error), fix=_FIX) from error
    if not text.endswith("\n"):
        raise DataError("it ends in the middle of a row", fix=_FIX)
    return found


def _example(row: dict[str, str], idx: int) -> _Example:
    label, predicted, text = row["label"], row["predicted"], row["loss"]
    try:
        loss = float(text) if text else None
    except ValueError:
        raise DataError(f"{text[:40]!r} in row {idx} is no loss", fix=_FIX) from None
    is_right = label == predicted if row.get("probability") else None
    return _Example(label=label, is_right=is_right, loss=loss)

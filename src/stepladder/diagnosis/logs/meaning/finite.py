"""Where the losses of a log stop being finite, and cells in which NaN means not measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from stepladder.diagnosis.logs.meaning.column_names import (
    Meaning,
    meaning,
    read_number,
    read_place,
)
from stepladder.records.audit import LogRow

Cells = Mapping[str, str]


def ends_of_finite(
    cells: Sequence[Cells], epoch_offset: int
) -> tuple[LogRow | None, LogRow | None]:
    """Return the first line from which on a loss is not finite, also one that is not judged.

    Beside it, the last training loss before. A row of evaluations is a mean of several lines, and
    ends later.
    """
    starts = []
    for name in dict.fromkeys(name for row in cells for name in row):
        texts = [row.get(name, "") for row in cells]
        if meaning(name) not in (Meaning.TRAIN_LOSS, Meaning.VAL_LOSS) or is_sparse(texts):
            continue
        numbers = [(idx, read_number(text)) for idx, text in enumerate(texts)]
        known = [(idx, number) for idx, number in numbers if number is not None]
        last = max((idx for idx, number in known if math.isfinite(number)), default=-1)
        starts += [idx for idx, _ in known if idx > last][:1]
    if not starts:
        return None, None
    before = [
        (idx, number)
        for idx, row in enumerate(cells[: min(starts)])
        for name, text in row.items()
        if meaning(name) is Meaning.TRAIN_LOSS and (number := read_number(text)) is not None
    ]
    first = _placed(cells[min(starts)], epoch_offset)
    if not before or not math.isfinite(before[-1][1]):
        return first, None
    idx, number = before[-1]
    return first, replace(_placed(cells[idx], epoch_offset), train_loss=number)


def _placed(row: Cells, epoch_offset: int) -> LogRow:
    """Return an empty row with the epoch and the step of a line."""
    epoch, step = (
        next((read_place(text) for name, text in row.items() if meaning(name) is kind), None)
        for kind in (Meaning.EPOCH, Meaning.STEP)
    )
    return LogRow(
        epoch=None if epoch is None else epoch + epoch_offset,
        step=None if step is None or not math.isfinite(step) else int(step),
    )


def is_sparse(texts: Sequence[str]) -> bool:
    """Return True if `nan` means not measured: numbers follow it more than once."""
    numbers = [number for text in texts if (number := read_number(text)) is not None]
    returns = sum(
        math.isnan(before) and not math.isnan(after) for before, after in pairwise(numbers)
    )
    return returns > 1

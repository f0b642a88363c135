"""Epochs that are counted from 0 in training and from 1 in evaluations, or the other way round."""

from __future__ import annotations

from itertools import pairwise

from stepladder.diagnosis.logs.meaning.column_names import read_place, split_of
from stepladder.diagnosis.logs.meaning.rows import Cells

_MIN_PAIRS = 3  # of training and its evaluation


def counted_alike(
    rows: list[tuple[Cells, bool]],
) -> tuple[list[tuple[Cells, bool]], tuple[str, ...]]:
    """Count epochs from 1 in all rows, if training counts from 0 and evaluations from 1.

    Or the other way round. Each evaluation then follows the training of the epoch before it.
    """
    order = [(_is_held_out(cells), read_place(cells.get("epoch", ""))) for cells, _ in rows]
    for from_0 in (False, True):  # whether these are the evaluations
        epochs = [at for is_held_out, at in order if is_held_out is from_0 and at is not None]
        others = [at for is_held_out, at in order if is_held_out is not from_0 and at is not None]
        if not epochs or not others or (min(epochs), min(others)) != (0, 1):
            continue
        pairs = [(a, b) for a, b in pairwise(order) if not a[0] and b[0]]
        gap = -1 if from_0 else 1
        is_apart = all(a is not None and b is not None and b - a == gap for (_, a), (_, b) in pairs)
        if len(pairs) < _MIN_PAIRS or not is_apart:
            continue
        which = ("evaluations", "training") if from_0 else ("training", "evaluations")
        return [
            ({**cells, "epoch": f"{at + 1:g}"}, is_restarted)
            if is_held_out is from_0 and at is not None
            else (cells, is_restarted)
            for (cells, is_restarted), (is_held_out, at) in zip(rows, order, strict=True)
        ], (f"epochs are counted from 0 in {which[0]} and from 1 in {which[1]}; here from 1",)
    return rows, ()


def _is_held_out(cells: Cells) -> bool:
    return any(split_of(name)[0] in ("val", "test") for name in cells)
